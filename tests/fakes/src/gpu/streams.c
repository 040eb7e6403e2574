/* Streams: a queue and a worker each, in order. What the default stream and the blocking ones owe each other is queued as
 * operations that follow those of another stream. Who waits, waits for any progress and looks whether it was enough. */
#define _GNU_SOURCE
#include "gpu.h"

#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

struct times {
    uint64_t ready_ns; /* when the engines were through: the next copy may start */
    uint64_t done_ns;  /* when the data was there: what an event says */
};

struct stream {
    struct stream *next;
    int device;
    unsigned flags;
    bool alive;
    bool blocking; /* it and the default stream wait for each other */
    pthread_t worker;
    pthread_cond_t queued;
    struct operation *first, **end;
    uint64_t submitted, finished; /* operations */
    struct times times;           /* the worker's; `told` is what others may read, with the lock */
    struct times told;
};

pthread_mutex_t gpu_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t gpu_progress = PTHREAD_COND_INITIALIZER;

static struct stream *streams;
static struct stream *defaults[MAX_GPUS];
static __thread struct stream *of_thread[MAX_GPUS];

uint64_t gpu_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t later(uint64_t one, uint64_t other) {
    return one > other ? one : other;
}

static void fill(const struct operation *operation) {
    const char *pattern = (const char *)&operation->pattern;
    if (operation->width == 1)
        memset(operation->copy.target, pattern[0], operation->copy.size);
    else
        for (size_t at = 0; at < operation->copy.size; at++)
            operation->copy.target[at] = pattern[at % operation->width];
}

/* Without the lock. */
static void perform(struct stream *stream, struct operation *operation) {
    uint64_t done_ns = later(stream->times.done_ns, operation->submitted_ns);
    switch (operation->kind) {
    case COPY:
        done_ns = perform_copy(&operation->copy, operation->submitted_ns, &stream->times.ready_ns);
        break;
    case FILL:
        fill(operation);
        done_ns = gpu_now_ns();
        break;
    case CALL:
        operation->call(operation->argument);
        stream->times.ready_ns = done_ns = gpu_now_ns();
        break;
    default:
        break;
    }
    stream->times.done_ns = later(stream->times.done_ns, done_ns);
}

/* With the lock: what waits for others, or tells them. */
static void synchronise(struct stream *stream, struct operation *operation) {
    switch (operation->kind) {
    case RECORD:
        event_reached(operation->event, operation->number, later(stream->times.done_ns, operation->submitted_ns));
        break;
    case AWAIT:
        stream->times.ready_ns = later(stream->times.ready_ns, event_await(operation->event, operation->number));
        stream->times.done_ns = later(stream->times.done_ns, stream->times.ready_ns);
        break;
    case FOLLOW:
        while (operation->other->finished < operation->number)
            pthread_cond_wait(&gpu_progress, &gpu_lock);
        stream->times.ready_ns = later(stream->times.ready_ns, operation->other->told.ready_ns);
        stream->times.done_ns = later(stream->times.done_ns, operation->other->told.done_ns);
        break;
    default:
        break;
    }
}

static void release(struct block *block) {
    if (block)
        block->in_use--;
}

static void *work(void *argument) {
    struct stream *stream = argument;
    prctl(PR_SET_NAME, "fake-gpu-stream");
    prctl(PR_SET_TIMERSLACK, 1); /* ns: a copy ends when it should, not up to 50 us later */
    pthread_mutex_lock(&gpu_lock);
    for (;;) {
        while (!stream->first && stream->alive)
            pthread_cond_wait(&stream->queued, &gpu_lock);
        struct operation *operation = stream->first;
        if (!operation)
            break;
        stream->first = operation->next;
        if (!stream->first)
            stream->end = &stream->first;
        if (!device_lost(stream->device)) {
            pthread_mutex_unlock(&gpu_lock);
            perform(stream, operation);
            pthread_mutex_lock(&gpu_lock);
        }
        synchronise(stream, operation);
        release(operation->copy.to);
        release(operation->copy.from);
        free(operation);
        stream->told = stream->times;
        stream->finished++;
        pthread_cond_broadcast(&gpu_progress);
    }
    pthread_mutex_unlock(&gpu_lock);
    return NULL;
}

/* With the lock. */
static struct stream *make(int device, unsigned flags, bool blocking) {
    struct stream *stream = calloc(1, sizeof *stream);
    if (!stream)
        return NULL;
    *stream = (struct stream){.next = streams, .device = device, .flags = flags, .alive = true, .blocking = blocking};
    stream->end = &stream->first;
    pthread_cond_init(&stream->queued, NULL);
    if (pthread_create(&stream->worker, NULL, work, stream) != 0) {
        free(stream);
        return NULL;
    }
    pthread_detach(stream->worker);
    streams = stream;
    return stream;
}

struct stream *stream_create(int device, unsigned flags, bool blocking) {
    pthread_mutex_lock(&gpu_lock);
    struct stream *stream = make(device, flags, blocking);
    pthread_mutex_unlock(&gpu_lock);
    return stream;
}

static struct stream *made_once(struct stream **place, int device) {
    pthread_mutex_lock(&gpu_lock);
    if (!*place)
        *place = make(device, 0, true);
    pthread_mutex_unlock(&gpu_lock);
    if (!*place)
        abort(); /* no thread for it: nothing that a client could be told */
    return *place;
}

struct stream *stream_default(int device) {
    return made_once(&defaults[device], device);
}

struct stream *stream_of_thread(int device) {
    return made_once(&of_thread[device], device);
}

bool stream_exists(const struct stream *stream) {
    pthread_mutex_lock(&gpu_lock);
    const struct stream *at = streams;
    while (at && at != stream)
        at = at->next;
    bool exists = at && at->alive;
    pthread_mutex_unlock(&gpu_lock);
    return exists;
}

int stream_device(const struct stream *stream) {
    return stream->device;
}

unsigned stream_flags(const struct stream *stream) {
    return stream->flags;
}

/* What was queued is still done, as drivers promise. */
void stream_destroy(struct stream *stream) {
    pthread_mutex_lock(&gpu_lock);
    stream->alive = false;
    pthread_cond_signal(&stream->queued);
    pthread_mutex_unlock(&gpu_lock);
}

enum outcome stream_query(struct stream *stream) {
    pthread_mutex_lock(&gpu_lock);
    enum outcome outcome = stream->finished < stream->submitted ? NOT_READY : DONE;
    pthread_mutex_unlock(&gpu_lock);
    return outcome;
}

void stream_wait(struct stream *stream) {
    pthread_mutex_lock(&gpu_lock);
    uint64_t last = stream->submitted;
    while (stream->finished < last && !device_lost(stream->device))
        pthread_cond_wait(&gpu_progress, &gpu_lock);
    pthread_mutex_unlock(&gpu_lock);
}

bool device_is_idle(int device) {
    for (struct stream *stream = streams; stream; stream = stream->next)
        if (stream->device == device && stream->finished < stream->submitted)
            return false;
    return true;
}

void device_wait(int device) {
    pthread_mutex_lock(&gpu_lock);
    while (!device_is_idle(device) && !device_lost(device))
        pthread_cond_wait(&gpu_progress, &gpu_lock);
    pthread_mutex_unlock(&gpu_lock);
}

/* With the lock. */
static void enqueue(struct stream *stream, struct operation operation) {
    struct operation *queued = malloc(sizeof *queued);
    if (!queued)
        abort();
    *queued = operation;
    queued->next = NULL;
    *stream->end = queued;
    stream->end = &queued->next;
    stream->submitted++;
}

static void follow(struct stream *stream, struct stream *other) {
    if (other && other != stream && other->finished < other->submitted)
        enqueue(stream, (struct operation){.kind = FOLLOW, .other = other, .number = other->submitted});
}

void submit(struct stream *stream, struct operation operation) {
    operation.submitted_ns = gpu_now_ns();
    pthread_mutex_lock(&gpu_lock);
    struct stream *legacy = defaults[stream->device];
    if (stream == legacy) {
        for (struct stream *other = streams; other; other = other->next)
            if (other->device == stream->device && other->blocking)
                follow(stream, other);
    } else if (stream->blocking) {
        follow(stream, legacy);
    }
    enqueue(stream, operation);
    pthread_cond_signal(&stream->queued);
    pthread_mutex_unlock(&gpu_lock);
}

/* Events: how far a stream has come, and when. A record has a number, so that waiting for it means that record even if the
 * event is recorded again meanwhile. */
#include "gpu.h"

#include <stdlib.h>

struct event {
    struct event *next;
    int device;
    bool alive;
    bool timed;
    bool used; /* recorded since it was created */
    uint64_t recorded, reached; /* numbers of records */
    uint64_t when_ns;
};

static struct event *events;

/* A dead event is used again when nothing in a queue refers to it any more. */
struct event *event_create(int device, bool timed) {
    pthread_mutex_lock(&gpu_lock);
    struct event *event = events;
    while (event && (event->alive || event->reached < event->recorded))
        event = event->next;
    if (!event) {
        event = calloc(1, sizeof *event);
        if (event) {
            event->next = events;
            events = event;
        }
    }
    if (event) {
        event->device = device;
        event->alive = true;
        event->timed = timed;
        event->used = false;
        event->when_ns = 0;
    }
    pthread_mutex_unlock(&gpu_lock);
    return event;
}

bool event_exists(const struct event *event) {
    pthread_mutex_lock(&gpu_lock);
    const struct event *at = events;
    while (at && at != event)
        at = at->next;
    bool exists = at && at->alive;
    pthread_mutex_unlock(&gpu_lock);
    return exists;
}

void event_destroy(struct event *event) {
    pthread_mutex_lock(&gpu_lock);
    event->alive = false;
    pthread_mutex_unlock(&gpu_lock);
}

void event_record(struct event *event, struct stream *stream) {
    pthread_mutex_lock(&gpu_lock);
    uint64_t number = ++event->recorded;
    event->used = true;
    pthread_mutex_unlock(&gpu_lock);
    submit(stream, (struct operation){.kind = RECORD, .event = event, .number = number});
}

void stream_await(struct stream *stream, struct event *event) {
    pthread_mutex_lock(&gpu_lock);
    uint64_t number = event->recorded;
    pthread_mutex_unlock(&gpu_lock);
    submit(stream, (struct operation){.kind = AWAIT, .event = event, .number = number});
}

void event_reached(struct event *event, uint64_t number, uint64_t when_ns) {
    if (number > event->reached) {
        event->reached = number;
        event->when_ns = when_ns;
    }
}

uint64_t event_await(struct event *event, uint64_t number) {
    while (event->reached < number)
        pthread_cond_wait(&gpu_progress, &gpu_lock);
    return event->when_ns;
}

enum outcome event_query(struct event *event) {
    pthread_mutex_lock(&gpu_lock);
    enum outcome outcome = event->reached < event->recorded ? NOT_READY : DONE;
    pthread_mutex_unlock(&gpu_lock);
    return outcome;
}

void event_wait(struct event *event) {
    pthread_mutex_lock(&gpu_lock);
    uint64_t number = event->recorded;
    while (event->reached < number && !device_lost(event->device))
        pthread_cond_wait(&gpu_progress, &gpu_lock);
    pthread_mutex_unlock(&gpu_lock);
}

enum outcome event_elapsed(struct event *first, struct event *last, float *milliseconds) {
    enum outcome outcome = DONE;
    pthread_mutex_lock(&gpu_lock);
    if (!first->timed || !last->timed || !first->used || !last->used)
        outcome = INVALID_HANDLE;
    else if (first->reached < first->recorded || last->reached < last->recorded)
        outcome = NOT_READY;
    else
        *milliseconds = (float)((double)((int64_t)(last->when_ns - first->when_ns)) / 1e6);
    pthread_mutex_unlock(&gpu_lock);
    return outcome;
}

/* A GPU of no vendor, in host memory: what CUDA's and HIP's fakes have in common.
 *
 * Of the description it reads, for a device of "nvidia" or "amd" and besides what NVML's and amdsmi's fakes read:
 *
 *     nvidia.0.h2d_gbps = 4          how fast an engine copies, in 1e9 bytes a second; so d2h_gbps, d2d_gbps and, to a
 *                                    peer, peer_gbps or peer_gbps.1. Without: as fast as memory is
 *     nvidia.p2p.0.1 = 0             the two are peers (NVML's status; of "amd" a truth value)
 *     nvidia.0.copy.h2d = #1 3 drop  what goes wrong with a copy (faults.c); so d2h, d2d, peer.1
 *     nvidia.0.users = FOLDER        processes with a context and their memory, as other fakes see them; a context
 *                                    itself has nvidia.0.context_bytes
 *     nvidia.0.lost = 719            every call with the device returns this, for good
 *     cuda.0.fault.FUNCTION          a fault of a function (description.h); so hip.0.fault.FUNCTION
 *
 * Devices are numbered as the description numbers them; what a client may see, and in which order, is the API's affair.
 * Handles of streams and events are checked, and never freed: a stale one is an error, not a crash. One lock guards all
 * of it, and is free while data is copied or time passes. */
#ifndef GPU_H
#define GPU_H

#include "../board.h"
#include "../description.h"

#include <pthread.h>

/* Defined by the API: "nvidia" or "amd", and its engines on the board. */
extern const char *const gpu_vendor;
extern const int gpu_board;

/* What came of it; each API has its own numbers. */
enum outcome {
    DONE,
    INVALID,
    NO_MEMORY,
    ALREADY_REGISTERED,
    NOT_REGISTERED,
    NOT_READY,
    INVALID_HANDLE,
    PEER_UNSUPPORTED,
    PEER_ALREADY_ENABLED,
    PEER_NOT_ENABLED,
};

extern pthread_mutex_t gpu_lock;
extern pthread_cond_t gpu_progress; /* something was done, or a device was lost */

uint64_t gpu_now_ns(void);

/* ---- memory ---- */

enum memory { DEVICE_MEMORY, PINNED_MEMORY, REGISTERED_MEMORY };

struct block {
    struct block *next;
    char *address; /* what the client sees; of device memory, the host cannot read it */
    char *store;   /* where the bytes are */
    size_t size;
    enum memory kind;
    int device;
    unsigned flags;
    unsigned in_use; /* by copies that are under way */
};

enum outcome device_allocate(int device, size_t size, void **out);
enum outcome device_free(void *address);
enum outcome host_allocate(int device, size_t size, unsigned flags, void **out);
enum outcome host_free(void *address);
enum outcome host_register(int device, void *address, size_t size, unsigned flags);
enum outcome host_unregister(void *address);

/* The block in which a range lies wholly, or NULL. `*partly`, where asked for: whether it lies in one only partly. The
 * caller holds the lock. */
struct block *block_of(const void *address, size_t size, bool *partly);

/* The same for one address, without the lock held; a copy of what is known of it. */
bool block_at(const void *address, struct block *out);

/* Give everything back that belongs to a device. */
void release_device(int device);

void memory_info(int device, size_t *free_bytes, size_t *total_bytes);

/* A device's context has come into being, or is gone: a line of the log ("nvidia.context"), so that a test can prove that
 * a process made none, and a user whom NVML's fake lists. */
void context_made(int device);
void context_gone(int device);

/* What other fakes are told of this process: that it has a context and this much memory. */
void user_has(int device, size_t bytes);
void user_is_gone(int device);
size_t users_hold(int device); /* all processes, this one too */
bool users_are_told(int device);

/* ---- streams and events ---- */

struct stream;
struct event;

enum work { COPY, FILL, RECORD, AWAIT, FOLLOW, CALL };

struct copy {
    struct block *to, *from; /* NULL: pageable host memory */
    char *target;
    const char *source;
    size_t size;
    int device;          /* whose engine copies */
    int engine, second;  /* `second`: the other half of a way through host memory, else -1 */
    int second_device;
};

struct operation {
    struct operation *next;
    enum work kind;
    uint64_t submitted_ns;
    struct copy copy;    /* FILL uses its target, size and block */
    uint32_t pattern;
    unsigned width;      /* of the pattern, in bytes */
    struct event *event; /* RECORD, AWAIT */
    struct stream *other; /* FOLLOW */
    uint64_t number;     /* of the record that is made or awaited; of the operation of the other stream */
    void (*call)(void *);
    void *argument;
};

struct stream *stream_create(int device, unsigned flags, bool blocking);
struct stream *stream_default(int device);    /* what a null handle means */
struct stream *stream_of_thread(int device);  /* "per thread" */
bool stream_exists(const struct stream *stream);
int stream_device(const struct stream *stream);
unsigned stream_flags(const struct stream *stream);
void stream_destroy(struct stream *stream);
enum outcome stream_query(struct stream *stream);
void stream_wait(struct stream *stream);
void device_wait(int device);
bool device_is_idle(int device); /* the caller holds the lock */

/* Queue an operation. It is copied. */
void submit(struct stream *stream, struct operation operation);

struct event *event_create(int device, bool timed);
bool event_exists(const struct event *event);
void event_destroy(struct event *event);
void event_record(struct event *event, struct stream *stream);
enum outcome event_query(struct event *event);
void event_wait(struct event *event);
void stream_await(struct stream *stream, struct event *event);
enum outcome event_elapsed(struct event *first, struct event *last, float *milliseconds);

/* Used by the worker of streams: note that a record was reached, wait for one. The caller holds the lock. */
void event_reached(struct event *event, uint64_t number, uint64_t when_ns);
uint64_t event_await(struct event *event, uint64_t number);

/* ---- copies ---- */

enum way { HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE, HOST_TO_HOST, ANY_WAY };

/* Queue a copy; `device` is that of the caller. The host waits for it if it asked, or if host memory is not pinned. */
enum outcome copy_memory(
    int device, struct stream *stream, void *to, const void *from, size_t size, enum way way, bool host_waits);

/* Queue a fill of `count` patterns of 1, 2 or 4 bytes. */
enum outcome fill_memory(struct stream *stream, void *to, uint32_t pattern, unsigned width, size_t count);

enum outcome peer_enable(int device, int peer);
enum outcome peer_disable(int device, int peer);
bool peer_possible(int device, int peer); /* what the driver claims */

/* Do it: the data, and the time. `*ready_ns`: when the stream's work before it was done; then when this is.
 * Returns when the data was there, at the earliest. */
uint64_t perform_copy(const struct copy *copy, uint64_t submitted_ns, uint64_t *ready_ns);

/* ---- pacing and faults ---- */

/* What the description says of an engine, read again only after it has changed. */
double engine_gbps(int device, int engine);
const char *engine_fault(int device, int engine);

/* Reserve an engine for a copy that could start at `earliest_ns`; returns when it will be done. */
uint64_t engine_reserve(int device, int engine, uint64_t earliest_ns, size_t size);
void engine_count(int device, int engine, size_t size);
void sleep_until(int device, uint64_t until_ns);

/* Move the data of a copy as ordered faults would have it. */
void move_faulty(const struct copy *copy, int device, int engine, const char *fault);

/* The status that every call with the device returns from now on, 0 while it is well. */
int device_lost(int device);
void lose_device(int device, int status);

#endif

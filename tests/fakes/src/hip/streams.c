/* Streams and events. */
#include "fake_hip.h"

#define LEGACY ((void *)1)
#define PER_THREAD ((void *)2)

struct stream *stream_of(void *handle) {
    if (!handle || handle == LEGACY)
        return stream_default(here());
    if (handle == PER_THREAD)
        return stream_of_thread(here());
    return stream_exists(handle) ? handle : NULL;
}

/* Declare `stream` for a handle, or return. */
#define STREAM(handle)                                                                                                 \
    struct stream *stream = stream_of(handle);                                                                         \
    if (!stream)                                                                                                       \
        return said(hipErrorInvalidHandle)

#define EVENT(handle)                                                                                                  \
    struct event *event = (handle);                                                                                    \
    if (!event_exists(event))                                                                                          \
        return said(hipErrorInvalidHandle)

static int create(void **out, unsigned flags) {
    NEED(out && !(flags & ~(unsigned)hipStreamNonBlocking));
    *out = stream_create(here(), flags, !(flags & hipStreamNonBlocking));
    return said(*out ? hipSuccess : hipErrorOutOfMemory);
}

API hipStreamCreate(void **out) {
    ENTER_CONTEXT();
    return create(out, 0);
}

API hipStreamCreateWithFlags(void **out, unsigned flags) {
    ENTER_CONTEXT();
    return create(out, flags);
}

API hipStreamCreateWithPriority(void **out, unsigned flags, int priority) {
    (void)priority;
    ENTER_CONTEXT();
    return create(out, flags);
}

API hipDeviceGetStreamPriorityRange(int *least, int *greatest) {
    ENTER();
    if (least)
        *least = 0;
    if (greatest)
        *greatest = 0;
    return hipSuccess;
}

API hipStreamDestroy(void *handle) {
    ENTER_CONTEXT();
    if (!stream_exists(handle))
        return said(hipErrorInvalidHandle);
    stream_destroy(handle);
    return hipSuccess;
}

API hipStreamGetFlags(void *handle, unsigned *out) {
    ENTER_CONTEXT();
    NEED(out);
    STREAM(handle);
    *out = stream_flags(stream);
    return hipSuccess;
}

API hipStreamGetDevice(void *handle, int *out) {
    ENTER_CONTEXT();
    NEED(out);
    STREAM(handle);
    *out = number_of_device(stream_device(stream));
    return hipSuccess;
}

API hipStreamSynchronize(void *handle) {
    ENTER_OFTEN();
    STREAM(handle);
    stream_wait(stream);
    return said_of(DONE);
}

API hipStreamQuery(void *handle) {
    ENTER_OFTEN();
    STREAM(handle);
    return said_of(stream_query(stream));
}

API hipStreamWaitEvent(void *handle, void *awaited, unsigned flags) {
    (void)flags;
    ENTER_OFTEN();
    STREAM(handle);
    EVENT(awaited);
    stream_await(stream, event);
    return hipSuccess;
}

API hipLaunchHostFunc(void *handle, void (*function)(void *), void *argument) {
    ENTER_OFTEN();
    NEED(function);
    STREAM(handle);
    submit(stream, (struct operation){.kind = CALL, .call = function, .argument = argument});
    return hipSuccess;
}

static int create_event(void **out, unsigned flags) {
    NEED(out);
    *out = event_create(here(), !(flags & hipEventDisableTiming));
    return said(*out ? hipSuccess : hipErrorOutOfMemory);
}

API hipEventCreate(void **out) {
    ENTER_CONTEXT();
    return create_event(out, 0);
}

API hipEventCreateWithFlags(void **out, unsigned flags) {
    ENTER_CONTEXT();
    return create_event(out, flags);
}

API hipEventDestroy(void *handle) {
    ENTER_CONTEXT();
    EVENT(handle);
    event_destroy(event);
    return hipSuccess;
}

API hipEventRecord(void *handle, void *where) {
    ENTER_OFTEN();
    STREAM(where);
    EVENT(handle);
    event_record(event, stream);
    return hipSuccess;
}

API hipEventSynchronize(void *handle) {
    ENTER_OFTEN();
    EVENT(handle);
    event_wait(event);
    return said_of(DONE);
}

API hipEventQuery(void *handle) {
    ENTER_OFTEN();
    EVENT(handle);
    return said_of(event_query(event));
}

API hipEventElapsedTime(float *milliseconds, void *first, void *last) {
    ENTER_OFTEN();
    NEED(milliseconds);
    if (!event_exists(first) || !event_exists(last))
        return said(hipErrorInvalidHandle);
    return said_of(event_elapsed(first, last, milliseconds));
}

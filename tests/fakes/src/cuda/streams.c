/* Streams and events. */
#include "fake_cuda.h"

struct stream *stream_of(CUstream handle) {
    int physical = current_context()->physical;
    if (!handle || handle == CU_STREAM_LEGACY)
        return stream_default(physical);
    if (handle == CU_STREAM_PER_THREAD)
        return stream_of_thread(physical);
    struct stream *stream = (struct stream *)handle;
    return stream_exists(stream) ? stream : NULL;
}

/* Declare `stream` for a handle, or return. */
#define STREAM(handle)                                                                                                 \
    struct stream *stream = stream_of(handle);                                                                         \
    if (!stream)                                                                                                       \
        return CUDA_ERROR_INVALID_HANDLE

#define EVENT(handle)                                                                                                  \
    struct event *event = (struct event *)(handle);                                                                    \
    if (!event_exists(event))                                                                                          \
        return CUDA_ERROR_INVALID_HANDLE

static CUresult create(CUstream *out, unsigned flags) {
    NEED(out && !(flags & ~(unsigned)CU_STREAM_NON_BLOCKING));
    *out = (CUstream)stream_create(current_context()->physical, flags, !(flags & CU_STREAM_NON_BLOCKING));
    return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API cuStreamCreate(CUstream *out, unsigned flags) {
    ENTER_CONTEXT();
    return create(out, flags);
}

API cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority) {
    (void)priority;
    ENTER_CONTEXT();
    return create(out, flags);
}

API cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    ENTER_CONTEXT();
    if (least)
        *least = 0;
    if (greatest)
        *greatest = 0;
    return CUDA_SUCCESS;
}

API cuStreamDestroy(CUstream handle) {
    ENTER_CONTEXT();
    struct stream *stream = (struct stream *)handle;
    if (!stream_exists(stream))
        return CUDA_ERROR_INVALID_HANDLE;
    stream_destroy(stream);
    return CUDA_SUCCESS;
}

API cuStreamGetFlags(CUstream handle, unsigned *out) {
    ENTER_CONTEXT();
    NEED(out);
    STREAM(handle);
    *out = stream_flags(stream);
    return CUDA_SUCCESS;
}

API cuStreamSynchronize(CUstream handle) {
    ENTER_OFTEN();
    STREAM(handle);
    stream_wait(stream);
    return result_unless_lost(DONE);
}

API cuStreamQuery(CUstream handle) {
    ENTER_OFTEN();
    STREAM(handle);
    return result_unless_lost(stream_query(stream));
}

API cuStreamWaitEvent(CUstream handle, CUevent awaited, unsigned flags) {
    (void)flags;
    ENTER_OFTEN();
    STREAM(handle);
    EVENT(awaited);
    stream_await(stream, event);
    return CUDA_SUCCESS;
}

API cuLaunchHostFunc(CUstream handle, CUhostFn function, void *argument) {
    ENTER_OFTEN();
    NEED(function);
    STREAM(handle);
    submit(stream, (struct operation){.kind = CALL, .call = function, .argument = argument});
    return CUDA_SUCCESS;
}

/* `mode` (CUDA 13.1) says how the host waits for the device, which makes no difference here. */
API cuLaunchHostFunc_v2(CUstream handle, CUhostFn function, void *argument, unsigned mode) {
    (void)mode;
    return cuLaunchHostFunc(handle, function, argument);
}

API cuEventCreate(CUevent *out, unsigned flags) {
    ENTER_CONTEXT();
    NEED(out && !(flags & ~(unsigned)(CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING)));
    *out = (CUevent)event_create(current_context()->physical, !(flags & CU_EVENT_DISABLE_TIMING));
    return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API cuEventDestroy(CUevent handle) {
    ENTER_CONTEXT();
    EVENT(handle);
    event_destroy(event);
    return CUDA_SUCCESS;
}

API cuEventRecord(CUevent handle, CUstream where) {
    ENTER_OFTEN();
    STREAM(where);
    EVENT(handle);
    event_record(event, stream);
    return CUDA_SUCCESS;
}

API cuEventSynchronize(CUevent handle) {
    ENTER_OFTEN();
    EVENT(handle);
    event_wait(event);
    return result_unless_lost(DONE);
}

API cuEventQuery(CUevent handle) {
    ENTER_OFTEN();
    EVENT(handle);
    return result_unless_lost(event_query(event));
}

static CUresult elapsed(float *milliseconds, CUevent first, CUevent last) {
    NEED(milliseconds);
    if (!event_exists((struct event *)first) || !event_exists((struct event *)last))
        return CUDA_ERROR_INVALID_HANDLE;
    return result_unless_lost(event_elapsed((struct event *)first, (struct event *)last, milliseconds));
}

API cuEventElapsedTime_v2(float *milliseconds, CUevent first, CUevent last) {
    ENTER_OFTEN();
    return elapsed(milliseconds, first, last);
}

#undef cuEventElapsedTime
API cuEventElapsedTime(float *milliseconds, CUevent first, CUevent last) {
    ENTER_OFTEN();
    return elapsed(milliseconds, first, last);
}

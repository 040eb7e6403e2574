/* Memory and copies. */
#include "fake_hip.h"

API hipMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    ENTER_CONTEXT();
    NEED(free_bytes && total_bytes);
    memory_info(here(), free_bytes, total_bytes);
    return hipSuccess;
}

API hipMalloc(void **out, size_t size) {
    ENTER_CONTEXT();
    NEED(out);
    *out = NULL;
    return said_of(size == 0 ? DONE : device_allocate(here(), size, out));
}

API hipFree(void *pointer) {
    ENTER_CONTEXT();
    return said_of(device_free(pointer));
}

API hipHostMalloc(void **out, size_t size, unsigned flags) {
    ENTER_CONTEXT();
    NEED(out);
    *out = NULL;
    return said_of(size == 0 ? DONE : host_allocate(here(), size, flags, out));
}

API hipHostAlloc(void **out, size_t size, unsigned flags) {
    return hipHostMalloc(out, size, flags);
}

API hipHostFree(void *address) {
    ENTER_CONTEXT();
    return said_of(host_free(address));
}

API hipHostRegister(void *address, size_t size, unsigned flags) {
    ENTER_CONTEXT();
    NEED(!(flags & ~(unsigned)(hipHostRegisterPortable | hipHostRegisterMapped)));
    return said_of(host_register(here(), address, size, flags));
}

API hipHostUnregister(void *address) {
    ENTER_CONTEXT();
    return said_of(host_unregister(address));
}

API hipHostGetDevicePointer(void **out, void *address, unsigned flags) {
    ENTER_CONTEXT();
    struct block block;
    NEED(out && !flags && block_at(address, &block) && block.kind != DEVICE_MEMORY);
    *out = address; /* unified addressing: pinned memory has one address */
    return hipSuccess;
}

API hipHostGetFlags(unsigned *out, void *address) {
    ENTER_CONTEXT();
    struct block block;
    NEED(out && block_at(address, &block) && block.kind != DEVICE_MEMORY);
    *out = block.flags;
    return hipSuccess;
}

API hipPointerGetAttributes(hipPointerAttribute_t *out, const void *pointer) {
    ENTER_CONTEXT();
    struct block block;
    NEED(out && block_at(pointer, &block));
    bool on_device = block.kind == DEVICE_MEMORY;
    *out = (hipPointerAttribute_t){
        .type = on_device ? hipMemoryTypeDevice : hipMemoryTypeHost,
        .device = number_of_device(block.device),
        .devicePointer = (void *)(uintptr_t)pointer,
        .hostPointer = on_device ? NULL : (void *)(uintptr_t)pointer,
        .allocationFlags = block.flags,
    };
    return hipSuccess;
}

/* ---- copies ---- */

static int copy(void *handle, void *to, const void *from, size_t size, int kind, bool host_waits) {
    enum way way;
    switch (kind) {
    case hipMemcpyHostToHost:
        way = HOST_TO_HOST;
        break;
    case hipMemcpyHostToDevice:
        way = HOST_TO_DEVICE;
        break;
    case hipMemcpyDeviceToHost:
        way = DEVICE_TO_HOST;
        break;
    case hipMemcpyDeviceToDevice:
    case hipMemcpyDeviceToDeviceNoCU:
        way = DEVICE_TO_DEVICE;
        break;
    case hipMemcpyDefault:
        way = ANY_WAY;
        break;
    default:
        return said(hipErrorInvalidMemcpyDirection);
    }
    struct stream *stream = stream_of(handle);
    if (!stream)
        return said(hipErrorInvalidHandle);
    return said_of(copy_memory(here(), stream, to, from, size, way, host_waits));
}

API hipMemcpy(void *to, const void *from, size_t size, int kind) {
    ENTER_OFTEN();
    return copy(NULL, to, from, size, kind, true);
}

API hipMemcpyAsync(void *to, const void *from, size_t size, int kind, void *stream) {
    ENTER_OFTEN();
    return copy(stream, to, from, size, kind, false);
}

API hipMemcpyWithStream(void *to, const void *from, size_t size, int kind, void *stream) {
    ENTER_OFTEN();
    return copy(stream, to, from, size, kind, true);
}

API hipMemcpyHtoD(void *to, const void *from, size_t size) {
    ENTER_OFTEN();
    return copy(NULL, to, from, size, hipMemcpyHostToDevice, true);
}

API hipMemcpyHtoDAsync(void *to, const void *from, size_t size, void *stream) {
    ENTER_OFTEN();
    return copy(stream, to, from, size, hipMemcpyHostToDevice, false);
}

API hipMemcpyDtoH(void *to, void *from, size_t size) {
    ENTER_OFTEN();
    return copy(NULL, to, from, size, hipMemcpyDeviceToHost, true);
}

API hipMemcpyDtoHAsync(void *to, void *from, size_t size, void *stream) {
    ENTER_OFTEN();
    return copy(stream, to, from, size, hipMemcpyDeviceToHost, false);
}

API hipMemcpyDtoD(void *to, void *from, size_t size) {
    ENTER_OFTEN();
    return copy(NULL, to, from, size, hipMemcpyDeviceToDevice, true);
}

API hipMemcpyDtoDAsync(void *to, void *from, size_t size, void *stream) {
    ENTER_OFTEN();
    return copy(stream, to, from, size, hipMemcpyDeviceToDevice, false);
}

static int copy_to_peer(void *to, int owner, const void *from, int source, size_t size, void *stream) {
    struct block block;
    if (visible_device(owner) < 0 || visible_device(source) < 0)
        return said(hipErrorInvalidDevice);
    NEED(block_at(to, &block) && block.kind == DEVICE_MEMORY && block.device == visible_device(owner));
    NEED(block_at(from, &block) && block.kind == DEVICE_MEMORY && block.device == visible_device(source));
    return copy(stream, to, from, size, hipMemcpyDeviceToDevice, false);
}

API hipMemcpyPeer(void *to, int owner, const void *from, int source, size_t size) {
    ENTER_OFTEN();
    return copy_to_peer(to, owner, from, source, size, NULL);
}

API hipMemcpyPeerAsync(void *to, int owner, const void *from, int source, size_t size, void *stream) {
    ENTER_OFTEN();
    return copy_to_peer(to, owner, from, source, size, stream);
}

/* ---- fills ---- */

static int fill(void *handle, void *to, uint32_t pattern, unsigned width, size_t count) {
    struct stream *stream = stream_of(handle);
    if (!stream)
        return said(hipErrorInvalidHandle);
    return said_of(fill_memory(stream, to, pattern, width, count));
}

#define FILL(function, type, width)                                                                                    \
    API function(void *to, type pattern, size_t count) {                                                               \
        ENTER_OFTEN();                                                                                                 \
        return fill(NULL, to, (uint32_t)pattern, width, count);                                                        \
    }

#define FILL_ASYNC(function, type, width)                                                                              \
    API function(void *to, type pattern, size_t count, void *stream) {                                                 \
        ENTER_OFTEN();                                                                                                 \
        return fill(stream, to, (uint32_t)pattern, width, count);                                                      \
    }

FILL(hipMemset, int, 1)
FILL(hipMemsetD8, unsigned char, 1)
FILL(hipMemsetD16, unsigned short, 2)
FILL(hipMemsetD32, int, 4)
FILL_ASYNC(hipMemsetAsync, int, 1)
FILL_ASYNC(hipMemsetD8Async, unsigned char, 1)
FILL_ASYNC(hipMemsetD16Async, unsigned short, 2)
FILL_ASYNC(hipMemsetD32Async, int, 4)

/* Memory and copies. */
#include "fake_cuda.h"

#include <string.h>

static int here(void) {
    return current_context()->physical;
}

API cuMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    ENTER_CONTEXT();
    NEED(free_bytes && total_bytes);
    memory_info(here(), free_bytes, total_bytes);
    return CUDA_SUCCESS;
}

API cuMemAlloc(CUdeviceptr *out, size_t size) {
    ENTER_CONTEXT();
    NEED(out);
    void *address = NULL;
    enum outcome outcome = device_allocate(here(), size, &address);
    *out = (CUdeviceptr)address;
    return result_of(outcome);
}

API cuMemFree(CUdeviceptr pointer) {
    ENTER_CONTEXT();
    return result_of(device_free((void *)pointer));
}

API cuMemHostAlloc(void **out, size_t size, unsigned flags) {
    ENTER_CONTEXT();
    NEED(out);
    if (flags & ~(unsigned)(CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED))
        return CUDA_ERROR_INVALID_VALUE;
    return result_of(host_allocate(here(), size, flags, out));
}

API cuMemAllocHost(void **out, size_t size) {
    ENTER_CONTEXT();
    NEED(out);
    return result_of(host_allocate(here(), size, 0, out));
}

API cuMemFreeHost(void *address) {
    ENTER_CONTEXT();
    return result_of(host_free(address));
}

API cuMemHostRegister(void *address, size_t size, unsigned flags) {
    ENTER_CONTEXT();
    if (flags & ~(unsigned)(CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_READ_ONLY))
        return flags & CU_MEMHOSTREGISTER_IOMEMORY ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
    return result_of(host_register(here(), address, size, flags));
}

API cuMemHostUnregister(void *address) {
    ENTER_CONTEXT();
    return result_of(host_unregister(address));
}

API cuMemHostGetDevicePointer(CUdeviceptr *out, void *address, unsigned flags) {
    ENTER_CONTEXT();
    struct block block;
    NEED(out && !flags && block_at(address, &block) && block.kind != DEVICE_MEMORY);
    *out = (CUdeviceptr)address; /* unified addressing: pinned memory has one address */
    return CUDA_SUCCESS;
}

API cuMemHostGetFlags(unsigned *out, void *address) {
    ENTER_CONTEXT();
    struct block block;
    NEED(out && block_at(address, &block) && block.kind == PINNED_MEMORY);
    *out = block.flags;
    return CUDA_SUCCESS;
}

static int number_of_device(int physical) {
    for (int device = 0; device < visible_count(); device++)
        if (visible_device(device) == physical)
            return device;
    return -1;
}

API cuPointerGetAttribute(void *out, CUpointer_attribute attribute, CUdeviceptr pointer) {
    ENTER_CONTEXT();
    struct block block;
    NEED(out && block_at((void *)pointer, &block));
    bool on_device = block.kind == DEVICE_MEMORY;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)out = on_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)out = number_of_device(block.device);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(CUdeviceptr *)out = pointer;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (on_device)
            return CUDA_ERROR_INVALID_VALUE;
        *(void **)out = (void *)pointer;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(unsigned *)out = 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *(void **)out = block.address;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *(size_t *)out = block.size;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

/* ---- copies ---- */

static CUresult copy(CUstream handle, void *to, const void *from, size_t size, enum way way, bool host_waits) {
    struct stream *stream = stream_of(handle);
    if (!stream)
        return CUDA_ERROR_INVALID_HANDLE;
    return result_unless_lost(copy_memory(here(), stream, to, from, size, way, host_waits));
}

API cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t size) {
    ENTER_OFTEN();
    return copy(NULL, (void *)to, (void *)from, size, ANY_WAY, true);
}

API cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
    ENTER_OFTEN();
    return copy(stream, (void *)to, (void *)from, size, ANY_WAY, false);
}

API cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t size) {
    ENTER_OFTEN();
    return copy(NULL, (void *)to, from, size, HOST_TO_DEVICE, true);
}

API cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t size, CUstream stream) {
    ENTER_OFTEN();
    return copy(stream, (void *)to, from, size, HOST_TO_DEVICE, false);
}

API cuMemcpyDtoH(void *to, CUdeviceptr from, size_t size) {
    ENTER_OFTEN();
    return copy(NULL, to, (void *)from, size, DEVICE_TO_HOST, true);
}

API cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t size, CUstream stream) {
    ENTER_OFTEN();
    return copy(stream, to, (void *)from, size, DEVICE_TO_HOST, false);
}

API cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, size_t size) {
    ENTER_OFTEN();
    return copy(NULL, (void *)to, (void *)from, size, DEVICE_TO_DEVICE, true);
}

API cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
    ENTER_OFTEN();
    return copy(stream, (void *)to, (void *)from, size, DEVICE_TO_DEVICE, false);
}

static CUresult copy_to_peer(
    CUdeviceptr to, CUcontext owner, CUdeviceptr from, CUcontext source, size_t size, CUstream stream) {
    struct block block;
    if (!context_exists(owner) || !context_exists(source) || !owner->alive || !source->alive)
        return CUDA_ERROR_INVALID_CONTEXT;
    NEED(block_at((void *)to, &block) && block.kind == DEVICE_MEMORY && block.device == owner->physical);
    NEED(block_at((void *)from, &block) && block.kind == DEVICE_MEMORY && block.device == source->physical);
    return copy(stream, (void *)to, (void *)from, size, DEVICE_TO_DEVICE, false);
}

API cuMemcpyPeer(CUdeviceptr to, CUcontext owner, CUdeviceptr from, CUcontext source, size_t size) {
    ENTER_OFTEN();
    return copy_to_peer(to, owner, from, source, size, NULL);
}

API cuMemcpyPeerAsync(
    CUdeviceptr to, CUcontext owner, CUdeviceptr from, CUcontext source, size_t size, CUstream stream) {
    ENTER_OFTEN();
    return copy_to_peer(to, owner, from, source, size, stream);
}

/* ---- fills ---- */

static CUresult fill(CUstream handle, CUdeviceptr to, uint32_t pattern, unsigned width, size_t count) {
    struct stream *stream = stream_of(handle);
    if (!stream)
        return CUDA_ERROR_INVALID_HANDLE;
    return result_unless_lost(fill_memory(stream, (void *)to, pattern, width, count));
}

#define FILL(function, type)                                                                                           \
    API function(CUdeviceptr to, type pattern, size_t count) {                                                         \
        ENTER_OFTEN();                                                                                                 \
        return fill(NULL, to, pattern, sizeof pattern, count);                                                         \
    }

#define FILL_ASYNC(function, type)                                                                                     \
    API function(CUdeviceptr to, type pattern, size_t count, CUstream stream) {                                        \
        ENTER_OFTEN();                                                                                                 \
        return fill(stream, to, pattern, sizeof pattern, count);                                                       \
    }

FILL(cuMemsetD8, unsigned char)
FILL(cuMemsetD16, unsigned short)
FILL(cuMemsetD32, unsigned int)
FILL_ASYNC(cuMemsetD8Async, unsigned char)
FILL_ASYNC(cuMemsetD16Async, unsigned short)
FILL_ASYNC(cuMemsetD32Async, unsigned int)

/* The library itself: initialisation, what every function checks first, errors, and addresses of functions by version. */
#define _GNU_SOURCE
#include "fake_cuda.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_tables.h" /* written by runtime_abi.py out of NVIDIA's headers */

const char *const gpu_vendor = "nvidia";
const int gpu_board = BOARD_NVIDIA;

#define FAULTS "cuda"

static _Atomic bool up, forked;

/* A child has no threads of the driver: CUDA does not work in it, and says so. */
static void in_child(void) {
    forked = up;
}

__attribute__((constructor)) static void loaded(void) {
    pthread_atfork(NULL, NULL, in_child);
}

static const char *plain_name(const char *function, char *room, size_t size) {
    copy_text(room, size, function);
    char *suffix = strrchr(room, '_');
    if (suffix && suffix[1] == 'v')
        *suffix = '\0';
    return room;
}

static CUresult enter_function(const char *function, int device, bool often) {
    char name[96];
    plain_name(function, name, sizeof name);
    return (CUresult)(often ? enter_often(FAULTS, device, name) : enter(FAULTS, device, name));
}

CUresult enter_driver(const char *function) {
    return up && !forked ? enter_function(function, LIBRARY, true) : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult enter_with_device(CUdevice device, const char *function) {
    if (!up || forked)
        return CUDA_ERROR_NOT_INITIALIZED;
    int physical = visible_device(device);
    if (physical < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    CUresult fault = enter_function(function, physical, false);
    return fault ? fault : (CUresult)device_lost(physical);
}

CUresult enter_with_context(const char *function, bool often) {
    if (!up || forked)
        return CUDA_ERROR_NOT_INITIALIZED;
    struct CUctx_st *context = current_context();
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!context->alive)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    CUresult fault = enter_function(function, context->physical, often);
    return fault ? fault : (CUresult)device_lost(context->physical);
}

CUresult result_of(enum outcome outcome) {
    switch (outcome) {
    case DONE:
        return CUDA_SUCCESS;
    case NO_MEMORY:
        return CUDA_ERROR_OUT_OF_MEMORY;
    case ALREADY_REGISTERED:
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    case NOT_REGISTERED:
        return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    case NOT_READY:
        return CUDA_ERROR_NOT_READY;
    case INVALID_HANDLE:
        return CUDA_ERROR_INVALID_HANDLE;
    case PEER_UNSUPPORTED:
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    case PEER_ALREADY_ENABLED:
        return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    case PEER_NOT_ENABLED:
        return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    case INVALID:
        break;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult result_unless_lost(enum outcome outcome) {
    int lost = device_lost(current_context()->physical);
    return lost ? (CUresult)lost : result_of(outcome);
}

API cuInit(unsigned flags) {
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (forked)
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult fault = enter_function(__func__, LIBRARY, false);
    if (fault)
        return fault;
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_visible_devices);
    if (visible_count() == 0)
        return CUDA_ERROR_NO_DEVICE;
    up = true;
    return CUDA_SUCCESS;
}

API cuDriverGetVersion(int *out) {
    NEED(out);
    *out = (int)number(described("%s.cuda_driver_version", gpu_vendor), CUDA_VERSION);
    return CUDA_SUCCESS;
}

API cuGetErrorName(CUresult result, const char **out) {
    NEED(out);
    *out = NULL;
    for (size_t at = 0; at < sizeof ERRORS / sizeof *ERRORS; at++)
        if (ERRORS[at].code == (int)result)
            *out = ERRORS[at].name;
    return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API cuGetErrorString(CUresult result, const char **out) {
    NEED(out);
    *out = NULL;
    for (size_t at = 0; at < sizeof ERRORS / sizeof *ERRORS; at++)
        if (ERRORS[at].code == (int)result)
            *out = ERRORS[at].text;
    return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* libcudart asks for private tables: it does not run on this library. */
API cuGetExportTable(const void **out, const CUuuid *id) {
    (void)id;
    NEED(out);
    *out = NULL;
    return CUDA_ERROR_NOT_FOUND;
}

static void *exported(const char *symbol) {
    static void *library;
    Dl_info own;
    if (!library && dladdr(&up, &own))
        library = dlopen(own.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    return library ? dlsym(library, symbol) : NULL;
}

/* The newest ABI that the asked version of CUDA knows. One that is newer than this library has is "not found": an older
 * one in its place would be called with the wrong arguments. */
API cuGetProcAddress_v2(
    const char *name, void **out, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status) {
    (void)flags;
    NEED(name && out);
    CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    const char *symbol = NULL;
    for (size_t at = 0; at < sizeof VERSIONS / sizeof *VERSIONS; at++)
        if (strcmp(VERSIONS[at].name, name) == 0) {
            if (VERSIONS[at].version <= version)
                symbol = VERSIONS[at].symbol;
            else if (!symbol)
                found = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
        }
    *out = symbol ? exported(symbol) : NULL;
    if (*out)
        found = CU_GET_PROC_ADDRESS_SUCCESS;
    if (status)
        *status = found;
    return *out ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

#undef cuGetProcAddress
API cuGetProcAddress(const char *name, void **out, int version, cuuint64_t flags) {
    return cuGetProcAddress_v2(name, out, version, flags, NULL);
}

/* The runtime itself: what every function checks first, errors, and the thread's device. */
#include "fake_hip.h"

const char *const gpu_vendor = "amd";
const int gpu_board = BOARD_AMD;

#define FAULTS "hip"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Atomic bool up, forked;
static _Atomic bool has_context[MAX_GPUS];
static __thread int device;
static __thread int last;

/* A child has no threads of the runtime, and its kernel interface is the parent's. */
static void in_child(void) {
    forked = up;
}

__attribute__((constructor)) static void loaded(void) {
    pthread_atfork(NULL, NULL, in_child);
}

int said(int status) {
    /* Since ROCm 7 a success leaves the last failure alone, and "not ready" is none. */
    if (status != hipSuccess && status != hipErrorNotReady)
        last = status;
    return status;
}

static int status_of(enum outcome outcome) {
    switch (outcome) {
    case DONE:
        return hipSuccess;
    case NO_MEMORY:
        return hipErrorOutOfMemory;
    case ALREADY_REGISTERED:
        return hipErrorHostMemoryAlreadyRegistered;
    case NOT_REGISTERED:
        return hipErrorHostMemoryNotRegistered;
    case NOT_READY:
        return hipErrorNotReady;
    case INVALID_HANDLE:
        return hipErrorInvalidHandle;
    case PEER_UNSUPPORTED:
        return hipErrorPeerAccessUnsupported;
    case PEER_ALREADY_ENABLED:
        return hipErrorPeerAccessAlreadyEnabled;
    case PEER_NOT_ENABLED:
        return hipErrorPeerAccessNotEnabled;
    case INVALID:
        break;
    }
    return hipErrorInvalidValue;
}

int said_of(enum outcome outcome) {
    int lost = device_lost(here());
    return said(lost ? lost : status_of(outcome));
}

int here(void) {
    return visible_device(device);
}

static int start(void) {
    if (forked)
        return hipErrorNotInitialized;
    pthread_once(&once, read_visible_devices);
    up = true;
    return hipSuccess;
}

static int enter_function(const char *function, int physical, bool often) {
    return often ? enter_often(FAULTS, physical, function) : enter(FAULTS, physical, function);
}

int enter_runtime(const char *function, bool often) {
    int status = start();
    return status ? status : enter_function(function, LIBRARY, often);
}

static int enter_physical(int number_of_client, const char *function, bool often) {
    int status = start();
    if (status)
        return status;
    if (visible_count() == 0)
        return hipErrorNoDevice;
    int physical = visible_device(number_of_client);
    if (physical < 0)
        return hipErrorInvalidDevice;
    status = enter_function(function, physical, often);
    return status ? status : device_lost(physical);
}

int enter_with_device(int number_of_client, const char *function) {
    return enter_physical(number_of_client, function, false);
}

/* The first work with a device makes its context. */
int enter_with_context(const char *function, bool often) {
    int status = enter_physical(device, function, often);
    bool none = false;
    if (status == hipSuccess && atomic_compare_exchange_strong(&has_context[here()], &none, true))
        context_made(here());
    return status;
}

API hipInit(unsigned flags) {
    RETURN_UNLESS_WELL(enter_runtime(__func__, false));
    NEED(flags == 0);
    return said(visible_count() > 0 ? hipSuccess : hipErrorNoDevice);
}

API hipGetDeviceCount(int *out) {
    RETURN_UNLESS_WELL(enter_runtime(__func__, false));
    NEED(out);
    *out = visible_count();
    return said(*out > 0 ? hipSuccess : hipErrorNoDevice);
}

API hipSetDevice(int to) {
    RETURN_UNLESS_WELL(enter_physical(to, __func__, true));
    device = to;
    return hipSuccess;
}

API hipGetDevice(int *out) {
    ENTER();
    NEED(out);
    RETURN_UNLESS_WELL(visible_count() > 0 ? hipSuccess : hipErrorNoDevice);
    *out = device;
    return hipSuccess;
}

API hipRuntimeGetVersion(int *out) {
    NEED(out);
    *out = (int)number(described("%s.hip_version", gpu_vendor), 70051831);
    return hipSuccess;
}

API hipDriverGetVersion(int *out) {
    return hipRuntimeGetVersion(out);
}

API hipGetLastError(void) {
    int status = last;
    last = hipSuccess;
    return status;
}

API hipPeekAtLastError(void) {
    return last;
}

EXPORT const char *hipGetErrorName(int status) {
    for (size_t at = 0; at < sizeof HIP_ERRORS / sizeof *HIP_ERRORS; at++)
        if (HIP_ERRORS[at].code == status)
            return HIP_ERRORS[at].name;
    return "hipErrorUnknown";
}

EXPORT const char *hipGetErrorString(int status) {
    return status == hipSuccess ? "no error" : hipGetErrorName(status);
}

API hipDeviceSynchronize(void) {
    ENTER_OFTEN();
    device_wait(here());
    return said_of(DONE);
}

API hipDeviceReset(void) {
    ENTER_CONTEXT();
    release_device(here());
    context_gone(here());
    has_context[here()] = false;
    return hipSuccess;
}

API hipDeviceEnablePeerAccess(int peer, unsigned flags) {
    ENTER_CONTEXT();
    NEED(flags == 0);
    int other = visible_device(peer);
    if (other < 0 || other == here())
        return said(hipErrorInvalidDevice);
    return said_of(peer_enable(here(), other));
}

API hipDeviceDisablePeerAccess(int peer) {
    ENTER_CONTEXT();
    int other = visible_device(peer);
    if (other < 0)
        return said(hipErrorInvalidDevice);
    return said_of(peer_disable(here(), other));
}

/* Contexts: the primary one of a device, those that a client makes, and what is current in a thread. */
#include "fake_cuda.h"

#include <stdlib.h>

enum { DEPTH = 32 };

static struct CUctx_st primaries[MAX_GPUS]; /* by the client's number */
static struct CUctx_st *created;
static __thread struct CUctx_st *stack[DEPTH];
static __thread int depth;

struct CUctx_st *current_context(void) {
    return depth > 0 ? stack[depth - 1] : NULL;
}

bool context_exists(CUcontext context) {
    if (context >= primaries && context < primaries + MAX_GPUS)
        return true;
    pthread_mutex_lock(&gpu_lock);
    struct CUctx_st *at = created;
    while (at && at != context)
        at = at->next;
    pthread_mutex_unlock(&gpu_lock);
    return at != NULL;
}

/* ---- primary contexts ---- */

API cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device) {
    ENTER_DEVICE(device);
    NEED(out);
    struct CUctx_st *context = &primaries[device];
    pthread_mutex_lock(&gpu_lock);
    bool is_new = context->retained++ == 0;
    if (is_new) {
        context->device = device;
        context->physical = visible_device(device);
        context->primary = true;
        context->alive = true;
    }
    pthread_mutex_unlock(&gpu_lock);
    if (is_new)
        context_made(context->physical);
    *out = context;
    return CUDA_SUCCESS;
}

static CUresult release_primary(CUdevice device, bool all) {
    struct CUctx_st *context = &primaries[device];
    pthread_mutex_lock(&gpu_lock);
    bool was_alive = context->alive;
    if (was_alive && (all || --context->retained == 0))
        context->alive = false;
    if (all)
        context->retained = 0;
    bool is_gone = was_alive && !context->alive;
    pthread_mutex_unlock(&gpu_lock);
    if (is_gone) {
        release_device(context->physical);
        context_gone(context->physical);
    }
    return was_alive || all ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

API cuDevicePrimaryCtxRelease(CUdevice device) {
    ENTER_DEVICE(device);
    return release_primary(device, false);
}

API cuDevicePrimaryCtxReset(CUdevice device) {
    ENTER_DEVICE(device);
    return release_primary(device, true);
}

API cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    ENTER_DEVICE(device);
    NEED(flags && active);
    *flags = primaries[device].flags;
    *active = primaries[device].alive;
    return CUDA_SUCCESS;
}

API cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags) {
    ENTER_DEVICE(device);
    primaries[device].flags = flags;
    return CUDA_SUCCESS;
}

/* ---- contexts of a client's own ---- */

static CUresult create(CUcontext *out, unsigned flags, CUdevice device) {
    NEED(out);
    struct CUctx_st *context = calloc(1, sizeof *context);
    if (!context || depth >= DEPTH) {
        free(context);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *context =
        (struct CUctx_st){.device = device, .physical = visible_device(device), .flags = flags, .alive = true};
    pthread_mutex_lock(&gpu_lock);
    context->next = created;
    created = context;
    pthread_mutex_unlock(&gpu_lock);
    stack[depth++] = context;
    context_made(context->physical);
    *out = context;
    return CUDA_SUCCESS;
}

#undef cuCtxCreate
API cuCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice device) {
    ENTER_DEVICE(device);
    return create(out, flags, device);
}

API cuCtxCreate_v3(CUcontext *out, CUexecAffinityParam *params, int count, unsigned flags, CUdevice device) {
    (void)params;
    (void)count;
    ENTER_DEVICE(device);
    return create(out, flags, device);
}

#if CUDA_VERSION >= 12050
API cuCtxCreate_v4(CUcontext *out, CUctxCreateParams *params, unsigned flags, CUdevice device) {
    (void)params;
    ENTER_DEVICE(device);
    return create(out, flags, device);
}
#endif

API cuCtxDestroy(CUcontext context) {
    ENTER();
    if (!context_exists(context) || context->primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!context->alive)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    context->alive = false;
    context_gone(context->physical);
    if (current_context() == context)
        depth--;
    return CUDA_SUCCESS;
}

/* ---- what is current ---- */

API cuCtxGetCurrent(CUcontext *out) {
    ENTER();
    NEED(out);
    *out = current_context();
    return CUDA_SUCCESS;
}

API cuCtxSetCurrent(CUcontext context) {
    ENTER();
    if (context && !context_exists(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (depth > 0)
        depth--;
    if (context)
        stack[depth++] = context;
    return CUDA_SUCCESS;
}

API cuCtxPushCurrent(CUcontext context) {
    ENTER();
    if (!context_exists(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (depth >= DEPTH)
        return CUDA_ERROR_INVALID_VALUE;
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

API cuCtxPopCurrent(CUcontext *out) {
    ENTER();
    if (depth == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    depth--;
    if (out)
        *out = stack[depth];
    return CUDA_SUCCESS;
}

#undef cuCtxGetDevice
API cuCtxGetDevice(CUdevice *out) {
    ENTER_CONTEXT();
    NEED(out);
    *out = current_context()->device;
    return CUDA_SUCCESS;
}

/* Since CUDA 13 a context can be named; NULL is the current one. */
API cuCtxGetDevice_v2(CUdevice *out, CUcontext context) {
    ENTER_CONTEXT();
    NEED(out);
    if (context && !context_exists(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    *out = (context ? context : current_context())->device;
    return CUDA_SUCCESS;
}

API cuCtxGetFlags(unsigned *out) {
    ENTER_CONTEXT();
    NEED(out);
    *out = current_context()->flags;
    return CUDA_SUCCESS;
}

API cuCtxGetApiVersion(CUcontext context, unsigned *out) {
    ENTER_CONTEXT();
    (void)context;
    NEED(out);
    *out = 3020;
    return CUDA_SUCCESS;
}

#undef cuCtxSynchronize
API cuCtxSynchronize(void) {
    ENTER_OFTEN();
    device_wait(current_context()->physical);
    return result_unless_lost(DONE);
}

API cuCtxSynchronize_v2(CUcontext context) {
    ENTER_OFTEN();
    if (context && !context_exists(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    device_wait((context ? context : current_context())->physical);
    return result_unless_lost(DONE);
}

/* ---- peers ---- */

API cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
    ENTER_CONTEXT();
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (!context_exists(peer) || !peer->alive || peer == current_context())
        return CUDA_ERROR_INVALID_CONTEXT;
    return result_of(peer_enable(current_context()->physical, peer->physical));
}

API cuCtxDisablePeerAccess(CUcontext peer) {
    ENTER_CONTEXT();
    if (!context_exists(peer) || !peer->alive)
        return CUDA_ERROR_INVALID_CONTEXT;
    return result_of(peer_disable(current_context()->physical, peer->physical));
}

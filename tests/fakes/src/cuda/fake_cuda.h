/* A libcuda.so.1 without a driver, compiled against NVIDIA's own cuda.h: its macros give each function the name of its
 * newest ABI (cuMemAlloc is cuMemAlloc_v2), and the compiler checks every prototype. ABIs of CUDA before 4 are left out:
 * a client that calls cuMemAlloc means another function than it thinks, and should not find it. */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include "../gpu/gpu.h"

#include <cuda.h>

#define API EXPORT CUresult

/* Contexts that were made stay; the number of a device is the client's, `physical` the description's. */
struct CUctx_st {
    struct CUctx_st *next;
    int device;
    int physical;
    unsigned flags;
    _Atomic bool alive;
    int retained; /* of a primary context: how often */
    bool primary;
};

/* ---- visible.c ---- */

int visible_count(void);
int visible_device(CUdevice device); /* its number in the description, -1 for none */

void read_visible_devices(void);

/* ---- contexts.c ---- */

struct CUctx_st *current_context(void);
struct CUctx_st *context_of_device(int physical);
bool context_exists(CUcontext context);

/* ---- entering a function: what each of them checks first. The function is named without its "_v2". ---- */

CUresult enter_driver(const char *function);
CUresult enter_with_device(CUdevice device, const char *function);
CUresult enter_with_context(const char *function, bool often);

#define RETURN_UNLESS_WELL(entered)                                                                                    \
    do {                                                                                                               \
        CUresult status = (entered);                                                                                   \
        if (status != CUDA_SUCCESS)                                                                                    \
            return status;                                                                                             \
    } while (0)

#define ENTER() RETURN_UNLESS_WELL(enter_driver(__func__))
#define ENTER_DEVICE(device) RETURN_UNLESS_WELL(enter_with_device(device, __func__))
#define ENTER_CONTEXT() RETURN_UNLESS_WELL(enter_with_context(__func__, false))
#define ENTER_OFTEN() RETURN_UNLESS_WELL(enter_with_context(__func__, true))
#define NEED(pointer) RETURN_UNLESS_WELL((pointer) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE)

CUresult result_of(enum outcome outcome);

/* A result, unless the device was lost meanwhile. */
CUresult result_unless_lost(enum outcome outcome);

/* The stream of a handle: NULL, the legacy and the per-thread handle have theirs. NULL for a handle that is none. */
struct stream *stream_of(CUstream handle);

/* "nvidia.DEVICE.NAME" of the description. */
const char *field(int physical, const char *name);

/* Domain, bus, device, function out of a PCI address. */
bool parse_address(const char *text, unsigned parts[4]);

#endif

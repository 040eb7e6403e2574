/* A libamdhip64.so.7 without a driver. The runtime API is plain C: prototypes are written out, structures and constants
 * come from the bindings that are installed (runtime_abi.py). */
#ifndef FAKE_HIP_H
#define FAKE_HIP_H

#include "../gpu/gpu.h"

#include "hip_abi.h"

#define API EXPORT int

/* ---- visible.c ---- */

void read_visible_devices(void);
int visible_count(void);
int visible_device(int device); /* its number in the description, -1 for none */
int number_of_device(int physical);

/* "amd.DEVICE.NAME" of the description. */
const char *field(int physical, const char *name);

/* ---- entering a function: what each of them checks first ---- */

int enter_runtime(const char *function, bool often);
int enter_with_device(int device, const char *function);
int enter_with_context(const char *function, bool often); /* the thread's device, which is now used */

/* The thread's device as the description numbers it. */
int here(void);

/* Keep a failure for hipGetLastError, and return it. */
int said(int status);
int said_of(enum outcome outcome);

/* The stream of a handle: NULL, the legacy and the per-thread handle have theirs. NULL for a handle that is none. */
struct stream *stream_of(void *handle);

#define RETURN_UNLESS_WELL(entered)                                                                                    \
    do {                                                                                                               \
        int status = (entered);                                                                                        \
        if (status != hipSuccess)                                                                                      \
            return said(status);                                                                                       \
    } while (0)

#define ENTER() RETURN_UNLESS_WELL(enter_runtime(__func__, true))
#define ENTER_DEVICE(device) RETURN_UNLESS_WELL(enter_with_device(device, __func__))
#define ENTER_CONTEXT() RETURN_UNLESS_WELL(enter_with_context(__func__, false))
#define ENTER_OFTEN() RETURN_UNLESS_WELL(enter_with_context(__func__, true))
#define NEED(pointer) RETURN_UNLESS_WELL((pointer) ? hipSuccess : hipErrorInvalidValue)

#endif

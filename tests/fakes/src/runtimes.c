/* CUDA, HSA, HIP and Level Zero without drivers: what their initialisers return is described (`cuda.init = 999`). A
 * library that is not described has no device, as the real ones say. */
#include "description.h"

#include <stdio.h>
#include <string.h>

#define API EXPORT int

static int said(const char *vendor, const char *name, int otherwise) {
    return (int)number(described("%s.%s", vendor, name), (uint64_t)otherwise);
}

static int initialise(const char *vendor, const char *function, int no_device) {
    int fault = enter(vendor, LIBRARY, function);
    return fault ? fault : said(vendor, "init", no_device);
}

/* ---- CUDA: CUresult ---- */

API cuInit(unsigned flags) {
    (void)flags;
    return initialise("cuda", __func__, 100);
}

API cuDriverGetVersion(int *out) {
    *out = said("cuda", "driver_version", 12080);
    return 0;
}

API cuDeviceGetCount(int *out) {
    *out = said("cuda", "count", 1);
    return 0;
}

/* ---- HSA: hsa_status_t; HIP: hipError_t ---- */

API hsa_init(void) {
    return initialise("hsa", __func__, 4096);
}

API hsa_shut_down(void) {
    return 0;
}

API hipInit(unsigned flags) {
    (void)flags;
    return initialise("hip", __func__, 100);
}

API hipGetDeviceCount(int *out) {
    *out = said("hip", "count", 0);
    return *out ? 0 : 100;
}

/* ---- Level Zero: ze_result_t; each driver has `levelzero.count` GPUs, each GPU one memory ---- */

static char driver, devices[16], memory;

API zeInit(uint32_t flags) {
    (void)flags;
    return initialise("levelzero", __func__, 0x78000001);
}

static int give(uint32_t *count, void **out, uint32_t have, char *first, int stride) {
    for (uint32_t at = 0; out && at < *count && at < have; at++)
        out[at] = first + stride * (int)at;
    if (!out || *count > have)
        *count = have;
    return 0;
}

API zeDriverGet(uint32_t *count, void **out) {
    return give(count, out, 1, &driver, 0);
}

API zeDeviceGet(void *owner, uint32_t *count, void **out) {
    (void)owner;
    return give(count, out, (uint32_t)said("levelzero", "count", 1), devices, 1);
}

API zesDeviceEnumMemoryModules(void *device, uint32_t *count, void **out) {
    (void)device;
    return give(count, out, 1, &memory, 0);
}

struct memory_state { /* zes_mem_state_t */
    uint32_t stype;
    void *next;
    uint32_t health;
    uint64_t free, size;
};

API zesMemoryGetState(void *handle, struct memory_state *out) {
    if (handle != &memory || out->stype != 0x1e) /* ZES_STRUCTURE_TYPE_MEM_STATE */
        return 0x78000004; /* ZE_RESULT_ERROR_INVALID_ARGUMENT */
    out->health = (uint32_t)said("levelzero", "memory_health", 1);
    return 0;
}

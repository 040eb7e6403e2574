/* Copies: which memory is meant, which engine takes it, and whether the host waits. */
#include "gpu.h"

#include <string.h>

static bool reachable[MAX_GPUS][MAX_GPUS]; /* a device's access to a peer's memory was enabled */

bool peer_possible(int device, int peer) {
    int low = device < peer ? device : peer, high = device < peer ? peer : device;
    const char *said = described("%s.p2p.%d.%d", gpu_vendor, low, high);
    /* NVIDIA's key is NVML's status, of which 0 is OK; AMD's is a truth value. */
    return device != peer && (gpu_board == BOARD_NVIDIA ? number(said, 1) == 0 : number(said, 0) != 0);
}

enum outcome peer_enable(int device, int peer) {
    if (!peer_possible(device, peer))
        return PEER_UNSUPPORTED;
    pthread_mutex_lock(&gpu_lock);
    bool before = reachable[device][peer];
    reachable[device][peer] = true;
    pthread_mutex_unlock(&gpu_lock);
    return before ? PEER_ALREADY_ENABLED : DONE;
}

enum outcome peer_disable(int device, int peer) {
    pthread_mutex_lock(&gpu_lock);
    bool before = reachable[device][peer];
    reachable[device][peer] = false;
    pthread_mutex_unlock(&gpu_lock);
    return before ? DONE : PEER_NOT_ENABLED;
}

static bool is_device(const struct block *block) {
    return block && block->kind == DEVICE_MEMORY;
}

/* Which engine copies. Without peer access the way between devices leads through host memory, over two links. */
static void route(struct copy *copy, int device) {
    bool to = is_device(copy->to), from = is_device(copy->from);
    copy->second = -1;
    copy->device = to ? copy->to->device : from ? copy->from->device : device;
    copy->engine = to ? ENGINE_H2D : from ? ENGINE_D2H : -1;
    if (!to || !from)
        return;
    int source = copy->from->device, target = copy->to->device;
    copy->device = source;
    if (source == target) {
        copy->engine = ENGINE_D2D;
    } else if (reachable[source][target] || reachable[target][source]) {
        copy->engine = ENGINE_PEER + target;
    } else {
        copy->engine = ENGINE_D2H;
        copy->second = ENGINE_H2D;
        copy->second_device = target;
    }
}

/* Whether the host has to wait for a copy: memory that is not pinned or, without the "portable" flag, for another device
 * than this. The flag is 1 in both APIs. */
static bool is_pageable(const struct block *block, int device) {
    return !block || (block->kind == REGISTERED_MEMORY && !(block->flags & 1) && block->device != device);
}

/* Find the memory of one end. False: it is not what was said, or only a part of it is known to the runtime. */
static bool find(const void *address, size_t size, bool wants_device, bool wants_host, struct block **block, char **at) {
    bool partly;
    *block = block_of(address, size, &partly);
    *at = (char *)(uintptr_t)address;
    if (*block)
        *at = (*block)->store + ((const char *)address - (*block)->address);
    return !partly && !(wants_device && !is_device(*block)) && !(wants_host && is_device(*block));
}

enum outcome copy_memory(
    int device, struct stream *stream, void *to, const void *from, size_t size, enum way way, bool host_waits) {
    struct operation operation = {.kind = COPY, .copy = {.size = size}};
    struct copy *copy = &operation.copy;
    bool to_device = way == HOST_TO_DEVICE || way == DEVICE_TO_DEVICE, any = way == ANY_WAY;
    bool from_device = way == DEVICE_TO_HOST || way == DEVICE_TO_DEVICE;
    char *source;
    if (size == 0)
        return DONE;
    pthread_mutex_lock(&gpu_lock);
    bool found = find(to, size, to_device, !to_device && !any, &copy->to, &copy->target)
        && find(from, size, from_device, !from_device && !any, &copy->from, &source);
    if (found) {
        copy->source = source;
        route(copy, device);
        if (copy->to)
            copy->to->in_use++;
        if (copy->from)
            copy->from->in_use++;
    }
    bool pageable = is_pageable(copy->to, device) || is_pageable(copy->from, device);
    bool on_device = is_device(copy->to) && is_device(copy->from);
    pthread_mutex_unlock(&gpu_lock);
    if (!found)
        return INVALID;
    submit(stream, operation);
    if (pageable || (host_waits && !on_device))
        stream_wait(stream);
    return DONE;
}

enum outcome fill_memory(struct stream *stream, void *to, uint32_t pattern, unsigned width, size_t count) {
    struct operation operation = {.kind = FILL, .pattern = pattern, .width = width, .copy = {.size = width * count}};
    struct copy *copy = &operation.copy;
    if (copy->size == 0)
        return DONE;
    if ((uintptr_t)to % width != 0)
        return INVALID;
    pthread_mutex_lock(&gpu_lock);
    bool found = find(to, copy->size, true, false, &copy->to, &copy->target);
    if (found)
        copy->to->in_use++;
    pthread_mutex_unlock(&gpu_lock);
    if (found)
        submit(stream, operation);
    return found ? DONE : INVALID;
}

static void move(const struct copy *copy) {
    const char *fault = copy->engine < 0 ? NULL : engine_fault(copy->device, copy->engine);
    if (fault) {
        move_faulty(copy, copy->device, copy->engine, fault);
    } else if (copy->second >= 0 && (fault = engine_fault(copy->second_device, copy->second))) {
        move_faulty(copy, copy->second_device, copy->second, fault);
    } else {
        memmove(copy->target, copy->source, copy->size);
    }
}

uint64_t perform_copy(const struct copy *copy, uint64_t submitted_ns, uint64_t *ready_ns) {
    uint64_t until = submitted_ns > *ready_ns ? submitted_ns : *ready_ns;
    if (copy->engine >= 0)
        until = engine_reserve(copy->device, copy->engine, until, copy->size);
    if (copy->second >= 0)
        until = engine_reserve(copy->second_device, copy->second, until, copy->size);
    move(copy);
    uint64_t moved_ns = gpu_now_ns();
    sleep_until(copy->device, until);
    if (copy->engine >= 0)
        engine_count(copy->device, copy->engine, copy->size);
    if (copy->second >= 0)
        engine_count(copy->second_device, copy->second, copy->size);
    *ready_ns = until;
    return until > moved_ns ? until : moved_ns;
}

/* Memory: of devices, which the client sees at an address that the host cannot touch while the bytes lie elsewhere; pinned
 * memory; and memory of the client's that was registered. Each is a block, found by address. */
#define _GNU_SOURCE
#include "gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, HUGE_PAGE = 2 << 20 };

static struct block *blocks;
static size_t allocated[MAX_GPUS];
static unsigned contexts[MAX_GPUS];

/* With the lock: files of one process are written in order. */
static void tell(int device) {
    if (contexts[device] > 0)
        user_has(device, allocated[device]);
    else
        user_is_gone(device);
}

void context_made(int device) {
    pthread_mutex_lock(&gpu_lock);
    contexts[device]++;
    tell(device);
    pthread_mutex_unlock(&gpu_lock);
    char event[32];
    snprintf(event, sizeof event, "%s.context", gpu_vendor);
    log_event(event, device);
}

void context_gone(int device) {
    pthread_mutex_lock(&gpu_lock);
    contexts[device]--;
    tell(device);
    pthread_mutex_unlock(&gpu_lock);
}

static size_t whole_pages(size_t size) {
    return (size + PAGE - 1) & ~(size_t)(PAGE - 1);
}

struct block *block_of(const void *address, size_t size, bool *partly) {
    const char *first = address;
    if (partly)
        *partly = false;
    for (struct block *block = blocks; block; block = block->next) {
        const char *end = block->address + block->size;
        if (first >= block->address && first < end && size <= (size_t)(end - first))
            return block;
        if (partly && first < end && first + size > block->address)
            *partly = true;
    }
    return NULL;
}

bool block_at(const void *address, struct block *out) {
    pthread_mutex_lock(&gpu_lock);
    struct block *block = block_of(address, 1, NULL);
    if (block)
        *out = *block;
    pthread_mutex_unlock(&gpu_lock);
    return block != NULL;
}

static enum outcome add(struct block block) {
    struct block *made = malloc(sizeof *made);
    if (!made)
        return NO_MEMORY;
    *made = block;
    made->next = blocks;
    blocks = made;
    if (block.kind == DEVICE_MEMORY) {
        allocated[block.device] += block.size;
        tell(block.device);
    }
    return DONE;
}

/* Unmap what is ours, and forget it. */
static void drop(struct block **link) {
    struct block *block = *link;
    *link = block->next;
    if (block->kind == DEVICE_MEMORY) {
        allocated[block->device] -= block->size;
        tell(block->device);
        munmap(block->address, whole_pages(block->size));
    }
    if (block->kind != REGISTERED_MEMORY)
        munmap(block->store, whole_pages(block->size));
    free(block);
}

static struct block **link_to(const void *address, enum memory kind) {
    struct block **link = &blocks;
    while (*link && ((*link)->address != address || (*link)->kind != kind))
        link = &(*link)->next;
    return link;
}

static enum outcome take_back(void *address, enum memory kind) {
    enum outcome outcome = INVALID;
    pthread_mutex_lock(&gpu_lock);
    struct block *block = *link_to(address, kind);
    if (block) {
        /* Drivers wait for what is under way; nothing is, once the device is lost and its queues are drained. */
        while (block->in_use || (kind == DEVICE_MEMORY && !device_is_idle(block->device)))
            pthread_cond_wait(&gpu_progress, &gpu_lock);
        struct block **link = link_to(address, kind);
        if (*link == block) {
            drop(link);
            outcome = DONE;
        }
    }
    pthread_mutex_unlock(&gpu_lock);
    return outcome;
}

static size_t total_memory(int device) {
    const char *key = gpu_board == BOARD_NVIDIA ? "memory_total" : "vram_total";
    return number(described("%s.%d.%s", gpu_vendor, device, key), 0);
}

static size_t used_by_others(int device) {
    const char *key = gpu_board == BOARD_NVIDIA ? "memory_used" : "vram_used";
    return number(described("%s.%d.%s", gpu_vendor, device, key), 0);
}

void memory_info(int device, size_t *free_bytes, size_t *total_bytes) {
    size_t used = used_by_others(device);
    *total_bytes = total_memory(device);
    pthread_mutex_lock(&gpu_lock);
    used += users_are_told(device) ? users_hold(device) : allocated[device];
    pthread_mutex_unlock(&gpu_lock);
    *free_bytes = used < *total_bytes ? *total_bytes - used : 0;
}

/* Memory for the store, aligned to huge pages: a copy should cost what memory costs, not what its tables cost. */
static char *map_store(size_t size) {
    char *room = mmap(
        NULL, size + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED)
        return NULL;
    char *store = (char *)(((uintptr_t)room + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
    if (store > room)
        munmap(room, (size_t)(store - room));
    if (room + HUGE_PAGE > store)
        munmap(store + size, (size_t)(room + HUGE_PAGE - store));
    madvise(store, size, MADV_HUGEPAGE);
    return store;
}

enum outcome device_allocate(int device, size_t size, void **out) {
    size_t free_bytes, total_bytes, room = whole_pages(size);
    if (size == 0)
        return INVALID;
    memory_info(device, &free_bytes, &total_bytes);
    if (size > free_bytes)
        return NO_MEMORY;
    char *address = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    char *store = map_store(room);
    if (address == MAP_FAILED || !store) {
        if (address != MAP_FAILED)
            munmap(address, room);
        if (store)
            munmap(store, room);
        return NO_MEMORY;
    }
    pthread_mutex_lock(&gpu_lock);
    enum outcome outcome = add((struct block){
        .address = address, .store = store, .size = size, .kind = DEVICE_MEMORY, .device = device});
    pthread_mutex_unlock(&gpu_lock);
    *out = address;
    return outcome;
}

enum outcome device_free(void *address) {
    return address ? take_back(address, DEVICE_MEMORY) : DONE;
}

enum outcome host_allocate(int device, size_t size, unsigned flags, void **out) {
    if (size == 0)
        return INVALID;
    char *address = mmap(NULL, whole_pages(size), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED)
        return NO_MEMORY;
    pthread_mutex_lock(&gpu_lock);
    enum outcome outcome = add((struct block){.address = address,
        .store = address,
        .size = size,
        .kind = PINNED_MEMORY,
        .device = device,
        .flags = flags});
    pthread_mutex_unlock(&gpu_lock);
    *out = address;
    return outcome;
}

enum outcome host_free(void *address) {
    return address ? take_back(address, PINNED_MEMORY) : DONE;
}

static bool is_mapped(const char *address, size_t size) {
    unsigned char residence[1024];
    const char *page = (const char *)((uintptr_t)address & ~(uintptr_t)(PAGE - 1));
    for (size_t left = whole_pages((size_t)(address + size - page)); left > 0;) {
        size_t step = left < sizeof residence * PAGE ? left : sizeof residence * PAGE;
        if (mincore((void *)(uintptr_t)page, step, residence) != 0)
            return false;
        page += step;
        left -= step;
    }
    return true;
}

enum outcome host_register(int device, void *address, size_t size, unsigned flags) {
    bool partly;
    if (!address || size == 0 || !is_mapped(address, size))
        return INVALID;
    pthread_mutex_lock(&gpu_lock);
    enum outcome outcome = ALREADY_REGISTERED;
    if (!block_of(address, size, &partly) && !partly)
        outcome = add((struct block){.address = address,
            .store = address,
            .size = size,
            .kind = REGISTERED_MEMORY,
            .device = device,
            .flags = flags});
    pthread_mutex_unlock(&gpu_lock);
    return outcome;
}

enum outcome host_unregister(void *address) {
    return take_back(address, REGISTERED_MEMORY) == DONE ? DONE : NOT_REGISTERED;
}

void release_device(int device) {
    pthread_mutex_lock(&gpu_lock);
    while (!device_is_idle(device))
        pthread_cond_wait(&gpu_progress, &gpu_lock);
    for (struct block **link = &blocks; *link;)
        if ((*link)->device == device && !(*link)->in_use)
            drop(link);
        else
            link = &(*link)->next;
    pthread_mutex_unlock(&gpu_lock);
}

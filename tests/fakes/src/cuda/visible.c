/* Which devices a client sees, and in which order: CUDA_DEVICE_ORDER, then CUDA_VISIBLE_DEVICES. */
#include "fake_cuda.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int visible[MAX_GPUS];
static int count;

const char *field(int physical, const char *name) {
    return described("%s.%d.%s", gpu_vendor, physical, name);
}

bool parse_address(const char *text, unsigned parts[4]) {
    parts[3] = 0;
    return text && sscanf(text, "%x:%x:%x.%x", &parts[0], &parts[1], &parts[2], &parts[3]) >= 3;
}

static int by_bus(const void *one, const void *other) {
    unsigned left[4] = {0}, right[4] = {0};
    parse_address(field(*(const int *)one, "pci"), left);
    parse_address(field(*(const int *)other, "pci"), right);
    for (int part = 0; part < 4; part++)
        if (left[part] != right[part])
            return left[part] < right[part] ? -1 : 1;
    return *(const int *)one - *(const int *)other;
}

static double speed(int physical) {
    const char *said = field(physical, "speed"), *capability = field(physical, "compute_capability");
    return said ? strtod(said, NULL) : capability ? strtod(capability, NULL) : 0;
}

/* FASTEST_FIRST is a heuristic of the driver; `nvidia.0.speed` orders it, else the compute capability and memory. */
static int by_speed(const void *one, const void *other) {
    int left = *(const int *)one, right = *(const int *)other;
    if (speed(left) != speed(right))
        return speed(left) > speed(right) ? -1 : 1;
    uint64_t mine = number(field(left, "memory_total"), 0), theirs = number(field(right, "memory_total"), 0);
    return mine != theirs ? (mine > theirs ? -1 : 1) : by_bus(one, other);
}

/* The decimal number that a text starts with, or -1. */
static long leading_number(const char *text) {
    char *end;
    long found = strtol(text, &end, 10);
    return end == text ? -1 : found;
}

/* The position of the one device that an entry names: an index, or a UUID or its beginning. -1: none, or several. */
static int named(const char *entry, bool by_uuid, const int *ordered, int available) {
    if (!by_uuid) {
        long index = leading_number(entry);
        return index >= 0 && index < available ? (int)index : -1;
    }
    int found = -1;
    for (int at = 0; at < available; at++) {
        const char *uuid = field(ordered[at], "uuid");
        if (uuid && strncmp(uuid, entry, strlen(entry)) == 0) {
            if (found >= 0)
                return -1;
            found = at;
        }
    }
    return found;
}

/* The first bad entry ends the list; a device that comes twice empties it. Returns how many are left of `ordered`. */
static int mask(const char *list, int *ordered, int available) {
    char copy[1024], *save = NULL;
    int chosen[MAX_GPUS], chosen_count = 0;
    bool by_uuid = strncmp(list, "GPU-", 4) == 0;
    copy_text(copy, sizeof copy, list);
    for (char *entry = strtok_r(copy, ",", &save); entry; entry = strtok_r(NULL, ",", &save)) {
        int at = by_uuid == (strncmp(entry, "GPU-", 4) == 0) ? named(entry, by_uuid, ordered, available) : -1;
        if (at < 0)
            break;
        for (int before = 0; before < chosen_count; before++)
            if (chosen[before] == ordered[at])
                return 0;
        chosen[chosen_count++] = ordered[at];
    }
    memcpy(ordered, chosen, (size_t)chosen_count * sizeof *chosen);
    return chosen_count;
}

void read_visible_devices(void) {
    const char *order = getenv("CUDA_DEVICE_ORDER"), *list = getenv("CUDA_VISIBLE_DEVICES");
    uint64_t described_count = number(described("%s.count", gpu_vendor), 0);
    count = described_count < MAX_GPUS ? (int)described_count : MAX_GPUS;
    for (int at = 0; at < count; at++)
        visible[at] = at;
    qsort(visible, (size_t)count, sizeof *visible, order && strcmp(order, "PCI_BUS_ID") == 0 ? by_bus : by_speed);
    if (list)
        count = mask(list, visible, count);
}

int visible_count(void) {
    return count;
}

int visible_device(CUdevice device) {
    return device >= 0 && device < count ? visible[device] : -1;
}

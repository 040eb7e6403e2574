/* Which devices a client sees, and in which order: CUDA_DEVICE_ORDER, then CUDA_VISIBLE_DEVICES. */
#define _GNU_SOURCE
#include "fake_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ENTRIES = 64 };

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

/* The position of the one device whose UUID begins so, or -1. */
static int position_of(const char *uuid, const int *ordered, int available) {
    int found = -1;
    for (int at = 0; at < available; at++) {
        const char *whole = field(ordered[at], "uuid");
        if (whole && strncmp(whole, uuid, strlen(uuid)) == 0) {
            if (found >= 0)
                return -1;
            found = at;
        }
    }
    return found;
}

/* Split a list. Returns the number of entries. */
static int split(char *list, char **entries, int room) {
    int found = 0;
    while (list && found < room)
        entries[found++] = strsep(&list, ",");
    return found;
}

/* Numbers up to the first entry that is none; the first that no device has ends the list. One that comes twice empties
 * it, wherever it stands. */
static int by_number(char **entries, int entry_count, int *positions, int available) {
    long numbers[MAX_ENTRIES];
    int read = 0, good = 0;
    for (; read < entry_count; read++) {
        numbers[read] = leading_number(entries[read]);
        for (int before = 0; before < read; before++)
            if (numbers[before] == numbers[read])
                return 0;
        if (numbers[read] < 0)
            break;
    }
    for (; good < read && numbers[good] < available; good++)
        positions[good] = (int)numbers[good];
    return good;
}

/* The same for UUIDs and beginnings of UUIDs. */
static int by_name(char **entries, int entry_count, int *positions, int available, const int *ordered) {
    int read = 0, good = 0;
    for (; read < entry_count; read++) {
        for (int before = 0; before < read; before++)
            if (strcmp(entries[before], entries[read]) == 0)
                return 0;
        if (strncmp(entries[read], "GPU-", 4) != 0)
            break;
    }
    for (; good < read && (positions[good] = position_of(entries[good], ordered, available)) >= 0; good++)
        for (int before = 0; before < good; before++)
            if (positions[before] == positions[good])
                return 0;
    return good;
}

/* Returns how many are left of `ordered`. */
static int mask(const char *list, int *ordered, int available) {
    char copy[1024], *entries[MAX_ENTRIES];
    int positions[MAX_ENTRIES], chosen[MAX_GPUS];
    copy_text(copy, sizeof copy, list);
    int entry_count = split(copy, entries, MAX_ENTRIES);
    int left = strncmp(list, "GPU-", 4) == 0 ? by_name(entries, entry_count, positions, available, ordered)
                                             : by_number(entries, entry_count, positions, available);
    for (int at = 0; at < left; at++)
        chosen[at] = ordered[positions[at]];
    memcpy(ordered, chosen, (size_t)left * sizeof *chosen);
    return left;
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

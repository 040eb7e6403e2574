/* Which devices a client sees: ROCR_VISIBLE_DEVICES, and of those that it leaves HIP_VISIBLE_DEVICES or, in its absence,
 * CUDA_VISIBLE_DEVICES. The rules are those of ROCR's amd_filter_device.cpp and clr's rocdevice.cpp on Linux. */
#define _GNU_SOURCE
#include "fake_hip.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static int visible[MAX_GPUS];
static int count;

const char *field(int physical, const char *name) {
    return described("%s.%d.%s", gpu_vendor, physical, name);
}

/* "GPU-" and the 16 digits of the unique id; every device without one is "GPU-XX". */
static void name_of(int physical, char *out, size_t size) {
    const char *uuid = field(physical, "uuid");
    copy_text(out, size, uuid && strlen(uuid) == 20 ? uuid : "GPU-XX");
    for (char *at = out + 4; strcmp(out, "GPU-XX") != 0 && *at; at++)
        *at = (char)tolower((unsigned char)*at);
}

static int rocr_index(const char *entry, int available) {
    char *end;
    long index = strtol(entry, &end, 0); /* base 0: 010 is 8 */
    return end != entry && !*end && index >= 0 && index < available ? (int)index : -1;
}

static int rocr_uuid(const char *entry, int available) {
    int found = -1;
    char name[32];
    size_t length = strlen(entry);
    if (length < 5 || length > 20)
        return -1;
    for (int at = 0; at < available; at++) {
        name_of(visible[at], name, sizeof name);
        if (strcmp(name, "GPU-XX") != 0 && strncasecmp(name, entry, length) == 0) {
            if (found >= 0)
                return -1;
            found = at;
        }
    }
    return found;
}

static int rocr(const char *entry, int available) {
    char copy[128];
    while (isspace((unsigned char)*entry))
        entry++;
    copy_text(copy, sizeof copy, entry);
    for (size_t end = strlen(copy); end > 0 && isspace((unsigned char)copy[end - 1]); end--)
        copy[end - 1] = '\0';
    if (!*copy) {
        fprintf(stderr, "terminate called after throwing an instance of 'std::out_of_range'\n");
        abort(); /* string::at of an empty entry */
    }
    return toupper((unsigned char)*copy) == 'G' ? rocr_uuid(copy, available) : rocr_index(copy, available);
}

/* An index counts only as C would print it; a name may stand anywhere in a device's, and the first that has it is it. */
static int hip(const char *entry, int available) {
    char name[32], printed[32];
    for (int at = 0; at < available && strstr(entry, "GPU-"); at++) {
        name_of(visible[at], name, sizeof name);
        if (strstr(name, entry))
            return at;
    }
    long index = strtol(entry, NULL, 10);
    snprintf(printed, sizeof printed, "%ld", index);
    return strcmp(printed, entry) == 0 && index >= 0 && index < available ? (int)index : -1;
}

/* The first bad entry ends the list. One that comes again ends ROCR's, and is skipped in HIP's. */
static void mask(const char *list, int (*named)(const char *, int), bool again_ends) {
    char copy[1024], *rest = copy;
    int chosen[MAX_GPUS], chosen_count = 0, limit = again_ends ? count : MAX_GPUS;
    copy_text(copy, sizeof copy, list);
    size_t length = strlen(copy);
    if (length > 0 && copy[length - 1] == ',')
        copy[length - 1] = '\0'; /* nothing comes after the last separator */
    for (int read = 0; rest && *list && read < limit; read++) {
        int at = named(strsep(&rest, ","), count);
        bool again = false;
        if (at < 0)
            break;
        for (int before = 0; before < chosen_count; before++)
            again |= chosen[before] == visible[at];
        if (again && again_ends)
            break;
        if (!again)
            chosen[chosen_count++] = visible[at];
    }
    memcpy(visible, chosen, (size_t)chosen_count * sizeof *chosen);
    count = chosen_count;
}

void read_visible_devices(void) {
    const char *first = getenv("ROCR_VISIBLE_DEVICES"), *second = getenv("HIP_VISIBLE_DEVICES");
    uint64_t described_count = number(described("%s.count", gpu_vendor), 0);
    count = described_count < MAX_GPUS ? (int)described_count : MAX_GPUS;
    for (int at = 0; at < count; at++)
        visible[at] = at;
    if (first)
        mask(first, rocr, true);
    if (!second || !*second)
        second = getenv("CUDA_VISIBLE_DEVICES"); /* an empty variable counts as an absent one */
    if (second && *second)
        mask(second, hip, false);
}

int visible_count(void) {
    return count;
}

int visible_device(int device) {
    return device >= 0 && device < count ? visible[device] : -1;
}

int number_of_device(int physical) {
    for (int device = 0; device < count; device++)
        if (visible[device] == physical)
            return device;
    return -1;
}

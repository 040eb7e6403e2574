/* What the driver knows of this process, told to NVML's and amdsmi's fakes: where the description has a folder of users
 * (`nvidia.0.users`, description.h), this process has a file in it while it has a context, with the bytes of its memory.
 * Nothing removes the file when the process dies: tests/fakes/driver.py does, as a driver does. */
#define _GNU_SOURCE
#include "gpu.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char *folder_of(int device) {
    return described("%s.%d.users", gpu_vendor, device);
}

void user_has(int device, size_t bytes) {
    const char *folder = folder_of(device);
    char path[512], written[512];
    if (!folder)
        return;
    /* Renamed into place: a reader never sees half of it. */
    snprintf(path, sizeof path, "%s/%d", folder, (int)getpid());
    snprintf(written, sizeof written, "%s/.%d.%d", folder, (int)getpid(), (int)gettid());
    int fd = open(written, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        return;
    dprintf(fd, "%zu\n", bytes + (size_t)number(described("%s.%d.context_bytes", gpu_vendor, device), 0));
    close(fd);
    rename(written, path);
}

void user_is_gone(int device) {
    const char *folder = folder_of(device);
    char path[512];
    if (!folder)
        return;
    snprintf(path, sizeof path, "%s/%d", folder, (int)getpid());
    unlink(path);
}

size_t users_hold(int device) {
    return (size_t)users_memory(folder_of(device));
}

bool users_are_told(int device) {
    return folder_of(device) != NULL;
}

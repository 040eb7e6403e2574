#define _GNU_SOURCE
#include "description.h"

#include "board.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct line {
    char *key;
    char *value;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct line *lines;
static size_t line_count;
static struct stat loaded;
static char loaded_path[512];
static uint64_t loaded_generation;
static _Atomic uint64_t version;
static _Atomic bool any_faults, log_all;

static char *trim(char *text) {
    while (isspace((unsigned char)*text))
        text++;
    char *end = text + strlen(text);
    while (end > text && isspace((unsigned char)end[-1]))
        end--;
    *end = '\0';
    return text;
}

static char *read_file(const char *path, struct stat *state) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, state) != 0) {
        if (fd >= 0)
            close(fd);
        return NULL;
    }
    size_t size = (size_t)state->st_size, have = 0;
    char *text = malloc(size + 1);
    while (text && have < size) {
        ssize_t got = read(fd, text + have, size - have);
        if (got <= 0)
            break;
        have += (size_t)got;
    }
    close(fd);
    if (text)
        text[have] = '\0';
    return text;
}

static bool is_loaded(const char *path, bool shared, uint64_t generation) {
    if (!lines || strcmp(path, loaded_path) != 0)
        return false;
    if (shared)
        return generation == loaded_generation;
    struct stat now;
    if (stat(path, &now) != 0)
        return 1; /* gone: keep the last description */
    return now.st_ino == loaded.st_ino && now.st_size == loaded.st_size
        && now.st_mtim.tv_sec == loaded.st_mtim.tv_sec && now.st_mtim.tv_nsec == loaded.st_mtim.tv_nsec;
}

/* The caller holds the lock. An old text is never freed: values of it may be in use. */
static void read_lines(char *text) {
    size_t room = 1;
    for (const char *at = text; *at; at++)
        room += *at == '\n';
    lines = calloc(room, sizeof *lines);
    line_count = 0;
    bool faults = false, all = false;
    for (char *save = NULL, *line = strtok_r(text, "\n", &save); line && lines; line = strtok_r(NULL, "\n", &save)) {
        char *equals = strchr(line, '=');
        if (*trim(line) == '#' || !equals)
            continue;
        *equals = '\0';
        lines[line_count] = (struct line){trim(line), trim(equals + 1)};
        faults |= strstr(lines[line_count].key, ".fault.") != NULL;
        if (strcmp(lines[line_count].key, "log") == 0)
            all = strcmp(lines[line_count].value, "all") == 0;
        line_count++;
    }
    any_faults = faults;
    log_all = all;
    version++;
}

/* The caller holds the lock. */
static void load(void) {
    bool shared;
    const char *path = getenv("GPUCOEXIST_FAKE_MACHINE");
    uint64_t generation = board(&shared)->generation; /* before the file, which is in place when the word changes */
    if (!path || is_loaded(path, shared, generation))
        return;
    char *text = read_file(path, &loaded);
    if (!text)
        return;
    read_lines(text);
    loaded_generation = generation;
    copy_text(loaded_path, sizeof loaded_path, path);
}

uint64_t description_version(void) {
    static _Atomic uint64_t last_generation;
    static struct board *_Atomic last_board;
    bool shared;
    struct board *now = board(&shared);
    uint64_t generation = now->generation;
    if (!shared || last_board != now || last_generation != generation || version == 0) {
        pthread_mutex_lock(&lock);
        load();
        pthread_mutex_unlock(&lock);
        last_board = now;
        last_generation = generation;
    }
    return version;
}

const char *described(const char *format, ...) {
    char key[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(key, sizeof key, format, arguments);
    va_end(arguments);
    const char *value = NULL;
    pthread_mutex_lock(&lock);
    load();
    for (size_t at = line_count; at-- > 0 && !value;)
        if (strcmp(lines[at].key, key) == 0)
            value = lines[at].value;
    pthread_mutex_unlock(&lock);
    return value;
}

uint64_t number(const char *text, uint64_t otherwise) {
    return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

void copy_text(char *target, size_t size, const char *text) {
    if (size > 0)
        snprintf(target, size, "%s", text ? text : "");
}

const char *next_process(const char *list, uint64_t *pid, uint64_t *bytes) {
    unsigned long long first, second;
    int length = 0;
    if (!list || sscanf(list, " %llu:%llu%n", &first, &second, &length) < 2)
        return NULL;
    *pid = first;
    *bytes = second;
    return list + length;
}

/* Whether a process runs: not gone, and no zombie, which has closed everything. */
static int is_alive(uint64_t pid) {
    char path[64], text[512], state = 'Z';
    snprintf(path, sizeof path, "/proc/%llu/stat", (unsigned long long)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t size = read(fd, text, sizeof text - 1);
    close(fd);
    if (size <= 0)
        return 0;
    text[size] = '\0';
    const char *end = strrchr(text, ')');
    return end && sscanf(end + 1, " %c", &state) == 1 && state != 'Z' && state != 'X';
}

static int user_of(const char *folder, const char *name, uint64_t *pid, uint64_t *bytes) {
    char path[512], *end;
    struct stat state;
    *pid = strtoull(name, &end, 10);
    if (!isdigit((unsigned char)*name) || *end)
        return 0;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    char *text = read_file(path, &state);
    if (!text)
        return 0; /* removed while we looked */
    *bytes = strtoull(text, NULL, 0);
    free(text);
    return 1;
}

uint64_t users_memory(const char *folder) {
    uint64_t sum = 0, pid, bytes;
    DIR *listing = folder ? opendir(folder) : NULL;
    for (struct dirent *entry; listing && (entry = readdir(listing));)
        if (user_of(folder, entry->d_name, &pid, &bytes))
            sum += bytes;
    if (listing)
        closedir(listing);
    return sum;
}

size_t next_user(const char *folder, size_t from, uint64_t *pid, uint64_t *bytes) {
    size_t at = 0, found = 0;
    DIR *listing = folder ? opendir(folder) : NULL;
    for (struct dirent *entry; listing && !found && (entry = readdir(listing));)
        if (user_of(folder, entry->d_name, pid, bytes) && ++at > from && is_alive(*pid))
            found = at;
    if (listing)
        closedir(listing);
    return found;
}

void log_event(const char *event, int device) {
    const char *path = getenv("GPUCOEXIST_FAKE_LOG");
    int fd = path ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666) : -1;
    if (fd < 0)
        return;
    dprintf(fd, "%d %s %d\n", (int)getpid(), event, device);
    close(fd);
}

void sleep_through(double seconds) {
    struct timespec left = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        continue;
}

_Noreturn void die_as(const char *action) {
    if (strcmp(action, "kill") == 0)
        kill(getpid(), SIGKILL);
    if (strcmp(action, "segv") == 0)
        *(volatile int *)8 = 0;
    dprintf(STDERR_FILENO, "fake driver: there is no fault \"%s\"\n", action);
    abort();
}

static int act(const char *fault) {
    struct ordered order = read_order(fault);
    if (!order_reached(&order) || !order_strikes(&order))
        return 0;
    fault = order.action;
    char *copy = strdup(fault), *save = NULL;
    int status = 0;
    for (char *action = strtok_r(copy, ";", &save); action; action = strtok_r(NULL, ";", &save)) {
        action = trim(action);
        if (strncmp(action, "hang ", 5) == 0)
            sleep_through(strtod(action + 5, NULL));
        else if (strncmp(action, "print ", 6) == 0)
            dprintf(STDOUT_FILENO, "%s\n", action + 6);
        else if (strncmp(action, "status ", 7) == 0)
            status = (int)strtol(action + 7, NULL, 0);
        else
            die_as(action);
    }
    free(copy);
    return status;
}

static int faults_of(const char *vendor, int device, const char *function) {
    description_version();
    if (!any_faults)
        return 0;
    const char *fault = NULL;
    if (device >= 0) {
        fault = described("%s.%d.fault.%s", vendor, device, function);
        if (!fault)
            fault = described("%s.%d.fault.*", vendor, device);
    }
    if (!fault)
        fault = described("%s.fault.%s", vendor, function);
    return fault ? act(fault) : 0;
}

int enter(const char *vendor, int device, const char *function) {
    log_event(function, device);
    return faults_of(vendor, device, function);
}

int enter_often(const char *vendor, int device, const char *function) {
    description_version();
    if (log_all)
        log_event(function, device);
    return faults_of(vendor, device, function);
}

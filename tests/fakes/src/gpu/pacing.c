/* How fast engines copy, and what the description says of them. A copy ends at an absolute deadline: the engine's earlier
 * work, on the board so that processes share it, and then this copy's bytes at its rate. Waking up late costs the next
 * copy nothing. */
#include "gpu.h"

#include <stdlib.h>
#include <time.h>

struct settings {
    uint64_t version;
    double gbps;
    const char *fault;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct settings kept[MAX_GPUS][ENGINES];
static _Atomic int lost[MAX_GPUS];
static _Atomic uint64_t lost_version[MAX_GPUS];

static const char *const NAMES[ENGINE_PEER] = {"h2d", "d2h", "d2d"};

static void read_settings(int device, int engine, struct settings *out) {
    const char *gbps;
    if (engine < ENGINE_PEER) {
        gbps = described("%s.%d.%s_gbps", gpu_vendor, device, NAMES[engine]);
        out->fault = described("%s.%d.copy.%s", gpu_vendor, device, NAMES[engine]);
    } else {
        int peer = engine - ENGINE_PEER;
        gbps = described("%s.%d.peer_gbps.%d", gpu_vendor, device, peer);
        if (!gbps)
            gbps = described("%s.%d.peer_gbps", gpu_vendor, device);
        out->fault = described("%s.%d.copy.peer.%d", gpu_vendor, device, peer);
    }
    out->gbps = gbps ? strtod(gbps, NULL) : 0;
}

static struct settings settings_of(int device, int engine) {
    uint64_t version = description_version();
    pthread_mutex_lock(&lock);
    struct settings *settings = &kept[device][engine];
    if (settings->version != version) {
        read_settings(device, engine, settings);
        settings->version = version;
    }
    struct settings found = *settings;
    pthread_mutex_unlock(&lock);
    return found;
}

double engine_gbps(int device, int engine) {
    return settings_of(device, engine).gbps;
}

const char *engine_fault(int device, int engine) {
    return settings_of(device, engine).fault;
}

static struct engine *engine_on_board(int device, int engine) {
    return &board(NULL)->engines[gpu_board][device][engine];
}

uint64_t engine_reserve(int device, int engine, uint64_t earliest_ns, size_t size) {
    double gbps = engine_gbps(device, engine);
    if (gbps <= 0)
        return earliest_ns;
    _Atomic uint64_t *busy_until_ns = &engine_on_board(device, engine)->busy_until_ns;
    uint64_t lasts_ns = (uint64_t)((double)size / gbps), busy = *busy_until_ns, done;
    do {
        done = (busy > earliest_ns ? busy : earliest_ns) + lasts_ns;
    } while (!atomic_compare_exchange_weak(busy_until_ns, &busy, done));
    return done;
}

void engine_count(int device, int engine, size_t size) {
    struct engine *at = engine_on_board(device, engine);
    at->copies++;
    at->bytes += size;
}

/* A device that was lost stays lost for this process, whatever the description says later. */
int device_lost(int device) {
    uint64_t version = description_version();
    if (lost_version[device] != version) {
        int said = (int)number(described("%s.%d.lost", gpu_vendor, device), 0);
        if (said)
            lost[device] = said;
        lost_version[device] = version;
    }
    return lost[device];
}

enum { LOOK_NS = 10 * 1000 * 1000 };

/* Looks up now and then: who waits for a long copy hears of a lost device before the copy would have ended. */
void sleep_until(int device, uint64_t until_ns) {
    for (uint64_t now_ns = gpu_now_ns(); now_ns < until_ns && !device_lost(device); now_ns = gpu_now_ns()) {
        uint64_t next_ns = until_ns - now_ns < LOOK_NS ? until_ns : now_ns + LOOK_NS;
        struct timespec when = {(time_t)(next_ns / 1000000000u), (long)(next_ns % 1000000000u)};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &when, NULL);
    }
}

void lose_device(int device, int status) {
    lost[device] = status;
    pthread_mutex_lock(&gpu_lock);
    pthread_cond_broadcast(&gpu_progress);
    pthread_mutex_unlock(&gpu_lock);
}

/* What goes wrong with a copy when a test has ordered it: `nvidia.0.copy.h2d = ORDER ACTION` (the order: board.h).
 *
 *     flip OFFSET [MASK]     change bits of one byte; an offset below 0 counts from the end
 *     drop                   write nothing
 *     stale                  write what the source held when it was last copied
 *     torn [PAGE]            leave one page of 4 KiB unwritten, the last one unless told otherwise
 *     shift BYTES            write everything BYTES later (earlier, below 0), and nothing past either end
 *     zeros [OFFSET SIZE]    write zeros, in a part or everywhere
 *     noise                  write what nobody ever wrote
 *     overrun BYTES          write BYTES more than asked
 *     hang [SECONDS]         take that long, or until the order is withdrawn
 *     lost STATUS            lose the device: all calls with it return STATUS from now on
 *     kill, segv             end the client's process
 *
 * An order waits for a copy that it fits: an offset lies in it, a stale source has changed, an overrun stays within the
 * allocation. */
#define _GNU_SOURCE
#include "gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE = 4096 };

struct action {
    char name[16];
    int given; /* numbers */
    long long first, second;
    double seconds;
};

/* What sources held when they were copied last, kept while an order for stale data stands. */
struct memory_of {
    struct memory_of *next;
    const char *source;
    size_t size;
    char *bytes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct memory_of *remembered;

static struct action parse(const char *text) {
    struct action action = {.given = 0};
    char first[32], second[32];
    int got = sscanf(text, "%15s %31s %31s", action.name, first, second);
    action.given = got - 1;
    action.first = got > 1 ? strtoll(first, NULL, 0) : 0;
    action.seconds = got > 1 ? strtod(first, NULL) : 0;
    action.second = got > 2 ? strtoll(second, NULL, 0) : 0;
    return action;
}

static bool is(const struct action *action, const char *name) {
    return strcmp(action->name, name) == 0;
}

static struct memory_of *memory_of(const struct copy *copy) {
    struct memory_of *at = remembered;
    while (at && (at->source != copy->source || at->size != copy->size))
        at = at->next;
    return at;
}

static void remember(const struct copy *copy) {
    struct memory_of *memory = memory_of(copy);
    if (!memory && (memory = malloc(sizeof *memory))) {
        *memory = (struct memory_of){remembered, copy->source, copy->size, malloc(copy->size)};
        remembered = memory;
    }
    if (memory && memory->bytes)
        memcpy(memory->bytes, copy->source, copy->size);
}

/* An offset as an index in Python; -1 when it lies outside. */
static long long within(long long offset, size_t size) {
    if (offset < 0)
        offset += (long long)size;
    return offset >= 0 && offset < (long long)size ? offset : -1;
}

static long long torn_page(const struct action *action, size_t size) {
    return within(action->given > 0 ? action->first : -1, (size + PAGE - 1) / PAGE);
}

static bool fits(const struct action *action, const struct copy *copy) {
    if (is(action, "flip"))
        return within(action->first, copy->size) >= 0;
    if (is(action, "torn"))
        return copy->size > PAGE && torn_page(action, copy->size) >= 0;
    if (is(action, "shift"))
        return action->first != 0 && (size_t)llabs(action->first) < copy->size;
    if (is(action, "zeros") && action->given == 2)
        return within(action->first, copy->size) >= 0
            && action->second <= (long long)copy->size - within(action->first, copy->size);
    if (is(action, "overrun"))
        return copy->to
            && action->first <= (copy->to->store + copy->to->size) - (copy->target + copy->size);
    if (is(action, "stale")) {
        struct memory_of *memory = memory_of(copy);
        return memory && memory->bytes && memcmp(memory->bytes, copy->source, copy->size) != 0;
    }
    return true;
}

static void plain(const struct copy *copy) {
    memmove(copy->target, copy->source, copy->size);
}

static void write_torn(const struct copy *copy, size_t page) {
    size_t before = page * PAGE, after = before + PAGE;
    memmove(copy->target, copy->source, before);
    if (after < copy->size)
        memmove(copy->target + after, copy->source + after, copy->size - after);
}

static void write_shifted(const struct copy *copy, long long by) {
    size_t distance = (size_t)llabs(by);
    if (by > 0)
        memmove(copy->target + distance, copy->source, copy->size - distance);
    else
        memmove(copy->target, copy->source + distance, copy->size - distance);
}

static void write_zeros(const struct copy *copy, const struct action *action) {
    plain(copy);
    if (action->given == 2)
        memset(copy->target + within(action->first, copy->size), 0, (size_t)action->second);
    else
        memset(copy->target, 0, copy->size);
}

static void write_noise(const struct copy *copy) {
    uint64_t state = gpu_now_ns() | 1;
    for (size_t at = 0; at < copy->size; at++) {
        state ^= state << 13; /* xorshift64, G. Marsaglia 2003 */
        state ^= state >> 7;
        state ^= state << 17;
        copy->target[at] = (char)(state >> 32);
    }
}

/* What follows the source, as a copy that is too long would write; 0xA5 where nothing does. */
static void write_overrun(const struct copy *copy, size_t more) {
    size_t follows = 0;
    if (copy->from)
        follows = (size_t)((copy->from->store + copy->from->size) - (copy->source + copy->size));
    follows = follows < more ? follows : more;
    plain(copy);
    memmove(copy->target + copy->size, copy->source + copy->size, follows);
    memset(copy->target + copy->size + follows, 0xA5, more - follows);
}

static void hang(int device, int engine, const char *fault) {
    const char *now;
    while ((now = engine_fault(device, engine)) && strcmp(now, fault) == 0 && !device_lost(device))
        sleep_through(0.005);
}

static void strike(const struct action *action, const struct copy *copy, int device, int engine, const char *fault) {
    if (is(action, "drop"))
        return;
    if (is(action, "torn")) {
        write_torn(copy, (size_t)torn_page(action, copy->size));
    } else if (is(action, "shift")) {
        write_shifted(copy, action->first);
    } else if (is(action, "zeros")) {
        write_zeros(copy, action);
    } else if (is(action, "noise")) {
        write_noise(copy);
    } else if (is(action, "overrun")) {
        write_overrun(copy, (size_t)action->first);
    } else if (is(action, "stale")) {
        memcpy(copy->target, memory_of(copy)->bytes, copy->size);
    } else if (is(action, "lost")) {
        lose_device(device, (int)action->first);
    } else if (is(action, "flip")) {
        plain(copy);
        copy->target[within(action->first, copy->size)] ^= (char)(action->given > 1 ? action->second : 1);
    } else if (is(action, "hang")) {
        if (action->given > 0)
            sleep_through(action->seconds);
        else
            hang(device, engine, fault);
        plain(copy);
    } else {
        die_as(action->name);
    }
}

void move_faulty(const struct copy *copy, int device, int engine, const char *fault) {
    struct ordered order = read_order(fault);
    struct action action = parse(order.action);
    bool is_stale = is(&action, "stale");
    if (is_stale)
        pthread_mutex_lock(&lock);
    if (order_reached(&order) && fits(&action, copy) && order_strikes(&order))
        strike(&action, copy, device, engine, fault);
    else
        plain(copy);
    if (is_stale) {
        remember(copy);
        pthread_mutex_unlock(&lock);
    }
}

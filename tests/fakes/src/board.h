/* The board: a small file beside the description, mapped by every client and by the test that describes the machine.
 *
 * It says that the description has changed (one word to compare instead of a stat() per call), counts how often an
 * ordered fault was reached and struck, keeps until when each copy engine is busy (processes share a link), and counts
 * what was copied. tests/fakes/board.py writes and reads the same layout. */
#ifndef BOARD_H
#define BOARD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { MAX_GPUS = 16, MAX_ORDERS = 16384 };

/* The copy engines of a device; to another device, ENGINE_PEER + its index. */
enum { ENGINE_H2D, ENGINE_D2H, ENGINE_D2D, ENGINE_PEER, ENGINES = ENGINE_PEER + MAX_GPUS };

enum { BOARD_NVIDIA, BOARD_AMD, BOARD_VENDORS };

struct engine {
    _Atomic uint64_t busy_until_ns; /* CLOCK_MONOTONIC */
    _Atomic uint64_t copies;
    _Atomic uint64_t bytes;
};

struct order {
    _Atomic uint64_t seen;
    _Atomic uint64_t struck;
};

struct board {
    _Atomic uint64_t generation;
    uint64_t reserved[7];
    struct order orders[MAX_ORDERS];
    struct engine engines[BOARD_VENDORS][MAX_GPUS][ENGINES];
};

/* The board of the machine that is described now; one of this process alone where there is no file. `*shared` says
 * which. Never NULL. */
struct board *board(bool *shared);

/* An ordered fault: "#NUMBER FROM ACTION" strikes once, at the first occasion from the FROM-th on that it fits;
 * "#NUMBER FROM+ ACTION" at each of them. A text without "#" strikes each time and is not counted. */
struct ordered {
    unsigned number;
    uint64_t from;
    bool each;
    const char *action;
};

struct ordered read_order(const char *text);

/* Count one occasion. Whether the fault may strike at it. */
bool order_reached(const struct ordered *order);

/* Strike. False where another thread or process was first. */
bool order_strikes(const struct ordered *order);

#endif

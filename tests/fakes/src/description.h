/* The machine that the fake driver libraries stand for, and the faults that a test injects.
 *
 * The file named by GPUCOEXIST_FAKE_MACHINE holds `key = value` lines. A test can change it while a client runs: it is
 * read again when the word on the board has changed (board.h), without a board when the file has, which costs a stat()
 * per call. Of equal keys the last one counts.
 *
 *     nvidia.count = 2                             how many devices the library shows
 *     nvidia.0.name = NVIDIA GeForce RTX 4090      a field of a device; a missing one is "not supported"
 *     nvidia.fault.nvmlInitWithFlags = hang 60     a fault of a function; of one device: nvidia.1.fault.FUNCTION
 *     nvidia.1.fault.* = status 15                 a fault of all functions of a device
 *
 * A fault is a list of actions, separated by ";", done in order:
 *
 *     hang SECONDS   sleep          print TEXT   write a line to stdout, past the client's buffers
 *     segv           crash          kill         die of SIGKILL
 *     status CODE    return CODE
 *
 * An order in front of it ("#7 3 kill") says at which call, and has it counted: see board.h.
 *
 * Calls are appended to the file named by GPUCOEXIST_FAKE_LOG as "PID FUNCTION DEVICE"; device -1 is the library. Those
 * that a client makes for every copy are left out unless the description says `log = all`.
 */
#ifndef DESCRIPTION_H
#define DESCRIPTION_H

#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))
#define PRINTF(at) __attribute__((format(printf, at, at + 1)))

enum { LIBRARY = -1 };

/* The value of a key, or NULL. It stays valid for the life of the process. */
const char *described(const char *format, ...) PRINTF(1);

/* A number in C notation, or `otherwise` when there is no text. */
uint64_t number(const char *text, uint64_t otherwise);

/* Copy a text, cut to fit, always terminated. NULL counts as empty. */
void copy_text(char *target, size_t size, const char *text);

/* Take the next "PID:BYTES" of a list of processes. Returns the rest of the list, NULL at its end. */
const char *next_process(const char *list, uint64_t *pid, uint64_t *bytes);

/* The memory that the processes of a folder of users hold, in bytes; 0 without a folder.
 *
 * `nvidia.0.users = FOLDER` names a folder with a file for each process that has memory of the device: its name is the
 * PID, its text the bytes. A process that died is listed no more, and its memory is in use until somebody removes the
 * file: tests/fakes/driver.py does, as a driver does when it has torn everything down. */
uint64_t users_memory(const char *folder);

/* Take the living process after the first `from` ones of a folder of users. Returns where to go on, 0 at the end. */
size_t next_user(const char *folder, size_t from, uint64_t *pid, uint64_t *bytes);

/* Enter a function: log the call and act on the faults that stand for it. Returns the status to return, 0 for none. */
int enter(const char *vendor, int device, const char *function);

/* The same for a function that is called for every copy. */
int enter_often(const char *vendor, int device, const char *function);

/* Append a line to the log that is no call: "nvidia.context", say. */
void log_event(const char *event, int device);

/* A number that is another one after the description has changed. */
uint64_t description_version(void);

/* Sleep, whatever signals come. */
void sleep_through(double seconds);

/* Die as an action says: "kill", "segv", or with a message that a test has made a mistake. */
_Noreturn void die_as(const char *action);

#endif

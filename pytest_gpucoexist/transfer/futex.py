"""A counter in shared memory that one process raises and another waits for: by futex, or by eventfd.

A futex needs nothing but the memory and takes 4 to 8 µs for a round trip; an eventfd takes 20 but can be polled
together with other descriptors, and both ends must have got the descriptor. The word has one writer.

On machines that order stores loosely, what was written before a post is seen after it because the writer has gone
through a lock (the interpreter's, the driver's) in between, and the wake-up through the kernel's.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import math
import os
import select
from typing import Protocol

from pytest_gpucoexist.transfer.syscalls import prepared

__all__ = ["EventCounter", "FutexCounter", "SharedCounter"]

# linux/futex.h: FUTEX_WAIT 0, FUTEX_WAKE 1; without FUTEX_PRIVATE_FLAG, because the word is another process's, too.
_WAIT, _WAKE = 0, 1
_EVERYBODY = 0x7FFFFFFF


class SharedCounter(Protocol):
    """A 32-bit counter of one writer and any number of readers."""

    @property
    def value(self) -> int:
        """The counter now."""

    def post(self, value: int) -> None:
        """Set the counter and wake who waits for a change."""

    def wake(self) -> None:
        """Wake who waits without a change, so that they look around."""

    def wait(self, old: int, timeout_s: float) -> int:
        """Return the counter once it is not `old`, or as it is when the time is over or somebody has woken it."""


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class FutexCounter:
    """A counter at an address that is a multiple of 4. Raises OSError ENOSYS where there are no futexes."""

    def __init__(self, address: int) -> None:
        if address % 4:
            raise ValueError(f"a futex at {address:#x}: it must be a multiple of 4")
        self._address = address
        self._word = ctypes.c_uint32.from_address(address)
        word, time_type = ctypes.c_void_p, ctypes.POINTER(_Timespec)
        types = (word, ctypes.c_int, ctypes.c_uint32, time_type, word, ctypes.c_uint32)
        self._number, self._call = prepared("futex", *types)

    @property
    def value(self) -> int:
        """The counter now."""
        return self._word.value

    def post(self, value: int) -> None:
        """Set the counter and wake everybody who waits."""
        self._word.value = value
        self.wake()

    def wake(self) -> None:
        """Wake everybody who waits, without a change."""
        self._call(self._number, self._address, _WAKE, _EVERYBODY, None, None, 0)

    def wait(self, old: int, timeout_s: float) -> int:
        """Return the counter once it is not `old`, or as it is when the time is over or somebody else woke it."""
        value = self._word.value
        if value != old or timeout_s <= 0:
            return value
        seconds = int(timeout_s)
        left = _Timespec(seconds, int((timeout_s - seconds) * 1e9))
        if self._call(self._number, self._address, _WAIT, old, ctypes.byref(left), None, 0) < 0:
            code = ctypes.get_errno()
            # EAGAIN: it changed before the kernel looked. EINTR: a signal, whose handler has run by now.
            if code not in {errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT}:
                raise OSError(code, f"futex: {os.strerror(code)}")
        return self._word.value


class EventCounter:
    """A counter at an address whose changes an eventfd tells; one process waits, which has the descriptor for itself.

    The descriptor is the caller's, who closes it.
    """

    def __init__(self, address: int, descriptor: int) -> None:
        self._word = ctypes.c_uint32.from_address(address)
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)
        os.set_blocking(descriptor, False)

    @property
    def value(self) -> int:
        """The counter now."""
        return self._word.value

    def post(self, value: int) -> None:
        """Set the counter and wake the reader."""
        self._word.value = value
        self.wake()

    def wake(self) -> None:
        """Wake the reader without a change."""
        os.eventfd_write(self._descriptor, 1)

    def wait(self, old: int, timeout_s: float) -> int:
        """Return the counter once it is not `old`, or as it is when the time is over or somebody has woken it.

        Posts that were seen without waiting wake once more, for nothing: whoever waits for a change asks again.
        """
        value = self._word.value
        if value != old or timeout_s <= 0:
            return value
        if self._poll.poll(max(1, math.ceil(1e3 * timeout_s))):
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._descriptor)
        return self._word.value

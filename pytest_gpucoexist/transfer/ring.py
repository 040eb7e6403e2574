"""One side of a staged copy: device to slots (`send`), or slots to device (`receive`), in two processes at once.

The sender fills slot after slot and raises its counter; the receiver empties them and raises its own. Each has up to
`depth` copies queued, so that its device does not idle while the processes talk. With one slot the same code copies
serially.

Nobody waits for ever: a copy has its deadline, a hand-over has its own, twice as long by default, so that of a copy
that hangs the side that knows why speaks first. A side that fails stops the ring, which ends the other at once; one
that was killed is seen within 50 ms, one that is stopped at the deadline. Before an error leaves, what this side has
queued has ended, or never will.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucoexist.errors import EngineError, PeerError, TransferError
from pytest_gpucoexist.transfer.control import COUNT_MASK, STOPPED

if TYPE_CHECKING:
    from pytest_gpucoexist.transfer.control import Role
    from pytest_gpucoexist.transfer.engine import Engine
    from pytest_gpucoexist.transfer.segment import Segment

__all__ = ["EVENTS", "Pace", "Passed", "chunk_for", "receive", "send"]

EVENTS = 1 << 16  # the events of slots: this and the numbers after it
_LOOK_S = 0.05
_CHUNK_S = 0.25e-3  # handing over a chunk costs 20 to 80 µs on each side, which shorter copies do not hide
_CHUNKS = 32  # K chunks reach K / (K + 2) of the slower link


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How many copies a side queues, how large, and how long one copy and one hand-over may take.

    A chunk is what goes through a slot at once: all of it, or `chunk_bytes`, which both sides must be told alike. A
    side whose driver still answers ends at the latest `patience_s` and `depth` x `copy_s` after the last progress.
    """

    depth: int = 2
    chunk_bytes: int | None = None
    copy_s: float = 10.0
    hand_over_s: float | None = None

    @property
    def patience_s(self) -> float:
        """How long to wait for the other side."""
        return 2 * self.copy_s if self.hand_over_s is None else self.hand_over_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """What went through: `wake_ups_s` are the times from a post to the waking of this side, when it had slept."""

    size_bytes: int
    chunks: int
    elapsed_s: float
    wake_ups_s: tuple[float, ...]


def chunk_for(size_bytes: int, bytes_per_s: float, slot_bytes: int) -> int:
    """Return the chunk with which a copy overlaps well on a link of this rate: whole pages, at most a slot."""
    wanted = max(size_bytes / _CHUNKS, bytes_per_s * _CHUNK_S)
    return min(slot_bytes, -(-int(wanted) // 4096) * 4096 or 4096)


def send(engine: Engine, segment: Segment, pointer: int, size_bytes: int, pace: Pace | None = None) -> Passed:
    """Copy from the device into the ring; returns when the receiver has everything.

    Raises EngineError when a copy fails, PeerError when the other side does, TransferError when the ring was stopped.
    """
    return _Side("sender", engine, segment, pointer, size_bytes, pace or Pace()).run()


def receive(engine: Engine, segment: Segment, pointer: int, size_bytes: int, pace: Pace | None = None) -> Passed:
    """Copy from the ring to the device; returns when everything is there. Raises as `send` does."""
    return _Side("receiver", engine, segment, pointer, size_bytes, pace or Pace()).run()


class _Side:
    def __init__(self, role: Role, engine: Engine, segment: Segment, pointer: int, size_bytes: int, pace: Pace) -> None:
        self._role: Role = role
        self._other: Role = "receiver" if role == "sender" else "sender"
        self._engine = engine
        self._segment = segment
        self._pointer = pointer
        self._size = size_bytes
        self._pace = pace
        self._slots = segment.layout.slots
        self._chunk = min(pace.chunk_bytes or segment.layout.slot_bytes, segment.layout.slot_bytes)
        self._chunks = -(-size_bytes // self._chunk)
        self._control = segment.control
        self._mine, self._theirs = self._control.counter(role), self._control.counter(self._other)
        self._start = self._mine.value
        self._queued = self._done = self._seen = 0
        self._wake_ups: list[float] = []
        self._watched: tuple[int, int] | None = None

    def run(self) -> Passed:
        failure = self._control.failure(self._other, "owner", self._role)
        if failure is not None:
            kind = TransferError if failure[0] == self._role else PeerError
            what = f"the {failure[0]} stopped the copy, before the {self._role} began: {failure[1]}"
            raise kind(f"{what}; the ring's owner must reset it before the next one")
        begun = time.perf_counter()
        self._control.announce(self._role, os.getpid(), self._size, self._chunk)
        try:
            self._pass()
        except BaseException as error:
            # Who was told of a failure has nothing to tell; everything else ends the other side, an interrupt too.
            if self._control.failure(self._other, "owner") is None:
                self._control.fail(self._role, f"{type(error).__name__}: {error}")
            self._drain(error)
            raise
        finally:
            self._control.announce(self._role, 0, self._size, self._chunk)
            if self._watched is not None:
                os.close(self._watched[1])
        elapsed_s = time.perf_counter() - begun
        wake_ups = tuple(self._wake_ups)
        return Passed(size_bytes=self._size, chunks=self._chunks, elapsed_s=elapsed_s, wake_ups_s=wake_ups)

    def _pass(self) -> None:
        ahead = self._slots if self._role == "sender" else 0
        while self._done < self._chunks:
            while self._queued < self._chunks and self._queued - self._done < self._pace.depth:
                if self._queued >= self._seen + ahead and not self._more(block=self._done == self._queued):
                    break  # nothing to queue yet, but something to wait for on this side
                self._copy(self._queued)
                self._queued += 1
            self._engine.wait(EVENTS + self._done % self._slots, self._pace.copy_s)
            self._done += 1
            count = (self._start + self._done) & COUNT_MASK
            self._control.stamp(self._role, count, time.perf_counter_ns())
            self._mine.post(count)
        while self._role == "sender" and self._seen < self._chunks:
            self._more(block=True)

    def _copy(self, chunk: int) -> None:
        slot, at = chunk % self._slots, chunk * self._chunk
        size = min(self._chunk, self._size - at)
        address, pointer = self._segment.slot_address(slot), self._pointer + at
        if self._role == "sender":
            self._engine.to_host(address, pointer, size, EVENTS + slot)
        else:
            self._engine.from_host(pointer, address, size, EVENTS + slot)

    def _more(self, *, block: bool) -> bool:
        """Look how far the other side is; with `block`, wait until it is further. Raises PeerError."""
        old = (self._start + self._seen) & COUNT_MASK
        end = time.monotonic() + self._pace.patience_s
        value, slept, gone = self._theirs.value, False, False
        while value == old:
            self._heed(value)
            left = end - time.monotonic()
            if not block:
                return False
            if gone:
                raise PeerError(f"the {self._other}{self._pid()} has ended without a word, after {self._where()}")
            if left <= 0:
                late = f"did not hand over a slot within {self._pace.patience_s:g} s"
                raise PeerError(
                    f"the {self._other}{self._pid()} {late}, after {self._where()}: it is stopped, hangs, or never came"
                )
            gone = self._is_gone()  # what it did before it ended is looked at once more
            value, slept = self._theirs.wait(old, 0 if gone else min(left, _LOOK_S)), True
        now = time.perf_counter_ns()
        self._heed(value)
        if slept and (posted := self._control.stamped(self._other, value)) <= now:
            self._wake_ups.append((now - posted) / 1e9)
        if self._role == "receiver" and self._seen == 0:
            self._agree()
        self._seen = (value - self._start) & COUNT_MASK
        return True

    def _heed(self, value: int) -> None:
        """Raise PeerError when the other side or the owner has stopped the ring."""
        failure = self._control.failure(self._other, "owner")
        if failure is not None:
            raise PeerError(f"the {failure[0]} stopped the copy, after {self._where()}: {failure[1]}")
        if value & STOPPED:
            raise PeerError(f"the {self._other} stopped the copy, after {self._where()}")

    def _agree(self) -> None:
        # For the receiver alone: a sender cannot be at its next copy before this one has emptied the slots.
        sent, chunk = self._control.announced("sender")[1:]
        if (sent, chunk) != (self._size, self._chunk):
            theirs, ours = f"{sent} bytes by {chunk}", f"{self._size} by {self._chunk}"
            raise PeerError(f"the sender moves {theirs}, the receiver {ours}: both must be told the same")

    def _is_gone(self) -> bool:
        pid = self._control.announced(self._other)[0]
        if pid in {0, os.getpid()}:
            return False
        if self._watched is None or self._watched[0] != pid:
            if self._watched is not None:
                os.close(self._watched[1])
                self._watched = None
            try:
                self._watched = (pid, os.pidfd_open(pid))
            except ProcessLookupError:
                return True
            except OSError:
                return False  # a kernel before 5.3, or a filter that forbids it: then the deadline has to do
        poll = select.poll()
        poll.register(self._watched[1], select.POLLIN)
        return bool(poll.poll(0))

    def _drain(self, error: BaseException) -> None:
        if isinstance(error, EngineError) and error.kind in {"deadline", "lost", "closed"}:
            return
        for chunk in range(self._done, self._queued):
            with contextlib.suppress(EngineError):
                self._engine.wait(EVENTS + chunk % self._slots, self._pace.copy_s)

    def _where(self) -> str:
        return f"{self._done} of {self._chunks} slots of the {self._role}"

    def _pid(self) -> str:
        pid = self._control.announced(self._other)[0]
        return f" (process {pid})" if pid else ""

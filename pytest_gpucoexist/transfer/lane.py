"""One direction of a simulated device: a thread that does what is queued, in order, at a rate where one is given.

A rate is kept by absolute deadlines: work begins when it was queued or when the one before it was due to end, whichever
is later, and is due its size over the rate after that. So a thread that wakes late is not slower in the long run.
"""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Lane", "Mark"]


class Mark:
    """What an event stands for: done once everything before it is."""

    __slots__ = ("_done", "ended_s")

    def __init__(self) -> None:
        self._done = threading.Event()
        self.ended_s: float | None = None

    def end(self, when_s: float) -> None:
        """Say that it has ended, at a time of `time.perf_counter`."""
        self.ended_s = when_s
        self._done.set()

    def wait(self, timeout_s: float) -> bool:
        """Return whether it has ended within the time."""
        return self._done.wait(max(0.0, timeout_s))


class Lane:
    """A queue and its thread, which begins with the first work. Used by one thread beside its own."""

    def __init__(self, name: str, bytes_per_s: float | None) -> None:
        self._name = name
        self._bytes_per_s = bytes_per_s
        self._queue: queue.SimpleQueue[tuple[Callable[[], object] | None, int, float, Mark] | None]
        self._queue = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._due_s = 0.0

    def put(self, work: Callable[[], object] | None, size_bytes: int, mark: Mark) -> None:
        """Queue work, or only its mark."""
        if self._thread is None:
            # A daemon: the interpreter does not wait for a copy that nobody waited for.
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._queue.put((work, size_bytes, time.perf_counter(), mark))

    def settle(self, timeout_s: float) -> bool:
        """Return whether everything that was queued has ended within the time."""
        if self._thread is None:
            return True
        mark = Mark()
        self.put(None, 0, mark)
        return mark.wait(timeout_s)

    def stop(self) -> None:
        """End the thread; what was not begun is dropped, and what is being copied now is not cut in two."""
        if self._thread is not None:
            self._stopped.set()
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (item := self._queue.get()) is not None and not self._stopped.is_set():
            work, size_bytes, queued_s, mark = item
            if work is not None:
                work()
            ended_s = time.perf_counter()
            if self._bytes_per_s:
                self._due_s = max(queued_s, self._due_s) + size_bytes / self._bytes_per_s
                if self._due_s > ended_s and self._stopped.wait(self._due_s - ended_s):
                    return
                ended_s = max(self._due_s, ended_s)
            mark.end(ended_s)

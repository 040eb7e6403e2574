"""Workers that a run does not need: they are counted out at once, and told to end one by one, while tests run.

A process that ends takes tens of milliseconds of a core. Told at once, they would take them from those that are about
to run their first test: with eight workers on two cores, devices stood idle for 70 ms in the mean, up to 140.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_gpucoexist.placement.scheduler_queue import QueuedWorker

__all__ = ["Surplus"]


class Surplus:
    """Who is to end."""

    def __init__(self, close: Callable[[QueuedWorker], None]) -> None:
        """`close` tells a worker to end."""
        self._close = close
        self._waiting: list[QueuedWorker] = []

    def choose(self, workers: Mapping[str, QueuedWorker], useful: Callable[[], int]) -> tuple[str, ...]:
        """Choose workers beyond the `useful` that have nothing to do yet; of those of a kind, never the last."""
        working = {name: worker for name, worker in workers.items() if not worker.queue.is_closed}
        if all(worker.queue.positions for worker in working.values()):
            return ()
        surplus = len(working) - useful()
        kinds = Counter(worker.kind for worker in working.values())
        chosen = []
        for name, worker in reversed(tuple(working.items())):
            if surplus > 0 and not worker.queue.positions and kinds[worker.kind] > 1:
                surplus -= 1
                kinds[worker.kind] -= 1
                self._waiting.append(worker)
                chosen.append(name)
        return tuple(chosen)

    def end_one(self) -> None:
        """Tell the next of them."""
        if self._waiting:
            self._close(self._waiting.pop())

"""Which workers may still hold devices for scopes of tests that are over, and how they are made to give them back.

A worker ends a scope when it knows that its next test lies outside. One that has nothing to do knows of none, so it is
given a position to pass by, at which every scope ends. Otherwise others could wait for its devices for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.placement.scheduler_queue import Orders

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pytest_gpucoexist.placement.scheduler_queue import QueuedWorker

__all__ = ["Scopes"]


class Scopes:
    """Remembers who has run a test since its scopes ended."""

    def __init__(self, push: Callable[[str, str, object], None]) -> None:
        """`push(worker, verb, value)` reaches a worker."""
        self._push = push
        self._kept: set[str] = set()

    def ran(self, name: str) -> None:
        """Note that a worker has run a test, and may keep something for its scopes."""
        self._kept.add(name)

    def blocked(self, workers: Mapping[str, QueuedWorker]) -> tuple[str, ...]:
        """Return who may keep something while it waits for another worker's test to end, which may wait for that."""
        firsts = {name: worker.queue.positions[0] for name, worker in workers.items() if worker.queue.positions}
        return tuple(
            name
            for name, first in firsts.items()
            if name in self._kept and first.state == "assigned" and first.blockers and not workers[name].queue.is_closed
        )

    def end(self, workers: Mapping[str, QueuedWorker], pending: Iterable[int]) -> bool:
        """Have workers that have nothing to do give back what they keep; return whether any of them was told."""
        pending = tuple(pending)
        told = False
        for name, worker in workers.items():
            queue, orders = worker.queue, Orders(ends=True)
            following = next((test for test in pending if test in queue.index_of), None)
            # The worker gets to a position when it knows the next.
            if name in self._kept and queue.is_idle and not queue.is_closed and following is not None:
                queue.cancel_predictions(orders)
                if orders.cancel:
                    self._kept.discard(name)
                    queue.predict(following, orders)
                    worker.tell(self._push, orders)
                    told = True
        return told

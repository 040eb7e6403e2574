"""A scheduler for pytest-xdist that hands tests out by what they need: its protocol here, the engine behind it.

Until all workers have collected, pytest-xdist's own scheduler is kept up to date as well; when no test of the suite
needs a device, it stays in charge for good, and nothing of this one is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucoexist.placement.scheduler_run import Run

__all__ = ["GpuScheduling", "Node", "Planner", "Scheduling"]


class Node(Protocol):
    """The part of pytest-xdist's `WorkerController` that is used here."""

    gateway: Any

    @property
    def shutting_down(self) -> bool:
        """Whether the worker has been told to end, or is gone."""
        ...

    def send_runtest_some(self, indices: Sequence[int]) -> None:
        """Append to the worker's queue, by places in the list that it collected."""
        ...

    def shutdown(self) -> None:
        """Let the worker end after its queue."""
        ...


class Scheduling(Protocol):
    """What pytest-xdist asks of a scheduler (`xdist.scheduler.protocol`, which has no types to import)."""

    nodes: list[Node]
    collection_is_completed: bool
    tests_finished: bool
    has_pending: bool

    def add_node(self, node: Node) -> None: ...

    def add_node_collection(self, node: Node, collection: Sequence[str]) -> None: ...

    def mark_test_complete(self, node: Node, item_index: int, duration: float = 0) -> None: ...

    def mark_test_pending(self, item: str) -> None: ...

    def remove_pending_tests_from_node(self, node: Node, indices: Sequence[int]) -> None: ...

    def remove_node(self, node: Node) -> str | None: ...

    def schedule(self) -> None: ...


class Planner(Protocol):
    """What the session knows: whether there is anything to plan once every worker has collected."""

    def plan(self, collections: dict[str, list[str]]) -> Run | None:
        """Return a run for these collections (worker → ids), None when no test of them needs a device."""
        ...

    def check(self) -> None:
        """Raise what went wrong where nobody could hear of it, in a thread that receives what workers say."""
        ...

    def stand_aside(self, workers: Sequence[str]) -> None:
        """Tell workers that every position of their queue runs, as without a plan."""
        ...


class GpuScheduling:
    """Delegates to `inner` until it is known that there is something to plan, and then to a `Run`."""

    def __init__(self, inner: Scheduling, planner: Planner) -> None:
        """`inner` is the scheduler that pytest-xdist would have used."""
        self._inner = inner
        self._planner = planner
        self._run: Run | None = None
        self._decided = False
        self._nodes: list[Node] = []
        self._collections: dict[Node, list[str]] = {}

    def __getattr__(self, name: str) -> Any:
        """Give plugins what pytest-xdist's schedulers have beyond the protocol, such as `config`."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._inner, name)

    @property
    def nodes(self) -> list[Node]:
        """All workers that are up."""
        return self._inner.nodes if self._run is None else list(self._nodes)

    @property
    def collection_is_completed(self) -> bool:
        """Whether every worker of the beginning has collected."""
        return self._run is not None or self._inner.collection_is_completed

    @property
    def tests_finished(self) -> bool:
        """Whether workers may be told to end."""
        return self._inner.tests_finished if self._run is None else self._run.is_finished

    @property
    def has_pending(self) -> bool:
        """Whether tests are being run."""
        return self._inner.has_pending if self._run is None else not self._run.is_finished

    def add_node(self, node: Node) -> None:
        """Count on a worker that has started; it will collect."""
        if self._run is None:
            self._inner.add_node(node)
        if self._run is not None or not self._decided:
            self._nodes.append(node)

    def add_node_collection(self, node: Node, collection: Sequence[str]) -> None:
        """Take what a worker has collected; the collections of two workers need not be the same."""
        if self._run is None:
            self._inner.add_node_collection(node, collection)
        if self._run is not None or not self._decided:
            self._collections[node] = list(collection)
        elif self._run is None:
            self._planner.stand_aside([_name(node)])

    def schedule(self) -> None:
        """Begin, once every worker has collected, and again whenever a replacement has."""
        if not self._decided:
            self._decided = True
            self._run = self._planner.plan({_name(node): ids for node, ids in self._collections.items()})
            if self._run is None:
                self._planner.stand_aside([_name(node) for node in self._collections])
                self._collections.clear()
                self._nodes.clear()
        if self._run is None:
            self._inner.schedule()
            return
        for node, ids in self._collections.items():
            self._run.add_worker(_name(node), node, ids)
        self._collections.clear()
        self._run.go_on()

    def mark_test_complete(self, node: Node, item_index: int, duration: float = 0) -> None:
        """Note that a worker has left a position behind; with a plan, it has told more than that already."""
        if self._run is None:
            self._inner.mark_test_complete(node, item_index, duration)
        else:
            self._planner.check()

    def mark_test_pending(self, item: str) -> None:
        """Run a test (again), for plugins that rerun one that crashed its worker."""
        if self._run is None:
            self._inner.mark_test_pending(item)
        else:
            self._run.again(item)

    def remove_pending_tests_from_node(self, node: Node, indices: Sequence[int]) -> None:
        """Note what a worker gave back that was asked to; a plan never asks for that."""
        if self._run is None:
            self._inner.remove_pending_tests_from_node(node, indices)

    def remove_node(self, node: Node) -> str | None:
        """Forget a worker that ended or died; return the test to blame for its death, None when it was idle.

        Raises KeyError for an unknown one, as pytest-xdist expects, and ends the run where a test ended its worker's by
        `pytest.exit` with a code of its own: a serial run would end so, and pytest-xdist fails in itself then.
        """
        if self._run is None:
            if node in self._nodes:
                self._nodes.remove(node)
            self._collections.pop(node, None)
            return self._inner.remove_node(node)
        if node not in self._nodes:
            raise KeyError(node)
        self._nodes.remove(node)
        self._collections.pop(node, None)
        blamed = self._run.remove_worker(_name(node))
        code = getattr(node, "workeroutput", {}).get("exitstatus", _INTERRUPTED)
        if blamed is None or code == _INTERRUPTED:
            return blamed
        if code not in _ENDED:
            pytest.exit(f"{_name(node)} was told to end while it ran {blamed}, or after it", returncode=code)
        return None  # it came to its end: nothing crashed


_INTERRUPTED = pytest.ExitCode.INTERRUPTED
"""Of a worker in which Ctrl-C was pressed; pytest-xdist treats it as one that died. A dead one has no code at all."""

_ENDED = {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED}


def _name(node: Node) -> str:
    return str(node.gateway.id)

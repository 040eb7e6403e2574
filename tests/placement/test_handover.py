"""A device goes to the next worker: who waits is told when the teardown begins, and locks decide when it ends."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.placement.engine.values import Assignment
from pytest_gpucoexist.placement.grant import Grant
from pytest_gpucoexist.placement.scheduler_queue import Orders, QueuedWorker, WorkerQueue, await_blockers, hand_over
from pytest_gpucoexist.placement.transport import AWAITED, RUN
from pytest_gpucoexist.placement.worker import Words
from tests.fixtures.running import needs_xdist
from tests.placement.planned import Planned

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = needs_xdist


class _Node:
    gateway: Any = None
    shutting_down = False

    def send_runtest_some(self, indices: Sequence[int]) -> None:
        """Nothing is appended here."""

    def shutdown(self) -> None:
        """Nothing ends here."""


def _worker(name: str, test: int, *after: tuple[str, int]) -> QueuedWorker:
    worker = QueuedWorker(name, _Node(), WorkerQueue({test: test}), "kind")
    orders = Orders()
    worker.queue.assign(Assignment(worker=name, test=test, devices=(("a",),), after=after), orders)
    worker.queue.grant(orders)
    return worker


def test_who_waits_is_told_that_the_device_is_free_soon() -> None:
    workers = {
        "gw0": _worker("gw0", 0),
        "gw1": _worker("gw1", 1, ("gw0", 0)),
        "gw2": _worker("gw2", 2, ("gw1", 1)),
        "gw3": _worker("gw3", 3, ("gw0", 0), ("gw2", 2)),
    }
    said: list[tuple[str, str, object]] = []
    hand_over(workers, "gw0", 0, lambda *each: said.append(each))
    assert said == [("gw1", RUN, [0, [["a"]], False, 0, True, False])]
    hand_over(workers, "gw0", 0, lambda *each: said.append(each))
    hand_over(workers, "gw2", 0, lambda *each: said.append(each))  # it has not begun: nothing of it ends
    hand_over(workers, "gw9", 0, lambda *each: said.append(each))
    assert len(said) == 1
    words = Words()
    words.run([0, [["a"]], False, 0, True, False])
    assert words.wait(0) == Grant(keys=(("a",),), soon=True)
    assert not words.is_awaited(0)


def test_who_is_waited_for_is_told_once() -> None:
    workers = {
        "gw0": _worker("gw0", 0),
        "gw1": _worker("gw1", 1, ("gw0", 0)),
        "gw2": _worker("gw2", 2, ("gw0", 0), ("gw1", 1), ("gw8", 8)),
    }
    said: list[tuple[str, str, object]] = []
    for name in ("gw1", "gw2"):
        await_blockers(workers, workers[name].queue.positions[0], lambda *each: said.append(each))
    assert said == [("gw0", AWAITED, 0)]
    words = Words()
    words.awaited(0)
    assert (words.is_awaited(0), words.is_awaited(1)) == (True, False)
    # What does not run yet is told so when it may.
    hand_over(workers, "gw0", 0, lambda *each: said.append(each))
    assert said[1:] == [("gw1", RUN, [0, [["a"]], False, 0, True, True])]
    words.run([1, [["a"]], False, 0, True, True])
    assert words.is_awaited(1)


@pytest.mark.parametrize("ends", ["slow", "fails"])
def test_a_teardown_that_takes_long_or_fails_keeps_the_device_until_its_end(
    pytester: pytest.Pytester, ends: str
) -> None:
    suite = Planned(
        pytester,
        test_it=f"""
            import time
            import pytest

            @pytest.fixture
            def slow(_recorded):
                yield
                time.sleep(0.2)
                assert {ends == "slow"}

            @pytest.mark.gpu
            @pytest.mark.parametrize("n", range(9))
            def test_it(gpus, n, slow): pass
            """,
    )
    result = suite.run(workers=6)
    result.assert_outcomes(passed=9, errors=0 if ends == "slow" else 9)
    assert len(set(suite.ran())) == len(suite.read()) == 9
    by_key: dict[str, list[tuple[int, int]]] = {}
    for entry in suite.read():
        for key in entry["keys"]:
            by_key.setdefault(key, []).append((entry["start"], entry["end"]))
    for turns in by_key.values():
        turns.sort()
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(turns))


def test_where_nobody_waits_the_last_report_says_that_a_position_is_over(pytester: pytest.Pytester) -> None:
    """Without that word the controller would hand out nothing more, and the run stand still."""
    suite = Planned(
        pytester,
        test_it="""
            import time
            import pytest

            @pytest.mark.parametrize("n", range(20))
            def test_it(cuda_gpu, n): time.sleep(0.02)
            """,
    )
    suite.run(workers=2).assert_outcomes(passed=20)
    assert len(suite.ran()) == 20

"""The parts of a planned run by themselves: tables of tests, units, durations, the worker's gate, timelines."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.model.requirement import Need, Requirement
from pytest_gpucoexist.placement.durations import Durations, cache_key
from pytest_gpucoexist.placement.engine.values import Assignment, Wait
from pytest_gpucoexist.placement.grant import Grant
from pytest_gpucoexist.placement.scheduler_queue import Orders, WorkerQueue
from pytest_gpucoexist.placement.suite import Suite
from pytest_gpucoexist.placement.timeline import Hold, timeline_of
from pytest_gpucoexist.placement.transport import Table, TableUnit, code_bytes
from pytest_gpucoexist.placement.worker import Words
from pytest_gpucoexist.reports.timeline import timeline_html, timeline_lines, timeline_markdown
from pytest_gpucoexist.session.units import unit_names

if TYPE_CHECKING:
    from collections.abc import Sequence

ONE = Need(requirements=(Requirement(vendor="nvidia", count=1),))
TWO = Need(requirements=(Requirement(vendor="amd", count=2, memory_bytes=1 << 30),), closest_pair=True)


# Tables


def test_a_table_is_the_same_on_the_other_side() -> None:
    table = Table(
        needs=(ONE, TWO),
        need_codes=[0, 1, 2, 70_000],
        units=(TableUnit(name="module a.py", need=1), TableUnit(name="group g", divisible=False)),
        unit_codes=[0, 1, 2, 1],
    )
    packed = table.pack()
    assert {type(part) for part in packed} <= {str, bytes, type(None)}, "execnet takes exact builtins only"
    read = Table.unpack(packed)
    assert (read.needs, read.units, read.machine) == (table.needs, table.units, None)
    assert (list(read.need_codes), list(read.unit_codes)) == ([0, 1, 2, 70_000], [0, 1, 2, 1])


def test_codes_are_written_the_lowest_byte_first() -> None:
    assert code_bytes([1, 0x0302]) == b"\1\0\0\0\2\3\0\0"


def table(
    needs: Sequence[Need], codes: Sequence[int], units: Sequence[TableUnit] = (), of: Sequence[int] = ()
) -> Table:
    return Table(needs=tuple(needs), need_codes=codes, units=tuple(units), unit_codes=of or [0] * len(codes))


def test_a_suite_is_what_any_worker_collected() -> None:
    suite = Suite(
        {"gw0": ["a", "b"], "gw1": ["b", "c"], "gw2": ["a", "b"]},
        {"gw0": table([ONE], [1, 0]), "gw1": table([TWO, ONE], [0, 1]), "gw2": table([ONE], [1, 0])},
    )
    assert suite.ids == ["a", "b", "c"]
    assert suite.needs == (ONE, TWO)


# Units


def collected(pytester: pytest.Pytester, text: str, lease: str = "test") -> dict[str, Any]:
    pytester.makeini("[pytest]\nmarkers = xdist_group(name): of pytest-xdist, which may not be here")
    items, _ = pytester.inline_genitems(pytester.makepyfile(test_units=text))
    gpu_items = [item for item in items if "gpu" in item.name]
    return {item.name: named for item, named in zip(items, unit_names(items, gpu_items, lease), strict=True)}


def test_tests_stay_together_that_share_a_group_or_a_wider_fixture(pytester: pytest.Pytester) -> None:
    units = collected(
        pytester,
        """
        import pytest

        @pytest.fixture(scope="module")
        def model(): pass

        @pytest.fixture(scope="session")
        def everything(): pass

        def test_alone(everything, tmp_path): pass
        def test_model(model): pass

        @pytest.mark.xdist_group("g")
        def test_grouped(model): pass

        class TestOne:
            @pytest.fixture(scope="class", autouse=True)
            def prepared(self): pass
            def test_class(self): pass
            def test_wider(self, model): pass

        @pytest.mark.xdist_group(name="outer")
        class TestGroup:
            @pytest.mark.xdist_group("inner")
            def test_both(self): pass
        """,
    )
    assert units == {
        "test_alone": (None, True, False),
        "test_model": ("module test_units.py", True, False),
        "test_grouped": ("group g", False, False),
        "test_class": ("class test_units.py::TestOne", True, False),
        "test_wider": ("module test_units.py", True, False),
        "test_both": ("group inner_outer", False, False),
    }


@pytest.mark.parametrize(
    ("lease", "unit"),
    [
        ("test", None),
        ("class", "class test_units.py::TestIt"),
        ("module", "module test_units.py"),
        ("worker", "session "),
    ],
)
def test_a_lease_of_a_scope_keeps_its_gpu_tests_together(pytester: pytest.Pytester, lease: str, unit: str) -> None:
    text = """
        class TestIt:
            def test_gpu(self): pass
            def test_cpu(self): pass
        """
    units = collected(pytester, text, lease)
    assert units["test_gpu"] == (unit, True, unit is not None)
    assert units["test_cpu"][0] is None


# Durations


def test_durations_are_smoothed_and_what_looks_wrong_is_ignored() -> None:
    durations = Durations({"tests": {"a": 4.0, "b": "long", "c": -1, "d": True}, "units": ["no"]})
    assert [durations.of_test(name) for name in "abcd"] == [4.0, None, None, None]
    before = durations.is_changed
    durations.add("a", 2.0, setup_s=0.1)
    durations.add("e", 5.0, setup_s=3.5, unit="module m.py")
    assert (before, durations.is_changed) == (False, True)
    assert durations.stored() == {"tests": {"a": 3.0, "e": 1.5}, "units": {"module m.py": 3.5}}
    assert Durations(durations.stored()).of_unit("module m.py") == 3.5


@pytest.mark.parametrize("stored", [None, 7, [], {"tests": None}])
def test_no_durations_are_no_error(stored: object) -> None:
    assert Durations(stored).of_test("a") is None


def test_the_name_of_a_machine_makes_a_file_name() -> None:
    assert cache_key("my host/../x") == "gpucoexist/durations-my-host-..-x"
    assert cache_key("") == "gpucoexist/durations-unnamed"


# Queues and gates


def assignment(test: int, *after: tuple[str, int]) -> Assignment:
    return Assignment(worker="gw0", test=test, devices=(("a",),), after=after)


def test_a_guess_that_comes_true_is_not_sent_again() -> None:
    queue = WorkerQueue({number: number + 10 for number in range(5)})
    orders = Orders()
    queue.assign(assignment(0), orders)
    assert queue.needs_prediction
    queue.predict(1, orders)
    queue.grant(orders)
    assert (orders.indices, orders.cancel, [each.test for each in orders.run]) == ([10, 11], [], [0])
    orders = Orders()
    queue.assign(assignment(1), orders)
    queue.predict(2, orders)
    assert (orders.indices, orders.cancel) == ([12], [])
    orders = Orders()
    queue.assign(assignment(4), orders)
    assert (orders.indices, orders.cancel) == ([14], [2])


def test_a_position_waits_for_other_workers_and_for_earlier_ones_of_its_queue() -> None:
    queue = WorkerQueue({number: number for number in range(5)})
    first = queue.assign(assignment(0, ("gw1", 7)), Orders())
    queue.assign(assignment(1, ("gw0", 0)), Orders())
    orders = Orders()
    queue.grant(orders)
    assert orders.run == []
    first.blockers.clear()
    queue.grant(orders)
    assert [each.test for each in orders.run] == [0, 1]


def test_a_word_that_crossed_a_refusal_counts_for_nothing() -> None:
    words = Words()
    words.run([0, [["a"]], False, 0, False, False])
    words.run([1, [["a"]], False, 0, False, False])
    assert words.wait(0) == Grant(keys=(("a",),))
    words.refused()
    words.run([1, [["a"]], False, 0, False, False])
    words.run([1, [["b"]], True, 1, False, False])
    assert words.wait(1) == Grant(keys=(("b",),), waits=True)


def test_a_worker_does_not_wait_for_a_controller_that_is_gone() -> None:
    words = Words()
    answers: list[Grant | None] = []
    waiting = threading.Thread(target=lambda: answers.append(words.wait(0)))
    waiting.start()
    words.end(None)
    waiting.join()
    assert answers == [None]


def test_where_nothing_is_planned_every_position_runs() -> None:
    words = Words()
    words.open(None)
    assert words.wait(0) == words.wait(1) == Grant()


# Timelines


def hold(test: int, start_s: float, end_s: float, *keys: str, share: int | None = None) -> Hold:
    shares = {} if share is None else dict.fromkeys(keys, share)
    return Hold(test=test, worker=f"gw{test}", start_s=start_s, end_s=end_s, keys=keys, memory_bytes=shares)


def test_a_device_is_busy_while_anybody_has_it() -> None:
    holds = [
        hold(0, 100.0, 102.0, "a", "b"),
        hold(1, 103.0, 106.0, "a", share=1 << 30),
        hold(2, 104.0, 107.0, "a", share=2 << 30),
    ]
    waits = [Wait(test=1, since_s=101.0, until_s=103.0, holders=(("gw0", 0),))]
    timeline = timeline_of(holds, waits, ["t<0>", "t1", "t2"], ["a", "b", "c"])
    assert timeline is not None
    assert (timeline.length_s, timeline.workers) == (7.0, 3)
    assert {each.key: each.busy_s for each in timeline.devices} == {"a": 6.0, "b": 2.0, "c": 0.0}
    assert [each.memory_bytes for each in timeline.devices[0].held] == [None, 1 << 30, 2 << 30]
    assert timeline_lines(timeline, None) == [
        "--gpu-dist: leases on 3 workers, 7.0 s from the first to the last; busy: a 86 %, b 29 %, c 0 %",
        "  waited 2.0 s: t1, held by t<0>",
    ]
    markdown = "\n".join(timeline_markdown(timeline, None))
    assert "| a | 86 % | 6.0 | 3 |" in markdown
    page = "".join(timeline_html(timeline, None))
    assert page.count("<i ") == 4
    assert page.count('class="part"') == 2
    assert "t<0>" not in page


def test_a_run_without_devices_has_no_timeline() -> None:
    assert timeline_of([], [], [], ["a"]) is None

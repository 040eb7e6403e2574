"""`--gpu-dist=auto` with real workers: what runs, where, and that what else pytest is told keeps its meaning."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tests.fixtures.running import needs_xdist
from tests.placement.planned import Planned

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = needs_xdist

MIXED = """
    import time
    import pytest

    @pytest.mark.gpu
    @pytest.mark.parametrize("n", range(6))
    def test_one(gpus, n): time.sleep(0.01)

    @pytest.mark.cuda(count=2)
    @pytest.mark.parametrize("n", range(3))
    def test_two(gpus, n): time.sleep(0.01)

    @pytest.mark.cross_vendor
    @pytest.mark.parametrize("n", range(3))
    def test_pair(gpus, n): time.sleep(0.01)

    @pytest.mark.parametrize("n", range(4))
    def test_cpu(n): pass
    """


def assert_exclusive(entries: Sequence[dict[str, Any]]) -> None:
    last: dict[str, tuple[int, str]] = {}
    for entry in sorted(entries, key=lambda each: each["start"]):
        for key in entry["keys"]:
            end, test = last.get(key, (0, ""))
            assert entry["start"] >= end, f"{entry['test']} and {test} had {key} at the same time"
            last[key] = entry["end"], entry["test"]


def test_every_test_runs_once_and_no_device_is_held_twice(pytester: pytest.Pytester) -> None:
    suite = Planned(pytester, test_it=MIXED)
    result = suite.run("--gpu-report=report.json", workers=4, cache=True)
    result.assert_outcomes(passed=16)
    assert len(set(suite.ran())) == len(suite.read()) == 16
    assert_exclusive(suite.read())
    result.stdout.fnmatch_lines(
        ["--gpu-dist: leases on * workers, * s from the first to the last; busy: nvidia0 * %, *"]
    )
    report = json.loads((pytester.path / "report.json").read_text())
    held = [each for device in report["timeline"]["devices"] for each in device["held"]]
    assert Counter(each["nodeid"] for each in held) == {
        **{f"test_it.py::test_one[{n}]": 1 for n in range(6)},
        **{f"test_it.py::test_{name}[{n}]": 2 for name in ("two", "pair") for n in range(3)},
    }
    assert all(0 <= each["start_s"] < each["end_s"] <= report["timeline"]["length_s"] for each in held)
    stored = json.loads((pytester.path / ".pytest_cache/v/gpucoexist/durations-demo").read_text())
    assert len(stored["tests"]) == 16
    assert stored["tests"]["test_it.py::test_two[0]"] >= 0.01


def test_workers_that_tx_names_are_started(pytester: pytest.Pytester) -> None:
    suite = Planned(pytester, test_it=MIXED)
    suite.run("--tx", "2*popen", workers=0, xdist=True).assert_outcomes(passed=16)
    assert {entry["worker"] for entry in suite.read()} == {"gw0", "gw1"}


@pytest.mark.parametrize("workers", [0, 1])
def test_without_workers_to_choose_from_nothing_is_different(pytester: pytest.Pytester, workers: int) -> None:
    suite = Planned(pytester, test_it=MIXED)
    suite.run(workers=workers).assert_outcomes(passed=16)
    assert len(set(suite.ran())) == 16


def test_the_longest_known_test_begins_first(pytester: pytest.Pytester) -> None:
    suite = Planned(
        pytester,
        test_it="""
            import pytest

            @pytest.mark.cuda
            @pytest.mark.parametrize("n", range(6))
            def test_one(gpus, n): pass
            """,
    )
    known = {f"test_it.py::test_one[{n}]": 60.0 if n == 5 else 0.01 for n in range(6)}
    path = pytester.path / ".pytest_cache/v/gpucoexist/durations-demo"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"tests": known, "units": {}}))
    suite.run(cache=True).assert_outcomes(passed=6)
    order: dict[str, list[str]] = {}
    for entry in sorted(suite.read(), key=lambda each: each["start"]):
        order.setdefault(entry["worker"], []).append(entry["test"])
    assert "test_one[5]" in [tests[0] for tests in order.values()]
    assert json.loads(path.read_text())["tests"]["test_it.py::test_one[5]"] < 60, "what it took now counts too"


def test_a_suite_without_gpu_tests_is_left_to_xdist(pytester: pytest.Pytester) -> None:
    suite = Planned(pytester, test_it="import pytest\n@pytest.mark.parametrize('n', range(8))\ndef test_cpu(n): pass")
    result = suite.run("-v")
    result.assert_outcomes(passed=8)
    result.stdout.no_fnmatch_line("*--gpu-dist:*")


def test_an_explicit_dist_wins_and_that_is_said(pytester: pytest.Pytester) -> None:
    suite = Planned(pytester, test_it=MIXED)
    result = suite.run("--dist=loadfile", "-v")
    result.assert_outcomes(passed=16)
    result.stdout.fnmatch_lines(["gpucoexist: --dist=loadfile wins over --gpu-dist=auto: tests are not planned"])
    assert len({entry["worker"] for entry in suite.read()}) == 1


def test_groups_and_wider_fixtures_stay_together(pytester: pytest.Pytester) -> None:
    wide = """
        import os, pytest
        from conftest import write

        @pytest.fixture(scope="module")
        def model(request):
            write("setups", module=request.node.name)

        @pytest.mark.gpu
        @pytest.mark.parametrize("n", range(8))
        def test_model(gpus, model, n): pass
        """
    grouped = """
        import pytest

        @pytest.mark.xdist_group("together")
        @pytest.mark.gpu
        @pytest.mark.parametrize("n", range(9))
        def test_grouped(gpus, n): pass

        class TestScoped:
            @pytest.mark.parametrize("n", range(4))
            def test_class(self, class_gpu, n): pass
        """
    suite = Planned(pytester, test_a=wide, test_b=wide, test_c=wide, test_d=grouped)
    suite.run(workers=3).assert_outcomes(passed=3 * 8 + 9 + 4)
    # How often depends on how the workers keep up with each other; at the most, each of them sets up each module once.
    assert len(suite.read("setups")) <= 9, "split where a worker would idle, and not by every test"
    assert len({entry["worker"] for entry in suite.read() if "grouped" in entry["test"]}) == 1


STOPS = """
    import time
    import pytest

    @pytest.mark.cuda(count=2)
    @pytest.mark.parametrize("n", range(12))
    def test_two(gpus, n):
        assert n != 3
    """


def test_x_stops_workers_that_wait_for_a_device(pytester: pytest.Pytester) -> None:
    suite = Planned(pytester, test_it=STOPS)
    result = suite.run("-x", workers=3)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["*stopping after 1 failures*"])


def test_lf_and_sw_go_on_where_they_were(pytester: pytest.Pytester) -> None:
    suite = Planned(pytester, test_it=STOPS)
    suite.run("--sw", cache=True).assert_outcomes(passed=3, failed=1)
    assert suite.ran() == sorted(f"test_two[{n}]" for n in range(4))
    (pytester.path / "ran").unlink()
    suite.run("--lf", cache=True).assert_outcomes(failed=1)
    assert suite.ran() == ["test_two[3]"]
    (pytester.path / "ran").unlink()
    suite.run("--ff", "-x", cache=True).assert_outcomes(failed=1)


def test_workers_may_collect_different_tests(pytester: pytest.Pytester) -> None:
    suite = Planned(
        pytester,
        conftest="""
def pytest_generate_tests(metafunc):
    if "n" in metafunc.fixturenames:
        extra = os.environ.get("PYTEST_XDIST_WORKER") == "gw1"
        metafunc.parametrize("n", list(range(4 if extra else 3)))
""",
        test_it="import pytest\n@pytest.mark.gpu\ndef test_some(gpus, n): pass",
    )
    suite.run().assert_outcomes(passed=4)
    assert [entry["worker"] for entry in suite.read() if entry["test"] == "test_some[3]"] == ["gw1"]


def test_what_the_machine_lacks_is_skipped_once(pytester: pytest.Pytester) -> None:
    suite = Planned(
        pytester,
        test_it="""
            import pytest

            @pytest.mark.cuda(count=9)
            @pytest.mark.parametrize("n", range(3))
            def test_too_much(gpus, n): pass

            @pytest.mark.cuda
            def test_enough(gpus): pass
            """,
    )
    result = suite.run()
    result.assert_outcomes(passed=1, skipped=3)
    assert suite.ran() == ["test_enough"]


AGAIN = """
def pytest_collection_modifyitems(items):
    items += [
        type(item).from_parent(
            item.parent,
            name=item.name,
            callspec=getattr(item, "callspec", None),
            fixtureinfo=item._fixtureinfo,
            keywords=dict.fromkeys(item.keywords, True),
            originalname=item.originalname,
        )
        for item in items
    ]
"""


@pytest.mark.parametrize("way", ["option", "plugin"])
def test_a_test_that_was_collected_twice_runs_twice(pytester: pytest.Pytester, way: str) -> None:
    # New items, as plugins that repeat tests make them: pytest itself runs no item twice in a row.
    suite = Planned(pytester, conftest=AGAIN if way == "plugin" else "", test_it=MIXED)
    arguments = ["--keep-duplicates", "test_it.py", "test_it.py"] if way == "option" else []
    suite.run(*arguments, workers=3).assert_outcomes(passed=32)
    assert set(Counter(suite.ran()).values()) == {2}
    assert_exclusive(suite.read())

"""pytest-rerunfailures: a test that is run again keeps its device, and ends in one record."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.beside.running import NVIDIA1, workers

if TYPE_CHECKING:
    from tests.beside.running import Suite

pytestmark = pytest.mark.slow


@workers
def test_a_rerun_keeps_its_device(beside: Suite, workers: int) -> None:
    beside.pytester.makepyfile(
        """
        import pytest
        from conftest import note

        runs = {}

        @pytest.mark.cuda
        @pytest.mark.parametrize("passes_at", [1, 2, 3, 99])
        def test_flaky(gpu, request, passes_at):
            name = request.node.name
            runs[name] = runs.get(name, 0) + 1
            note("runs", [name, gpu.key])
            assert runs[name] == passes_at

        @pytest.fixture
        def flaky_setup(gpu):
            runs["setup"] = runs.get("setup", 0) + 1
            note("runs", ["setup", gpu.key])
            assert runs["setup"] == 2

        def test_setup(flaky_setup): pass

        class TestWider:
            def test_first(self, class_gpu):
                note("wider", class_gpu.key)

            def test_again(self, class_gpu, request):
                runs["wider"] = runs.get("wider", 0) + 1
                note("wider", class_gpu.key)
                assert runs["wider"] == 2
        """
    )
    dist = ("--dist=loadfile",) if workers else ()
    arguments = ("--reruns=2", "--gpu-report=report.json", "--junitxml=junit.xml")
    result = beside.run(*arguments, *dist, plugins=("rerunfailures",), workers=workers)
    result.assert_outcomes(passed=6, failed=1)
    assert result.parseoutcomes()["rerun"] == 7
    devices: dict[str, list[str]] = {}
    for name, key in beside.noted("runs"):
        devices.setdefault(name, []).append(key)
    assert {name: len(keys) for name, keys in devices.items()} == {
        "test_flaky[1]": 1,
        "test_flaky[2]": 2,
        "test_flaky[3]": 3,
        "test_flaky[99]": 3,
        "setup": 2,
    }
    assert all(len(set(keys)) == 1 for keys in devices.values())
    assert len(beside.noted("wider")) == 3
    assert len(set(beside.noted("wider"))) == 1
    records, cases = beside.records(), beside.cases()
    assert {name: test["outcome"] for name, test in records.items()} == {
        "test_flaky[1]": "passed",
        "test_flaky[2]": "passed",
        "test_flaky[3]": "passed",
        "test_flaky[99]": "failed",
        "test_setup": "passed",
        "test_first": "passed",
        "test_again": "passed",
    }
    for name, test in records.items():
        assert test["gpu_outcome"] == "simulated"
        (device,) = test["devices"]
        (told,) = cases[name].values("gpu_device")
        assert told.startswith(device["key"])
        assert device["key"] == devices.get(name, [device["key"]])[0]
    assert beside.held() == {}


def test_a_rerun_after_a_crash(beside: Suite) -> None:
    beside.pytester.makepyfile(
        """
        import os
        import pytest
        from conftest import HERE

        pytestmark = pytest.mark.cuda(memory="40 GiB")

        def test_crashes_once(gpu):
            flag = os.path.join(HERE, "crashed")
            if not os.path.exists(flag):
                open(flag, "w").close()
                os._exit(1)

        def test_other(gpu): pass
        """
    )
    result = beside.run(
        "--reruns=1", "--gpu-report=report.json", "--junitxml=junit.xml", plugins=("rerunfailures",), workers=2
    )
    assert result.parseoutcomes()["passed"] == 2
    assert result.ret == pytest.ExitCode.OK
    records = beside.records()
    assert {name: (test["outcome"], test["devices"][0]["key"]) for name, test in records.items()} == {
        "test_crashes_once": ("passed", NVIDIA1),
        "test_other": ("passed", NVIDIA1),
    }
    cases = beside.cases()
    assert (cases["test_crashes_once"].outcome, cases["test_other"].outcome) == ("passed", "passed")
    assert beside.held() == {}


def test_a_skip_for_want_of_hardware_is_not_run_again(beside: Suite) -> None:
    beside.pytester.makepyfile(
        """
        import pytest

        @pytest.mark.cuda(count=3)
        def test_it(): pass
        """
    )
    result = beside.run("--reruns=2", "--gpu-expect-skips=1", plugins=("rerunfailures",))
    assert result.parseoutcomes() == {"skipped": 1}
    assert result.ret == pytest.ExitCode.OK
    # As a failure it is run again like any other, and is still one record.
    result = beside.run(
        "--reruns=2", "--gpu-missing=fail", "--gpu-report=report.json", plugins=("rerunfailures",), workers=2
    )
    assert result.parseoutcomes()["rerun"] == 2
    (record,) = beside.records().values()
    assert (record["outcome"], record["gpu_outcome"]) == ("error", "missing")

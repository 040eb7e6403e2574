"""Around a test: devices before timers, skips before set-up, and other plugins' ways of running tests."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.errors import GpuCoexistError
from pytest_gpucoexist.session import discovery
from pytest_gpucoexist.session.frameworks import framework_of_skip, speaks_of_gpus
from pytest_gpucoexist.session.ledger import Ledger
from tests.machines import dual, machine, nvidia

if TYPE_CHECKING:
    from collections.abc import Callable

    Session = Callable[..., pytest.RunResult]

BOTH_WAYS = pytest.mark.parametrize("way", [(), ("-n2",)], ids=["serial", "xdist"])


def test_devices_are_held_before_other_plugins_wrap_the_test_and_released_after(
    session: Session, pytester: pytest.Pytester
) -> None:
    pytester.makeconftest(
        """
        import pytest
        from pytest_gpucoexist.session.state import GPU_SESSION

        def held(item):
            return sorted(item.config.stash[GPU_SESSION].leaser.held())

        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_runtest_protocol(item):
            assert held(item) == ["0000:41:00.0"]
            result = yield
            assert held(item) == ([] if item.name == "test_one" else ["0000:41:00.0"])  # one that passed: returning
            return result

        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_teardown(item):
            result = yield
            assert held(item) == ["0000:41:00.0"]
            return result

        def pytest_runtest_logfinish(nodeid, location): pass

        @pytest.hookimpl(trylast=True)
        def pytest_sessionfinish(session):
            assert not session.config.stash[GPU_SESSION].leaser.held()
        """
    )
    pytester.makepyfile(
        """
        import pytest
        @pytest.mark.cuda
        def test_one(): pass
        @pytest.mark.cuda
        def test_two(): assert 0
        """
    )
    session("--gpu-simulate").assert_outcomes(passed=1, failed=1)


@BOTH_WAYS
def test_each_device_is_given_to_one_test_at_a_time(
    session: Session, pytester: pytest.Pytester, way: tuple[str, ...]
) -> None:
    pytester.makepyfile(
        """
        import os, pytest
        @pytest.mark.parametrize("x", range(8))
        def test_it(cuda_gpu, x):
            name = cuda_gpu.id + ".lock"
            os.close(os.open(name, os.O_CREAT | os.O_EXCL))
            os.unlink(name)
        """
    )
    session(*way, "--gpu-simulate").assert_outcomes(passed=8)


@pytest.mark.parametrize("dist", ["load", "loadscope", "loadfile", "worksteal"])
def test_distribution_modes(session: Session, pytester: pytest.Pytester, dist: str) -> None:
    pytester.makepyfile("import pytest\n@pytest.mark.parametrize('x', range(4))\ndef test_it(gpu, x): pass")
    session("-n2", f"--dist={dist}", "--gpu-simulate").assert_outcomes(passed=4)


def test_a_machine_that_cannot_be_discovered_is_a_usage_error(
    session: Session, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise GpuCoexistError("the machine is gone")

    monkeypatch.setattr(discovery, "discover_machine", fail)
    pytester.makepyfile("def test_it(gpu): pass")
    result = session(on=None)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "the machine is gone" in result.stderr.str()
    assert session("--gpu-require=cuda", on=None).ret == pytest.ExitCode.USAGE_ERROR
    assert session("--gpu-plan", on=None).ret == pytest.ExitCode.USAGE_ERROR
    # Under xdist only the workers find out that a test needs it: then the test fails with the reason.
    result = session("-n2", on=None)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*the machine is gone*"])


def test_devices_that_can_never_be_held_together_fail_the_test(session: Session, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        from pytest_gpucoexist.errors import GpuCoexistError
        from pytest_gpucoexist.session.state import GPU_SESSION
        class Nobody:
            def held(self): return {}
            def acquire(self, *args, **kwargs): raise GpuCoexistError("no two of them")
        def pytest_collection_modifyitems(config):
            config.stash[GPU_SESSION]._leaser = Nobody()
        """
    )
    pytester.makepyfile("def test_it(gpu): pass")
    result = session("--gpu-simulate", "--gpu-report=r.json")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*no two of them*"])
    (test,) = json.loads((pytester.path / "r.json").read_text())["tests"]
    assert (test["gpu_outcome"], test["reason"]) == ("busy", "no two of them")


def test_a_veto_by_a_plugin(session: Session, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import dataclasses
        def pytest_gpucoexist_machine(config, machine):
            return dataclasses.replace(machine, gpus=machine.gpus[1:])
        """
    )
    pytester.makepyfile("import pytest\ndef test_it(cuda_gpu): assert cuda_gpu.id == 'nvidia1'")
    session("--gpu-simulate").assert_outcomes(passed=1)


def test_a_test_run_again_counts_as_it_ended(session: Session, pytester: pytest.Pytester) -> None:
    # What pytest-rerunfailures does: the protocol is run again inside one call of the hook.
    pytester.makeconftest(
        """
        from _pytest.runner import runtestprotocol
        def pytest_runtest_protocol(item, nextitem):
            item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
            reports = runtestprotocol(item, nextitem=nextitem, log=False)
            if any(report.failed for report in reports):
                reports = runtestprotocol(item, nextitem=nextitem, log=False)
            for report in reports:
                item.ihook.pytest_runtest_logreport(report=report)
            item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
            return True
        """
    )
    pytester.makepyfile(
        """
        seen = []
        def test_it(gpu):
            seen.append(gpu.key)
            assert len(seen) == 2 and seen[0] == seen[1]
        """
    )
    session("--gpu-simulate", "--gpu-report=r.json", "--junitxml=j.xml").assert_outcomes(passed=1)
    (test,) = json.loads((pytester.path / "r.json").read_text())["tests"]
    assert test["outcome"] == "passed"
    assert (pytester.path / "j.xml").read_text().count('name="gpu_requirement"') == 1


def test_a_worker_that_dies_takes_nothing_with_it(session: Session, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import os, pytest
        def test_dies(cuda_gpu): os._exit(3)
        @pytest.mark.parametrize("x", range(3))
        def test_after(gpus, x): pass
        pytestmark = pytest.mark.cuda(count=2)
        """
    )
    result = session("-n2", "--gpu-simulate", "--gpu-report=r.json")
    result.assert_outcomes(passed=3, failed=1)
    tests = {
        test["nodeid"].split("::")[1]: test for test in json.loads((pytester.path / "r.json").read_text())["tests"]
    }
    assert tests["test_dies"]["outcome"] == "failed"
    assert tests["test_after[0]"]["gpu_outcome"] == "simulated"


def test_without_the_terminal_plugin(session: Session, pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import pytest\n@pytest.mark.rocm\ndef test_it(): pass")
    result = session("-p", "no:terminal", "--gpu-expect-skips=1", on=machine(nvidia()))
    assert result.ret == 0
    assert session("-p", "no:terminal", "--gpu-expect-skips=0", on=machine(nvidia())).ret == 1
    assert session("-p", "no:terminal", "--gpu-plan", on=dual()).ret == 0


def test_frameworks_in_skip_reasons() -> None:
    assert framework_of_skip("could not import 'torch.cuda': No module named 'torch'") == "torch"
    assert framework_of_skip("could not import 'numba.cuda': x") == "numba.cuda"
    assert framework_of_skip("could not import 'numba': x") is None
    assert framework_of_skip("module 'cupy' has __version__ '9.0', required is: '12'") == "cupy"
    assert framework_of_skip("needs a database") is None
    assert speaks_of_gpus("requires ROCm")
    assert speaks_of_gpus("only on multi-GPU hosts")
    assert not speaks_of_gpus("no chip, no amdahl")


def test_a_crash_report_of_xdist_is_a_failure() -> None:
    ledger = Ledger()
    ledger.add(
        pytest.TestReport("a::b", ("a", None, "a"), {}, "failed", "worker 'gw0' crashed", "???")  # type: ignore[arg-type]
    )
    (record,) = ledger.records()
    assert (record.outcome, record.gpu_outcome) == ("failed", None)
    assert ledger.hardware_skips() == {}

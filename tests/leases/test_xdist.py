"""Leases across the workers of pytest-xdist: real workers, real crashes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.machines import NVIDIA0, NVIDIA1, workstation
from tests.fixtures.running import Suite, needs_xdist

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = needs_xdist

# Every test writes when it had its devices; the times are of one clock for all processes of a machine.
RECORDER = """
import json, os, time
import pytest

@pytest.fixture
def record(request, gpus):
    start = time.monotonic_ns()
    yield
    entry = {
        "test": request.node.name, "keys": [gpu.pci_address for gpu in gpus],
        "start": start, "end": time.monotonic_ns(), "worker": os.environ.get("PYTEST_XDIST_WORKER"),
    }
    with open(os.path.join(os.path.dirname(__file__), "intervals"), "a") as file:
        file.write(json.dumps(entry) + "\\n")
"""

# Busy for a while without waiting for anything: long enough that two workers would meet.
MANY = """
    import pytest

    def work():
        return sum(n * n for n in range(60_000))

    @pytest.mark.cuda
    @pytest.mark.parametrize("n", range(12))
    def test_one(record, n): work()

    @pytest.mark.cuda(count=2)
    @pytest.mark.parametrize("n", range(4))
    def test_two(record, n): work()

    @pytest.mark.parametrize("n", range(6))
    def test_any(record, n): work()

    class TestCard:
        @pytest.mark.parametrize("n", range(4))
        def test_class(self, class_gpu, record, n): work()

    @pytest.mark.parametrize("n", range(8))
    def test_cpu(n): work()
    """


@pytest.fixture
def suite(pytester: pytest.Pytester) -> Suite:
    return Suite(pytester, conftest=RECORDER)


def intervals(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (path / "intervals").read_text().splitlines()]


def assert_exclusive(path: Path) -> None:
    last: dict[str, tuple[int, object]] = {}
    for entry in sorted(intervals(path), key=lambda each: each["start"]):  # type: ignore[arg-type,return-value]
        for key in entry["keys"]:  # type: ignore[attr-defined]
            end, test = last.get(key, (0, None))
            assert entry["start"] >= end, f"{entry['test']} and {test} had {key} at the same time"  # type: ignore[operator]
            last[key] = (entry["end"], entry["test"])  # type: ignore[assignment]


@pytest.mark.parametrize("dist", ["load", "loadscope", "worksteal", "loadfile"])
def test_one_test_at_a_time(suite: Suite, dist: str) -> None:
    suite.pytester.makepyfile(test_a=MANY, test_b=MANY)
    suite.run(f"--dist={dist}", workers=3).assert_outcomes(passed=68)
    assert len(intervals(suite.pytester.path)) == 52
    assert_exclusive(suite.pytester.path)
    assert suite.discoveries == 1


def test_each_worker_runs_everything(suite: Suite) -> None:
    suite.pytester.makepyfile(MANY)
    suite.run("--dist=each", workers=2).assert_outcomes(passed=68)
    assert_exclusive(suite.pytester.path)
    assert {entry["worker"] for entry in intervals(suite.pytester.path)} == {"gw0", "gw1"}


def test_serially(suite: Suite) -> None:
    suite.pytester.makepyfile(MANY)
    suite.run().assert_outcomes(passed=34)
    assert_exclusive(suite.pytester.path)


def test_no_gpu_test_no_discovery(suite: Suite) -> None:
    suite.pytester.makepyfile("def test_cpu(): pass")
    suite.run(workers=2).assert_outcomes(passed=1)
    assert suite.discoveries == 0


CRASH = """
    import os, signal
    import pytest

    pytestmark = pytest.mark.cuda(arch="8.9")  # one device: who does not give it back stops all the others

    def test_before(gpu): pass

    def test_crash(gpu):
        {crash}

    @pytest.mark.parametrize("n", range(6))
    def test_after(gpu, n):
        assert gpu.pci_address == "{key}"
    """


@pytest.mark.parametrize("crash", ["os._exit(1)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_crashed_worker_loses_its_devices_and_its_replacement_gets_some(suite: Suite, crash: str) -> None:
    suite.pytester.makepyfile(CRASH.format(crash=crash, key=NVIDIA0))
    result = suite.run(workers=2)
    result.assert_outcomes(passed=7, failed=1)
    result.stdout.fnmatch_lines(["*worker 'gw?' crashed while running*test_crash*"])
    assert suite.discoveries == 1


def test_crash_without_replacement(suite: Suite) -> None:
    suite.pytester.makepyfile(CRASH.format(crash="os._exit(1)", key=NVIDIA0))
    result = suite.run("--max-worker-restart=0", workers=2)
    # pytest-xdist ends the run itself; what had been handed out is still finished.
    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines(["*crashed and worker restarting disabled*"])
    assert "INTERNALERROR" not in result.stdout.str() + result.stderr.str()


def test_maxfail_ends_cleanly(suite: Suite) -> None:
    suite.pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("n", range(30))
        def test_fails(cuda_gpu, n):
            raise AssertionError
        """
    )
    result = suite.run("--maxfail=1", workers=2)
    assert result.ret in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.TESTS_FAILED)
    assert "INTERNALERROR" not in result.stdout.str() + result.stderr.str()


def test_wider_scopes_on_each_worker(suite: Suite) -> None:
    body = """
        import pytest

        @pytest.fixture(scope="module")
        def model(module_gpu):
            return module_gpu.pci_address

        @pytest.mark.cuda
        @pytest.mark.parametrize("n", range(8))
        def test_model(model, record, gpus, n):
            assert model in [gpu.pci_address for gpu in gpus]
            sum(n * n for n in range(60_000))

        @pytest.mark.cuda(count=2)
        def test_two(model, record, gpus):
            assert gpus[0].pci_address == model
        """
    suite.pytester.makepyfile(test_a=body, test_b=body)
    suite.run(workers=3).assert_outcomes(passed=18)
    assert_exclusive(suite.pytester.path)


def test_simulated_devices_are_leased_too(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMULATED", "1")
    suite.pytester.makepyfile(MANY)
    suite.run("--gpu-simulate", workers=2).assert_outcomes(passed=34)
    assert_exclusive(suite.pytester.path)


def test_unittest_on_workers(suite: Suite) -> None:
    suite.use(workstation(nvidia0={"visible": False}))
    suite.pytester.makepyfile(
        f"""
        import unittest
        import pytest
        from pytest_gpucoexist import current_gpu

        @pytest.mark.cuda
        class TestCard(unittest.TestCase):
            @classmethod
            def setUpClass(cls):
                cls.first = current_gpu()

            def test_a(self): self.assertEqual(current_gpu().pci_address, "{NVIDIA1}")
            def test_b(self): self.assertEqual(current_gpu(), self.first)
            def test_c(self): self.assertEqual(current_gpu(), self.first)
        """
    )
    suite.run(workers=2).assert_outcomes(passed=3)

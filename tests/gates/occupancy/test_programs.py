"""MPS, monitors, profilers, and busy GPUs."""

from __future__ import annotations

import pytest

from pytest_gpucoexist.testing.builder import a_machine
from tests.gates.judging import verdict, verdicts
from tests.gates.occupancy.processes import put, stat, with_processes

MACHINE = a_machine().with_gpu("rtx4090")
MPS = stat(700, "nvidia-cuda-mps")
BUSY = "/sys/bus/pci/devices/0000:03:00.0/gpu_busy_percent"
AMD = a_machine().with_gpu("rx7900xtx", address="0000:03:00.0")


@pytest.mark.proves("proc.mps", "WARN", on="tree")
def test_an_mps_server_that_nobody_declared_is_told() -> None:
    said = verdict(with_processes(MACHINE, MPS), "proc.mps")
    assert said.status == "WARN"
    assert said.reason == "MPS runs (nvidia-cuda-mps (700)), and CUDA_MPS_PIPE_DIRECTORY is not set"
    assert "echo quit" in said.action


@pytest.mark.proves("proc.mps", "PASS", on="tree")
def test_a_declared_mps_server_and_none_are_healthy() -> None:
    machine = with_processes(MACHINE, MPS).with_environ(CUDA_MPS_PIPE_DIRECTORY="/tmp/nvidia-mps")
    assert verdict(machine, "proc.mps").status == "PASS"
    assert verdict(with_processes(MACHINE), "proc.mps").reason == "MPS does not run"


@pytest.mark.proves("proc.monitors", "PASS", on="tree")
def test_monitors_are_recorded() -> None:
    said = verdict(with_processes(MACHINE, stat(33, "nv-hostengine"), stat(34, "dcgm-exporter")), "proc.monitors")
    assert said.reason == "monitors run: nv-hostengine (33), dcgm-exporter (34)"


@pytest.mark.proves("proc.monitors", "WARN", on="tree")
def test_a_profiler_is_told_unless_it_is_ours() -> None:
    said = verdict(with_processes(MACHINE, stat(33, "nv-nsight-cu-cl")), "proc.monitors")
    assert said.status == "WARN"
    assert said.reason == "profilers run: nv-nsight-cu-cl (33)"
    mine = with_processes(MACHINE, stat(850, "nsys", "S", 800)).with_file(
        "/proc/900/stat", stat(900, "pytest", "R", 850)
    )
    assert verdict(mine, "proc.monitors").status == "PASS"


@pytest.mark.proves("proc.util_idle", "WARN", on="tree")
@pytest.mark.proves("proc.util_idle", "PASS", on="tree")
def test_a_busy_amd_gpu_is_told() -> None:
    assert verdict(put(AMD, BUSY, "87\n"), "proc.util_idle").reason == "87 % busy"
    assert verdict(put(AMD, BUSY, "0\n"), "proc.util_idle").status == "PASS"


@pytest.mark.parametrize("text", ["", "-1", "101", "9" * 5000, "busy"])
def test_a_value_that_makes_no_sense_is_unknown(text: str) -> None:
    assert verdict(put(AMD, BUSY, text), "proc.util_idle").status == "UNKNOWN"


def test_a_sleeping_gpu_is_not_woken() -> None:
    asleep = a_machine().with_gpu("rx7900xtx", address="0000:03:00.0", runtime_status="suspended")
    assert verdict(put(asleep, BUSY, "87\n"), "proc.util_idle").status == "SKIP"


@pytest.mark.parametrize(("busy", "status"), [(3, "PASS"), (95, "WARN"), ("much", "UNKNOWN"), (4000, "UNKNOWN")])
def test_nvml_tells_for_nvidia(busy: object, status: str) -> None:
    machine = MACHINE.with_health("nvidia0", utilization={"gpu": busy, "memory": 0})
    (said,) = verdicts(machine, "proc.util_idle")
    assert said.status == status

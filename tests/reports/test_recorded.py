"""What is told about a record."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_gpucoexist.model.machine import Machine
from pytest_gpucoexist.reports.recorded import differences, recorded_text
from tests.reports import machines


def test_what_was_kept_and_left_out() -> None:
    machine = replace(machines.workstation(), simulated=False)
    text = recorded_text(
        machine,
        machines.workstation(),
        path="lab.tar.gz",
        size_bytes=42_000,
        paths=812,
        helpers=["nvml"],
        variables=(3, 30),
    )
    assert text.startswith("lab.tar.gz: 5 GPUs: 2 NVIDIA, 2 AMD, 1 other, 41 KiB\n  kept        812 paths that")
    assert "what nvml replied" in text
    assert "3 environment variables of GPU runtimes" in text
    assert "27 other environment variables" in text
    assert "replayed    gives the same machine" in text


def test_a_record_that_changed_something_says_so() -> None:
    machine = machines.workstation()
    lost = Machine(name="x")
    text = recorded_text(machine, lost, path="x.tar", size_bytes=1, paths=1, helpers=[], variables=(0, 0))
    assert "SIMULATED" in text
    assert "differs in its GPUs" in text
    assert "environment" not in text


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"name": "other"}, []),
        ({"numa_nodes": ()}, ["NUMA nodes"]),
        ({"runtimes": ()}, ["runtimes"]),
        (
            {"gpus": (replace(machines.workstation().gpus[0], driver="nouveau"), *machines.workstation().gpus[1:])},
            ["driver of nvidia0"],
        ),
    ],
)
def test_differences(changes: dict[str, object], found: list[str]) -> None:
    machine = machines.workstation()
    assert differences(machine, replace(machine, **changes)) == found  # type: ignore[arg-type]

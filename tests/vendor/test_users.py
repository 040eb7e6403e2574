"""Users of a fake device that live in a folder: the vendors' own clients list who lives, and count what is kept."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.host import local_host
from tests.fakes.driver import give_back, take
from tests.vendor.machines import A100, RTX_4090, W7900

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.machine import FakeMachine

GIB = 2**30


def ask(helper: str) -> Any:
    reply = local_host().ask(helper, deadline_s=60)
    assert reply.status == "ok", reply
    return reply.data["devices"]


def seen(helper: str) -> tuple[set[int], int]:
    """Return who uses device 0, and the memory in use."""
    device = ask(helper)[0]
    return {each["pid"] for each in device["processes"]["value"]}, device["memory"]["value"]["used"]


@pytest.mark.parametrize("helper", ["nvml", "nvml_users", "amdsmi"])
def test_memory_outlives_its_process(machine: FakeMachine, tmp_path: Path, helper: str) -> None:
    folder = tmp_path / "users"
    folder.mkdir()
    machine.nvidia(replace(RTX_4090, processes=(), memory_used_bytes=GIB))
    machine.amd(replace(W7900, processes=(), memory_used_bytes=GIB))
    machine.put({"nvidia.0.users": folder, "amd.0.users": folder})
    assert seen(helper) == (set(), GIB)
    take(folder, 2 * GIB)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        take(folder, 3 * GIB, child.pid)
        assert seen(helper) == ({os.getpid(), child.pid}, 6 * GIB)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert seen(helper) == ({os.getpid()}, 6 * GIB)  # a zombie has closed everything
    assert seen(helper) == ({os.getpid()}, 6 * GIB)
    give_back(folder, child.pid)
    assert seen(helper) == ({os.getpid()}, 3 * GIB)


def test_users_of_a_board_and_of_its_instances(machine: FakeMachine) -> None:
    machine.nvidia(A100)
    machine.put({"nvidia.0.mps_processes": "4242:1048576"})
    (board,) = ask("nvml_users")
    assert board["pci"]["value"]["address"].lower().endswith("c1:00.0")
    assert [each["pid"] for each in board["processes"]["value"]] == [4242]
    assert board["reserved"] == {"value": 0}
    instances = {part["uuid"]["value"]: part for part in board["parts"]}
    assert set(instances) == {each.uuid for each in A100.instances}
    busy = instances[A100.instances[0].uuid]
    assert (busy["gi"]["value"], busy["ci"]["value"]) == (2, 0)
    assert [each["pid"] for each in busy["processes"]["value"]] == [1]


def test_a_board_that_is_lost_hides_no_other(machine: FakeMachine) -> None:
    machine.nvidia(RTX_4090, replace(RTX_4090, pci_address="0000:42:00.0"))
    machine.fault("nvidia.0.nvmlDeviceGetHandleByIndex_v2", "status 15")
    first, second = ask("nvml_users")
    assert first["fault"]["detail"] == "NVML: GPU is lost"
    assert second["fault"] is None
    assert second["processes"]["value"]

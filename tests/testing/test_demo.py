"""The demo machine: what it is, that it costs nothing, and that it says that it is simulated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.host import open_recording
from pytest_gpucoexist.host.base import Host
from pytest_gpucoexist.probes import discover
from pytest_gpucoexist.testing import demo_host, demo_machine

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucoexist.model.machine import Machine


@pytest.fixture(scope="module")
def machine() -> Machine:
    return discover(demo_host(), ask=("nvidia", "amd"))


def test_two_nvidia_behind_a_switch_one_amd_an_igpu_and_a_bmc(machine: Machine) -> None:
    assert [(gpu.vendor, gpu.kind, gpu.numa_node) for gpu in machine.gpus] == [
        ("nvidia", "discrete", 0),
        ("nvidia", "discrete", 0),
        ("amd", "integrated", 0),
        ("other", "bmc", 0),
        ("amd", "discrete", 1),
    ]
    first, second = machine.gpus[:2]
    assert first.upstream is not None
    assert second.upstream is not None
    assert len(first.upstream) == 3
    assert first.upstream[:2] == second.upstream[:2]
    assert first.upstream[2] != second.upstream[2]


def test_each_vendor_is_usable_and_the_bmc_is_not(machine: Machine) -> None:
    assert [(gpu.usable.cuda, gpu.usable.rocm) for gpu in machine.gpus] == [
        (True, False),
        (True, False),
        (False, True),
        (False, False),
        (False, True),
    ]
    assert [gpu.arch for gpu in machine.gpus] == ["8.9", "8.9", "gfx1103", None, "gfx1100"]


def test_it_says_that_it_is_simulated_and_nothing_disagrees(machine: Machine) -> None:
    assert machine.simulated
    assert machine.name == "demo"
    assert machine.conflicts == ()
    assert machine.notes == ()
    assert all(gpu.visible and gpu.granted for gpu in machine.gpus)


def test_numa_nodes_and_drivers(machine: Machine) -> None:
    assert [(node.id, node.cpulist, node.memory_bytes, node.distances) for node in machine.numa_nodes] == [
        (0, "0-7", 64 * 2**30, (10, 21)),
        (1, "8-15", 64 * 2**30, (21, 10)),
    ]
    assert {driver.name for driver in machine.drivers} == {"nvidia", "amdgpu"}


def test_files_alone_tell_the_same_gpus() -> None:
    machine = discover(demo_host())
    assert [gpu.name for gpu in machine.gpus if gpu.vendor == "nvidia"] == [
        "NVIDIA GeForce RTX 4090",
        "NVIDIA RTX 6000 Ada Generation",
    ]
    assert [gpu.usable.cuda or gpu.usable.rocm for gpu in machine.gpus] == [True, True, True, False, True]


def test_a_host_in_memory_a_folder_and_an_archive_are_one_machine(machine: Machine, tmp_path: Path) -> None:
    built = demo_machine()
    assert isinstance(built.host(), Host)
    for path in (built.write_tree(str(tmp_path / "demo")), built.write_archive(str(tmp_path / "demo.tar.xz"))):
        replayed = discover(open_recording(path), ask=("nvidia", "amd"))
        assert json.dumps(replayed.to_json()) == json.dumps(machine.to_json())


def test_importing_it_loads_nothing_heavy_and_no_test_framework() -> None:
    code = (
        "import sys; from pytest_gpucoexist.testing import demo_host; demo_host();"
        "print(sorted({'pytest', 'ctypes', 'multiprocessing', 'tarfile', 'rich', 'numpy'} & set(sys.modules)))"
    )
    environ = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environ)
    assert done.stdout.strip() == "[]"

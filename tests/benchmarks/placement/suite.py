"""Write the test suite of a workload: files of sleeping tests, what each needs, and the machine that they run on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.probes import discover
from pytest_gpucoexist.testing import a_machine
from tests.benchmarks.placement.workload import ANY

if TYPE_CHECKING:
    from pytest_gpucoexist.model.machine import Gpu
    from pytest_gpucoexist.testing.builder import MachineBuilder
    from tests.benchmarks.placement.workload import Case, Module, Workload

__all__ = ["MACHINE", "devices_of", "write_suite"]

MACHINE = "machine.tar.gz"
GIB = 2**30

_HEAD = """import time

import pytest

"""

_TESTS = """

@pytest.mark.parametrize("seconds", CASES)
def test_it(devices, seconds):
    time.sleep(seconds)
"""

_TESTS_WITH_MODEL = """

@pytest.fixture(scope="module")
def model(module_device, load):
    load({setup_seconds})


@pytest.mark.parametrize("seconds", CASES)
def test_it(model, seconds):
    time.sleep(seconds)
"""

_MARKS = {"nvidia": "cuda", "amd": "rocm", ANY: "gpu"}


def devices_of(workload: Workload) -> tuple[Gpu, ...]:
    """Return the devices as the machine has them."""
    return discover(_built(workload).host(), ask=("amd", "nvidia")).gpus


def write_suite(workload: Workload, folder: Path) -> None:
    """Write everything into a folder that is there."""
    _built(workload).write_archive(str(folder / MACHINE))
    shutil.copy(Path(__file__).with_name("holding.py"), folder / "conftest.py")
    lines = ["[pytest]", "markers =", *(f"    {name}: of pytest-gpucoexist" for name in ("isolate",))]
    (folder / "pytest.ini").write_text("\n".join(lines) + "\n", encoding="utf-8")
    needs: dict[str, dict[str, Any]] = {}
    for module in workload.modules:
        (folder / f"{module.name}.py").write_text(_module(module), encoding="utf-8")
        needs |= {case.nodeid: {"devices": case.needs, "memory_gib": case.memory_gib} for case in module.cases}
        if module.setup_seconds:
            needs = {name: need for name, need in needs.items() if not name.startswith(f"{module.name}.py::")}
            needs[f"{module.name}.py"] = {"devices": module.cases[0].needs, "memory_gib": None}
    devices = [
        {"key": gpu.pci_address, "vendor": gpu.vendor, "memory_gib": (gpu.memory_total_bytes or 0) / GIB}
        for gpu in devices_of(workload)
    ]
    (folder / "suite.json").write_text(json.dumps({"needs": needs, "devices": devices}), encoding="utf-8")


def _built(workload: Workload) -> MachineBuilder:
    machine = a_machine(f"placement-{workload.name}").with_numa_nodes(1, cpus=16)
    for model in workload.devices:
        machine = machine.with_gpu(model)
    return machine


def _module(module: Module) -> str:
    cases = "".join(
        f'    pytest.param({case.seconds}, id="{case.nodeid[-4:-1]}", marks=pytest.mark.{_mark(case)}),\n'
        for case in module.cases
    )
    tests = _TESTS_WITH_MODEL.format(setup_seconds=module.setup_seconds) if module.setup_seconds else _TESTS
    return f"{_HEAD}CASES = [\n{cases}]\n{tests}"


def _mark(case: Case) -> str:
    memory = [] if case.memory_gib is None else [f'memory="{case.memory_gib:g} GiB"']
    if len(case.needs) > 1:
        return f"cross_vendor({', '.join(memory)})"
    ((vendor, count),) = case.needs
    return f"{_MARKS[vendor]}({', '.join([*([f'count={count}'] if count > 1 else []), *memory])})"

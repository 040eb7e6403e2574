"""A test's devices, and nothing else: in the environment that it is given, and in the process of a vendor."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.hardware.asking import FOREIGN, RUNTIMES, said_by
from tests.hardware.oracles import devices_of, mapped_libraries, slot

if TYPE_CHECKING:
    from pytest_gpucoexist.model.machine import Gpu

pytestmark = pytest.mark.hardware


def _slots(*gpus: Gpu) -> list[str]:
    return [slot(gpu.pci_address) for gpu in gpus if gpu.pci_address]


def _own_devices() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # that of the listing
            continue
        if re.fullmatch(r"/dev/(nvidia\d+|nvidia-uvm|kfd)", path):
            found.append(path)
    return found


def test_the_environment_shows_the_leased_device_alone(each_gpu: Gpu, gpu_env: dict[str, str]) -> None:
    for vendor, runtime in RUNTIMES.items():
        expected = _slots(each_gpu) if vendor == each_gpu.vendor else []
        assert said_by(runtime, gpu_env) == expected, runtime


@pytest.mark.parametrize(
    "vendor", [pytest.param(vendor, marks=pytest.mark.gpu(vendor=vendor, count=2)) for vendor in RUNTIMES]
)
def test_the_environment_shows_two_in_the_order_of_the_lease(
    gpus: tuple[Gpu, ...], gpu_env: dict[str, str], vendor: str
) -> None:
    assert sorted(said_by(RUNTIMES[vendor], gpu_env)) == sorted(_slots(*gpus))


def test_a_process_sees_the_leased_device_alone(each_gpu: Gpu, gpu_process: Any) -> None:
    before = _own_devices()
    process = gpu_process(each_gpu)
    assert process.run(devices_of, RUNTIMES[each_gpu.vendor]) == _slots(each_gpu)
    assert process.run(mapped_libraries, FOREIGN[each_gpu.vendor]) == []
    assert _own_devices() == before


def test_two_vendors_have_two_processes(gpu_pair: tuple[Gpu, Gpu], gpu_process: Any) -> None:
    processes = [gpu_process(gpu) for gpu in gpu_pair]
    for gpu, process in zip(gpu_pair, processes, strict=True):
        assert process.run(devices_of, RUNTIMES[gpu.vendor]) == _slots(gpu)
    for gpu, process in zip(gpu_pair, processes, strict=True):
        assert process.run(mapped_libraries, FOREIGN[gpu.vendor]) == []
    assert len({process.run(os.getpid) for process in processes} | {os.getpid()}) == 3

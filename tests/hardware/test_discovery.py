"""What was discovered is what the drivers say: NVML, and the runtimes' own counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.hardware.asking import RUNTIMES, said_by
from tests.hardware.oracles import slot

if TYPE_CHECKING:
    from pytest_gpucoexist.model.machine import Gpu, Machine
    from tests.hardware.measured import Numbers

pytestmark = pytest.mark.hardware


@pytest.mark.cuda
def test_nvml_says_the_same(gpu_machine: Machine, gpu: Gpu, numbers: Numbers) -> None:
    said = {each["slot"]: each for each in said_by("nvml")}
    found = {
        slot(gpu.pci_address): gpu
        for gpu in gpu_machine.gpus
        if gpu.vendor == "nvidia" and gpu.pci_address and gpu.granted and gpu.partition is None
    }
    assert set(said) == set(found)
    for address, ours in found.items():
        theirs = said[address]
        assert (ours.uuid, ours.arch) == (theirs["uuid"], theirs["arch"])
        # One source may round to MiB, or leave out what the driver keeps for itself.
        assert ours.memory_total_bytes == pytest.approx(theirs["memory_bytes"], rel=0.03)
    numbers.add(devices=[{"name": each["name"], "memory_bytes": each["memory_bytes"]} for each in said.values()])


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_the_runtime_counts_the_same(gpu_machine: Machine, vendor: str, numbers: Numbers) -> None:
    field = {"nvidia": "cuda", "amd": "rocm"}[vendor]
    usable = [gpu for gpu in gpu_machine.gpus if getattr(gpu.usable, field) and gpu.visible and gpu.pci_address]
    if not usable:
        pytest.skip(f"needs a real {'NVIDIA' if vendor == 'nvidia' else 'AMD'} GPU")
    if any(gpu.partition for gpu in usable):
        pytest.skip("the devices are partitioned: a process counts one of them")
    counted = said_by(RUNTIMES[vendor])
    assert sorted(counted) == sorted(slot(gpu.pci_address) for gpu in usable if gpu.pci_address)
    numbers.add(count=len(counted))

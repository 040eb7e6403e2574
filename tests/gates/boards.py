"""Machines whose vendor libraries are the real clients on fake drivers, and the files of the same GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.probes import discover
from pytest_gpucoexist.testing.builder import MachineBuilder, a_machine
from tests.vendor.hosts import asking_here
from tests.vendor.machines import A100, MI210, RTX_4090, W7900

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucoexist.host.base import Host

__all__ = ["DEADLINE_S", "FILES", "FIRST", "SECOND", "asked_here", "files_of", "folder_of", "with_files"]

DEADLINE_S = 60.0
"""Of the helpers: a busy computer is no fault."""

FIRST, SECOND = RTX_4090.pci_address, A100.pci_address


def files_of(*, nvidia: bool = True, amd: bool = False) -> MachineBuilder:
    """Build what the kernel shows of the GPUs that `tests.vendor.machines` describes to the fakes."""
    machine = a_machine()
    if nvidia:
        machine = machine.with_gpu("rtx4090", address=FIRST).with_gpu("a100", address=SECOND)
    if amd:
        machine = machine.with_gpu("rx7900xtx", address=W7900.pci_address).with_gpu("mi210", address=MI210.pci_address)
    return machine


FILES = files_of()


def asked_here(files: MachineBuilder = FILES) -> Host:
    """Return a live host with these files, whose helpers are processes of this computer."""
    return asking_here(files.host())


def folder_of(machine: MachineBuilder, gpu: str) -> str:
    """Return the folder in sysfs of a GPU, named by its id or its address, without links."""
    host = machine.host()
    found = discover(host).gpu(gpu)
    assert found is not None, gpu
    return host.resolve(f"/sys/bus/pci/devices/{found.pci_address}")


def with_files(machine: MachineBuilder, gpu: str, files: Mapping[str, str]) -> MachineBuilder:
    """Put files into a GPU's folder, over those that are there."""
    folder = folder_of(machine, gpu)
    for name, text in files.items():
        machine = machine.with_file(f"{folder}/{name}", text)
    return machine

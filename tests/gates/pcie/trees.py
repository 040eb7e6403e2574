"""Files of PCI functions in machines that are built, and configuration spaces as the hardware has them."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from pytest_gpucoexist.probes import discover
from pytest_gpucoexist.probes.pci import BUS

if TYPE_CHECKING:
    from pytest_gpucoexist.testing.builder import MachineBuilder

__all__ = ["address_of", "folder_of", "port_of", "put", "space"]

TYPES = {"endpoint": 0, "legacy": 1, "root": 4, "upstream": 5, "downstream": 6, "bridge": 7}


def address_of(machine: MachineBuilder, gpu: str) -> str:
    """The PCI address of a GPU by its id."""
    found = discover(machine.host()).gpu(gpu)
    assert found is not None
    assert found.pci_address is not None
    return found.pci_address


def port_of(machine: MachineBuilder, gpu: str, number: int = 0) -> str:
    """The address of a bridge above a GPU, counted from the root port."""
    found = discover(machine.host()).gpu(gpu)
    assert found is not None
    assert found.upstream is not None
    return found.upstream[number]


def folder_of(machine: MachineBuilder, who: str) -> str:
    """The folder of a function, named by its address or by a GPU's id, in /sys/devices."""
    address = who if ":" in who else address_of(machine, who)
    return machine.host().resolve(f"{BUS}/{address}")


def put(machine: MachineBuilder, who: str, name: str, content: str | bytes) -> MachineBuilder:
    """Put a file into the folder of a function."""
    return machine.with_file(f"{folder_of(machine, who)}/{name}", content)


def space(
    *,
    ids: tuple[int, int] = (0x10DE, 0x2684),
    kind: str = "endpoint",
    version: int = 2,
    payload_code: int = 1,
    supported_code: int = 2,
    read_code: int = 2,
    device_status: int = 0,
    capabilities2: int = 0,
    control2: int = 0,
    aer: tuple[int, int, int] | None = (0, 0, 0),
    acs: int | None = None,
    size: int = 4096,
) -> bytes:
    """A configuration space: PCI Express at 0x60 (behind power management at 0x40), AER at 0x100, ACS at 0x148.

    `aer` is uncorrectable status, mask, correctable status; codes of sizes are powers of two over 128 bytes.
    """
    data = bytearray(4096)
    struct.pack_into("<HHHH", data, 0, *ids, 0x0406, 0x0010)
    data[0x0E] = 0 if kind in {"endpoint", "legacy"} else 1
    data[0x34] = 0x40
    struct.pack_into("<BBH", data, 0x40, 0x01, 0x60, 0x0003)
    struct.pack_into("<BBH", data, 0x60, 0x10, 0x00, TYPES[kind] << 4 | version)
    struct.pack_into("<I", data, 0x64, supported_code)
    struct.pack_into("<HH", data, 0x68, payload_code << 5 | read_code << 12, device_status)
    struct.pack_into("<IH", data, 0x84, capabilities2, control2)
    follows = 0x148 if acs is not None else 0
    # An empty first capability keeps the place of the list's head.
    header = (0x0001 if aer is not None else 0x0003) | 2 << 16 | follows << 20
    struct.pack_into("<I", data, 0x100, header)
    if aer is not None:
        uncorrectable, mask, correctable = aer
        struct.pack_into("<II", data, 0x104, uncorrectable, mask)
        struct.pack_into("<I", data, 0x110, correctable)
    if acs is not None:
        struct.pack_into("<I", data, 0x148, 0x000D | 1 << 16)
        struct.pack_into("<HH", data, 0x14C, 0x005F, acs)
    return bytes(data[:size])

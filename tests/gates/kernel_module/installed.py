"""Machines with driver software installed, and files of kernel modules as the kernel's build makes them."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from pytest_gpucoexist.testing.builder import a_machine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucoexist.testing.builder import MachineBuilder

__all__ = [
    "CMDLINE",
    "DEP",
    "KERNEL",
    "LIB",
    "SIGNATURE",
    "a_module",
    "booted_with",
    "folder_of",
    "wanting",
    "with_modules",
]

KERNEL = "6.8.0-60-generic"
FOLDER = f"/lib/modules/{KERNEL}"
DEP = f"{FOLDER}/modules.dep"
CMDLINE = "/proc/cmdline"
LIB = "/usr/lib/x86_64-linux-gnu"
SIGNATURE = b"~Module signature appended~\n"


def wanting(*models: str) -> MachineBuilder:
    """A workstation with these GPUs and the driver software of all three vendors."""
    machine = a_machine()
    for model in models:
        machine = machine.with_gpu(model)
    return (
        machine.with_file(f"{LIB}/libcuda.so.570.133.07", b"\x7fELF")
        .with_link(f"{LIB}/libcuda.so.1", "libcuda.so.570.133.07")
        .with_file("/opt/rocm/.info/version", "6.4.1-83\n")
        .with_file(f"{LIB}/libze_loader.so.1", b"\x7fELF")
    )


def with_modules(machine: MachineBuilder, files: Mapping[str, bytes]) -> MachineBuilder:
    """Install modules by their paths below /lib/modules/RELEASE, with the modules.dep that depmod writes."""
    lines = "".join(f"{path}:\n" for path in files)
    machine = machine.with_file(DEP, lines).with_file(f"{FOLDER}/modules.builtin", "kernel/drivers/pci/pcieport.ko\n")
    for path, content in files.items():
        machine = machine.with_file(f"{FOLDER}/{path}", content)
    return machine


def folder_of(machine: MachineBuilder, address: str) -> str:
    """Return where the files of a PCI function really stand; /sys/bus/pci/devices has links."""
    return machine.host().resolve(f"/sys/bus/pci/devices/{address}")


def booted_with(machine: MachineBuilder, *arguments: str) -> MachineBuilder:
    """Give the kernel more arguments."""
    return machine.with_file(CMDLINE, f"BOOT_IMAGE=/boot/vmlinuz-{KERNEL} ro quiet {' '.join(arguments)}\n")


def a_module(name: str, *, vermagic: str = KERNEL, signed: bool = False, bits: int = 64, **fields: str) -> bytes:
    """Make a relocatable ELF file with the section .modinfo of a module; fields as modpost writes them."""
    fields = {"license": "GPL", **fields, "name": name, "vermagic": f"{vermagic} SMP preempt mod_unload modversions "}
    info = b"".join(f"{key}={value}\0".encode() for key, value in fields.items())
    names = b"\0.shstrtab\0.text\0.modinfo\0"
    text = b"\x90" * 64
    wide = bits == 64
    head, entry = (64, 64) if wide else (52, 40)
    place = head + len(names) + len(text) + len(info)
    ident = b"\x7fELF" + bytes([2 if wide else 1, 1, 1]) + bytes(9)
    header = struct.pack(
        "<HHIQQQIHHHHHH" if wide else "<HHIIIIIHHHHHH", 1, 62, 1, 0, 0, place, 0, head, 0, 0, entry, 4, 1
    )
    sections = [
        (0, 0, 0, 0),
        (names.index(b".shstrtab"), 3, head, len(names)),
        (names.index(b".text"), 1, head + len(names), len(text)),
        (names.index(b".modinfo"), 1, head + len(names) + len(text), len(info)),
    ]
    table = b"".join(
        struct.pack("<IIQQQQIIQQ" if wide else "<IIIIIIIIII", name_at, kind, 0, 0, offset, size, 0, 0, 1, 0)
        for name_at, kind, offset, size in sections
    )
    return ident + header + names + text + info + table + (b"signature" + SIGNATURE if signed else b"")

"""Recorded trees on disk, for programs that read a folder in place of `/sys`."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_gpucoexist.host import open_recording
from pytest_gpucoexist.model.machine import Machine
from pytest_gpucoexist.probes import discover

__all__ = ["PCI_TREES", "Tree", "command", "program", "unpack"]

PCI_TREES = (
    "ghw/ghw-accel.tar.xz",
    "ghw/ghw-alderlake-igpu.tar.xz",
    "ghw/ghw-ryzen1600-turks.tar.xz",
    "ghw/ghw-xeon-l5640-matrox.tar.xz",
    "hwloc/linux/2pa-pcidomain32bits.tar.xz",
    "hwloc/linux/32em64t-2n8c+dax+nvme+mic+dimms.tar.xz",
    "hwloc/linux/32intel64-2p8co2t+8ve.tar.xz",
    "hwloc/linux/40intel64-4n10c+pci-conflicts.tar.xz",
    "hwloc/linux/fakepcilocalities.tar.xz",
    "vm-2node-switch.tar.gz",
)
"""Every recording of a whole machine whose PCI functions have their ids (the others keep no `vendor`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """An unpacked recording: `root` holds `sys`, `machine` is what we say about it."""

    root: Path
    machine: Machine

    @property
    def bus(self) -> Path:
        return self.root / "sys/bus/pci"

    def leads_somewhere(self, address: str | None, link: str) -> bool:
        """Whether a link of a function ends at something that was recorded."""
        return (self.bus / "devices" / (address or "") / link).exists()

    def has_config(self, *addresses: str) -> bool:
        """Whether the standard header of the configuration space was recorded for these functions."""
        files = [self.bus / "devices" / address / "config" for address in addresses]
        return all(file.is_file() and file.stat().st_size >= 64 for file in files)


def unpack(archive: Path, folder: Path) -> Tree:
    """Unpack a recording and discover it."""
    # The program takes a tenth of the time of Python's module, and leaves out absolute paths and `..` as well.
    command(program("tar", "tar"), "-xf", str(archive), "-C", str(folder))
    root = next(path.parent for path in (folder / "sys", *folder.glob("*/sys")) if path.is_dir())
    return Tree(root=root, machine=discover(open_recording(str(root))))


def program(name: str, package: str) -> str:
    """Find a program; skip, naming the package, where there is none."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"needs {name}: apt-get install {package}")
    return path


def command(*argv: str) -> str:
    """Run a program and return what it printed; what it could not read it says on stderr."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout

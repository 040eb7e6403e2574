"""The guest's kernel, by its files and tools."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "BUS",
    "RADEON0",
    "RADEON1",
    "RTX0",
    "RTX1",
    "RTX2",
    "VIRTIO",
    "address",
    "driver_of",
    "kernel_log",
    "nvidia_minor",
    "present",
    "read",
    "run",
    "wait_for",
    "write",
]

BUS = "/sys/bus/pci/devices"

# Where firmware and kernel number the slots of `hardware/topology.py`.
RTX0, RTX1, RTX2 = "0000:43:00.0", "0000:44:00.0", "0000:83:00.0"
RADEON0, RADEON1 = "0000:81:00.0", "0000:82:00.0"
VIRTIO = "0000:45:00.0"


def run(*argv: str, check: bool = True, timeout_s: float = 120.0, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a program with more environment. Fails when it fails, unless `check` is False."""
    done = subprocess.run(
        argv, capture_output=True, text=True, check=False, timeout=timeout_s, env={**os.environ, **environ}
    )
    assert not check or done.returncode == 0, f"{argv}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def read(path: str) -> str:
    """Return a file's text without its last newline."""
    with open(path, encoding="utf-8") as file:
        return file.read().rstrip("\n")


def write(path: str, text: str) -> None:
    """Write to a file of the kernel in one call. Raises the kernel's OSError."""
    file = os.open(path, os.O_WRONLY)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)


def present(pci_address: str) -> bool:
    """Whether the kernel lists a function."""
    return os.path.isdir(f"{BUS}/{pci_address}")


def driver_of(pci_address: str) -> str | None:
    """Return the driver that holds a function."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.basename(os.readlink(f"{BUS}/{pci_address}/driver"))
    return None


def nvidia_minor(pci_address: str) -> int:
    """Return N of the node `/dev/nvidiaN` of a GPU that the driver holds."""
    information = read(f"/proc/driver/nvidia/gpus/{pci_address}/information")
    return int(information.partition("Device Minor:")[2].split()[0])


def address(card: str) -> str:
    """Return the PCI address of a DRM card."""
    return os.path.basename(os.path.realpath(f"/sys/class/drm/{card}/device"))


def kernel_log() -> str:
    """Return what the kernel has logged since boot."""
    return run("dmesg").stdout


def wait_for(holds: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    """Wait until the kernel has done something that it does in its own time; fail when it does not."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"waited {seconds:g} s for {what}"
        time.sleep(0.1)

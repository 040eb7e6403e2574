"""Load and unload drivers, with the device nodes that udev and nvidia-modprobe would make for them."""

from __future__ import annotations

import glob
import os
import re
import stat

from tests.vm.guest.system import BUS, driver_of, read, run

__all__ = ["RENDER", "USUAL", "VIDEO", "load", "loaded", "unload_all"]

VIDEO, RENDER = 44, 105

USUAL = ("nvidia", "nvidia-uvm", "amdgpu")

_DRIVERS = {"0x10de": "nvidia", "0x1002": "amdgpu"}
_IN_FORCE: list[str] = []
"""What `load` loaded last."""

_OURS = ("nouveau", "nvidia_uvm", "nvidia", "amdgpu", "radeon", "vfio_pci", "pci_stub", "virtio_gpu")


def loaded() -> list[str]:
    """Return the names of loaded modules."""
    return [line.split()[0] for line in read("/proc/modules").splitlines()]


def load(*modules: str) -> None:
    """Have these modules loaded in this order and each GPU held by its driver, with device nodes; default: `USUAL`.

    What is so already stays: in an emulated processor a driver needs a second to come and one to go.
    """
    wanted = modules or USUAL
    if list(wanted) != _IN_FORCE or not _all_bound():
        unload_all()
        for module in wanted:
            run("modprobe", module)
        _IN_FORCE.extend(wanted)
    make_nodes()


def _all_bound() -> bool:
    """Whether each GPU of a vendor whose driver is loaded is held by it."""
    for slot in os.listdir(BUS):
        driver = _DRIVERS.get(read(f"{BUS}/{slot}/vendor"))
        display = read(f"{BUS}/{slot}/class").startswith("0x03")
        if display and driver in _IN_FORCE and driver_of(slot) != driver:
            return False
    return True


def unload_all() -> None:
    """Unload every driver that tests load, and remove the nodes that the kernel does not remove."""
    _IN_FORCE.clear()
    for module in _OURS:
        if module in loaded():
            run("modprobe", "-r", module)
    for path in glob.glob("/dev/nvidia*"):
        os.unlink(path)


def make_nodes() -> None:
    """Make nodes as nvidia-modprobe does, and give DRM's and KFD's to their groups as Debian's udev rules do."""
    majors = {name: int(major) for major, name in re.findall(r"^ *(\d+) (\S+)$", read("/proc/devices"), re.MULTILINE)}
    if "nvidia" in loaded():
        _node("/dev/nvidiactl", 195, 255)
        for number in range(len(glob.glob("/proc/driver/nvidia/gpus/*"))):
            _node(f"/dev/nvidia{number}", 195, number)
    if "nvidia-uvm" in majors:
        _node("/dev/nvidia-uvm", majors["nvidia-uvm"], 0)
    for pattern, group in (("/dev/dri/card*", VIDEO), ("/dev/dri/renderD*", RENDER), ("/dev/kfd", RENDER)):
        for path in glob.glob(pattern):
            os.chown(path, 0, group)
            os.chmod(path, 0o660)


def _node(path: str, major: int, minor: int) -> None:
    if not os.path.exists(path):
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))
        os.chmod(path, 0o666)

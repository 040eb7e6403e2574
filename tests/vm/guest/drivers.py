"""Load and unload drivers, with the device nodes that udev and nvidia-modprobe would make for them."""

from __future__ import annotations

import glob
import os
import re
import stat

from tests.vm.guest.system import read, run

__all__ = ["RENDER", "VIDEO", "load", "loaded", "unload_all"]

VIDEO, RENDER = 44, 105

_OURS = ("nouveau", "nvidia_uvm", "nvidia", "amdgpu", "radeon", "vfio_pci", "pci_stub", "virtio_gpu")


def loaded() -> list[str]:
    """Return the names of loaded modules."""
    return [line.split()[0] for line in read("/proc/modules").splitlines()]


def load(*modules: str) -> None:
    """Load modules in this order, then make their nodes."""
    for module in modules:
        run("modprobe", module)
    make_nodes()


def unload_all() -> None:
    """Unload every driver that tests load, and remove the nodes that the kernel does not remove."""
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

"""Trees of `/sys` made in code, with the texts that a kernel prints."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, cast

from pytest_gpucoexist.host.replay import ReplayHost
from pytest_gpucoexist.host.tree import MemoryTree

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucoexist.host.base import Host

__all__ = ["GPU_FILES", "SysfsWriter", "Watched", "a_workstation", "as_host", "host_of", "watched"]

# An RTX 4090 in a slot of Gen4 x16; `resource` has a 16 MiB, a 32 GiB and a 32 MiB memory BAR and 128 I/O ports.
GPU_FILES = {
    "vendor": "0x10de",
    "device": "0x2684",
    "class": "0x030000",
    "subsystem_vendor": "0x10de",
    "subsystem_device": "0x16f4",
    "numa_node": "0",
    "local_cpulist": "0-7",
    "local_cpus": "000000ff",
    "current_link_speed": "16.0 GT/s PCIe",
    "current_link_width": "16",
    "max_link_speed": "16.0 GT/s PCIe",
    "max_link_width": "16",
    "boot_vga": "1",
    "power/runtime_status": "active",
    "resource": """0x00000000f6000000 0x00000000f6ffffff 0x0000000000040200
0x0000006000000000 0x00000067ffffffff 0x000000000014220c
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x0000006800000000 0x0000006801ffffff 0x000000000014220c
0x0000000000000000 0x0000000000000000 0x0000000000000000
0x000000000000e000 0x000000000000e07f 0x0000000000040101
0x00000000f7000000 0x00000000f707ffff 0x0000000000046200""",
}

BRIDGE_FILES = {
    "vendor": "0x1022",
    "device": "0x14ab",
    "class": "0x060400",
    "current_link_speed": "16.0 GT/s PCIe",
    "current_link_width": "16",
    "max_link_speed": "32.0 GT/s PCIe",
    "max_link_width": "16",
    "power/runtime_status": "active",
}


class SysfsWriter:
    """Writes PCI functions the way the kernel shows them."""

    def __init__(self) -> None:
        self.tree = MemoryTree()
        self.tree.add_dir("/sys/bus/pci/devices")
        self.tree.add_dir("/sys/devices/system")

    def function(
        self, path: str, files: Mapping[str, str], *, driver: str | None = None, group: int | None = None
    ) -> None:
        """Add the function whose folder is `/sys/devices/<path>`, with its link in the bus folder."""
        folder = f"/sys/devices/{path}"
        self.tree.add_dir(folder)
        for name, text in files.items():
            self.tree.add_file(f"{folder}/{name}", f"{text}\n".encode())
        up = "../" * (path.count("/") + 2)
        if driver is not None:
            self.tree.add_link(f"{folder}/driver", f"{up}bus/pci/drivers/{driver}")
        if group is not None:
            self.tree.add_link(f"{folder}/iommu_group", f"{up}kernel/iommu_groups/{group}")
        self.tree.add_link(f"/sys/bus/pci/devices/{path.rpartition('/')[2]}", f"../../../devices/{path}")

    def node(self, number: int, cpulist: str) -> None:
        """Add a NUMA node."""
        self.tree.add_file(f"/sys/devices/system/node/node{number}/cpulist", f"{cpulist}\n".encode())


def host_of(tree: MemoryTree, name: str = "sample") -> ReplayHost:
    """Return the machine with this tree and nothing else."""
    return ReplayHost(tree, name=name)


def a_workstation() -> SysfsWriter:
    """Two NVIDIA GPUs behind a switch on node 0, an AMD GPU on node 1, and an Intel one on the root bus."""
    writer = SysfsWriter()
    writer.node(0, "0-7")
    writer.node(1, "8-15")
    switch = "pci0000:40/0000:40:01.1/0000:41:00.0"
    for path in ("pci0000:40/0000:40:01.1", switch, f"{switch}/0000:42:00.0", f"{switch}/0000:42:01.0"):
        writer.function(path, BRIDGE_FILES, driver="pcieport")
    writer.function(f"{switch}/0000:42:00.0/0000:43:00.0", GPU_FILES, driver="nvidia", group=15)
    trained_down = {"boot_vga": "0", "current_link_speed": "2.5 GT/s PCIe", "current_link_width": "4"}
    writer.function(f"{switch}/0000:42:01.0/0000:44:00.0", GPU_FILES | trained_down, driver="nvidia", group=16)
    writer.function("pci0000:80/0000:80:03.1", BRIDGE_FILES, driver="pcieport")
    amd = {"vendor": "0x1002", "device": "0x744c", "subsystem_vendor": "0x1da2", "subsystem_device": "0xe471"}
    node1 = {"numa_node": "1", "local_cpulist": "8-15", "local_cpus": "0000ff00", "boot_vga": "0"}
    writer.function("pci0000:80/0000:80:03.1/0000:81:00.0", GPU_FILES | amd | node1, driver="amdgpu", group=30)
    intel = {"vendor": "0x8086", "device": "0xa780", "subsystem_vendor": "0x1043", "subsystem_device": "0x8882"}
    writer.function("pci0000:00/0000:00:02.0", GPU_FILES | intel | {"boot_vga": "0"}, driver="i915", group=0)
    writer.function("pci0000:00/0000:00:1f.6", {"class": "0x020000", "vendor": "0x8086", "device": "0x1a1d"})
    return writer


class Watched:
    """A host that notes what is read, and fails where it is told to. Everything else is the inner host's."""

    def __init__(self, inner: Host, *, errors: Mapping[str, int] | None = None, platform: str = "linux") -> None:
        self._inner = inner
        self._errors = errors or {}
        self.platform = platform
        self.reads: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _watch(self, path: str) -> None:
        self.reads.append(path)
        code = self._errors.get(path)
        if code is not None:
            raise OSError(code, os.strerror(code), path)

    def read_text(self, path: str, limit: int = 65536) -> str:
        self._watch(path)
        return self._inner.read_text(path, limit)

    def read_bytes(self, path: str, limit: int = 65536) -> bytes:
        self._watch(path)
        return self._inner.read_bytes(path, limit)

    def list_dir(self, path: str) -> list[str]:
        self._watch(path)
        return self._inner.list_dir(path)

    def read_link(self, path: str) -> str:
        self._watch(path)
        return self._inner.read_link(path)

    def resolve(self, path: str) -> str:
        self._watch(path)
        return self._inner.resolve(path)


def watched(tree: MemoryTree, *, errors: Mapping[str, int] | None = None, platform: str = "linux") -> Watched:
    """Watch the machine with this tree."""
    return Watched(host_of(tree), errors=errors, platform=platform)


def as_host(watching: Watched) -> Host:
    """Tell the type checker that it is a Host: the rest of the protocol is delegated."""
    return cast("Host", watching)

"""The rest of a built machine: NUMA nodes, CPUs, memory, modules, the kernel's release, installed packages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.testing.pcitree import cpulist, cpumap, link, put

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpucoexist.host.tree import MemoryTree
    from pytest_gpucoexist.testing.catalogue import GpuModel
    from pytest_gpucoexist.testing.parts import MachineParts

__all__ = ["SITE_PACKAGES", "write_distribution", "write_pci_ids", "write_system"]

SITE_PACKAGES = "/opt/venv/lib/python3.12/site-packages"
_NODES = "/sys/devices/system/node"
_CPUS = "/sys/devices/system/cpu"
_VENDOR_NAMES = {
    "0x1002": "Advanced Micro Devices, Inc. [AMD/ATI]",
    "0x10de": "NVIDIA Corporation",
    "0x1a03": "ASPEED Technology, Inc.",
    "0x8086": "Intel Corporation",
}


def write_system(tree: MemoryTree, parts: MachineParts, drivers: Sequence[str]) -> None:
    """Write CPUs, NUMA nodes, `/proc` and `/sys/module`. `drivers` are the modules of the bound drivers."""
    cpus = [node.cpus for node in parts.nodes]
    everyone = f"0-{sum(cpus) - 1}" if sum(cpus) > 1 else "0"
    for name in ("online", "possible", "present"):
        put(tree, f"{_CPUS}/{name}", everyone)
    nodes = f"0-{len(parts.nodes) - 1}" if len(parts.nodes) > 1 else "0"
    for name in ("online", "possible", "has_cpu", "has_memory"):
        put(tree, f"{_NODES}/{name}", nodes)
    for number in range(len(parts.nodes)):
        _node(tree, parts, number, cpus)
    total = sum(node.memory_bytes for node in parts.nodes) // 1024
    put(tree, "/proc/meminfo", f"MemTotal:       {total} kB\nMemFree:        {total * 3 // 4} kB")
    put(tree, "/proc/sys/kernel/osrelease", parts.kernel)
    put(tree, "/proc/sys/kernel/hostname", parts.name)
    put(tree, "/proc/version", f"Linux version {parts.kernel} (buildd@lcy02-amd64-080) (gcc 13.3.0) #63-Ubuntu SMP")
    put(tree, "/proc/cmdline", f"BOOT_IMAGE=/boot/vmlinuz-{parts.kernel} ro quiet iommu=pt")
    put(tree, "/proc/cpuinfo", "\n\n".join(_cpu(number) for number in range(sum(cpus))))
    put(tree, "/etc/os-release", 'NAME="Ubuntu"\nID=ubuntu\nVERSION_ID="24.04"')
    _modules(tree, drivers)


def write_distribution(
    tree: MemoryTree, name: str, version: str, imports: Sequence[str], files: Mapping[str, str]
) -> None:
    """Install a distribution as pip does: metadata, RECORD, and its files (by default an `__init__.py` per import)."""
    content = {f"{module}/__init__.py": "" for module in imports}
    if name == "torch":
        content["torch/version.py"] = _torch_version(version)
    content |= files
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    content |= {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/top_level.txt": "".join(f"{module}\n" for module in imports),
        f"{info}/INSTALLER": "pip\n",
    }
    record = "".join(f"{path},,\n" for path in [*content, f"{info}/RECORD"])
    for path, text in {**content, f"{info}/RECORD": record}.items():
        tree.add_file(f"{SITE_PACKAGES}/{path}", text.encode())


def write_pci_ids(tree: MemoryTree, models: Sequence[GpuModel]) -> None:
    """Write the lines of `pci.ids` that name the GPUs of this machine."""
    lines: list[str] = []
    for vendor_id in sorted({model.vendor_id for model in models}):
        lines.append(f"{vendor_id[2:]}  {_VENDOR_NAMES.get(vendor_id, vendor_id)}")
        listed = {model.device_id: model.listed for model in models if model.vendor_id == vendor_id}
        lines += [f"\t{device[2:]}  {listed[device]}" for device in sorted(listed)]
    put(tree, "/usr/share/misc/pci.ids", "\n".join(lines))


def _node(tree: MemoryTree, parts: MachineParts, number: int, cpus: Sequence[int]) -> None:
    folder = f"{_NODES}/node{number}"
    memory = parts.nodes[number].memory_bytes // 1024
    put(tree, f"{folder}/cpulist", cpulist(number, cpus))
    put(tree, f"{folder}/cpumap", cpumap(number, cpus))
    row = " ".join("10" if each == number else str(parts.distance) for each in range(len(cpus)))
    put(tree, f"{folder}/distance", row)
    put(
        tree,
        f"{folder}/meminfo",
        f"Node {number} MemTotal:       {memory} kB\nNode {number} MemFree:        {memory} kB",
    )
    link(tree, f"/sys/bus/node/devices/node{number}", folder)
    first = sum(cpus[:number])
    for cpu in range(first, first + cpus[number]):
        link(tree, f"{folder}/cpu{cpu}", f"{_CPUS}/cpu{cpu}")
        topology = f"{_CPUS}/cpu{cpu}/topology"
        alone = f"{1 << cpu % 32:08x}" + ",00000000" * (cpu // 32)
        put(tree, f"{topology}/physical_package_id", number)
        put(tree, f"{topology}/core_id", cpu)
        put(tree, f"{topology}/core_cpus", alone)
        put(tree, f"{topology}/thread_siblings", alone)
        put(tree, f"{topology}/package_cpus", cpumap(number, cpus))
        put(tree, f"{topology}/core_siblings", cpumap(number, cpus))


def _cpu(number: int) -> str:
    return f"processor\t: {number}\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC 4564P 16-Core Processor"


def _modules(tree: MemoryTree, drivers: Sequence[str]) -> None:
    names = list(dict.fromkeys(name.replace("-", "_") for name in drivers if name != "pcieport"))
    if "nvidia" in names:
        names += ["nvidia_uvm", "nvidia_modeset", "nvidia_drm"]
    tree.add_dir("/sys/module")
    lines = []
    for number, name in enumerate(names):
        put(tree, f"/sys/module/{name}/initstate", "live")
        put(tree, f"/sys/module/{name}/refcnt", 1)
        taint = " (OE)" if name.startswith("nvidia") else ""
        lines.append(f"{name} {1048576 + 4096 * number} 1 - Live 0x0000000000000000{taint}")
    tree.add_file("/proc/modules", "".join(f"{line}\n" for line in lines).encode())


def _torch_version(version: str) -> str:
    """Return `torch/version.py` as a wheel carries it: `cuda` or `hip` is a version, the other None."""
    flavour = version.partition("+")[2]
    cuda = f"'{flavour[2:-1]}.{flavour[-1]}'" if flavour.startswith("cu") and flavour[2:].isdecimal() else "None"
    hip = f"'{flavour[4:]}'" if flavour.startswith("rocm") else "None"
    return f"__version__ = '{version}'\ndebug = False\ncuda: Optional[str] = {cuda}\nhip: Optional[str] = {hip}\n"

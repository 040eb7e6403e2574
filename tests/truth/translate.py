"""Reports of other programs as the sysfs trees that those programs had read.

hwloc's XML, nixos-facter's JSON and the text of `lspci -vvv` each hold the PCI tree in another shape. What they
do not say is left out of the tree, as a kernel without that file would.
"""

from __future__ import annotations

import json
import lzma
import re
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

from pytest_gpucoexist.host.replay import ReplayHost
from tests.probes.sysfs import SysfsWriter

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

__all__ = ["translate"]


def translate(path: Path) -> ReplayHost:
    """Return the machine that a report describes."""
    writer = SysfsWriter()
    if path.suffix == ".xml":
        _hwloc(writer, ET.fromstring(path.read_text()))
    elif path.suffix == ".json":
        _facter(writer, json.loads(path.read_text()))
    else:
        _lspci(writer, lzma.decompress(path.read_bytes()).decode())
    return ReplayHost(writer.tree, name=path.stem)


# hwloc XML


def _hwloc(writer: SysfsWriter, root: ET.Element) -> None:
    for node in root.iter("object"):
        if node.get("type") == "NUMANode":
            writer.node(int(node.attrib["os_index"]), _list(node.attrib["cpuset"]))
    for element in root.findall("object"):
        _hwloc_object(writer, element, "", "", "")


def _hwloc_object(writer: SysfsWriter, element: ET.Element, path: str, cpuset: str, nodeset: str) -> None:
    """Walk down; I/O objects have the locality of the closest ancestor that has CPUs."""
    cpuset, nodeset = element.get("cpuset", cpuset), element.get("nodeset", nodeset)
    address = element.get("pci_busid")
    if address is not None:
        path = f"{path or 'pci' + address.rpartition(':')[0]}/{address}"
        code, vendor, device, subvendor, subdevice = re.findall(r"[0-9a-f]{4}", element.attrib["pci_type"])[:5]
        nodes = _bits(nodeset)
        files = {
            "class": f"0x{code}00",
            "vendor": f"0x{vendor}",
            "device": f"0x{device}",
            "subsystem_vendor": f"0x{subvendor}",
            "subsystem_device": f"0x{subdevice}",
            "numa_node": str(nodes[0] if len(nodes) == 1 else -1),
            "local_cpulist": _list(cpuset),
        }
        writer.function(path, files | _hwloc_link(float(element.get("pci_link_speed", "0"))))
    elif element.get("type") == "Bridge":
        domain, first = re.match(r"([0-9a-f]+):\[([0-9a-f]+)", element.attrib["bridge_pci"]).groups()  # type: ignore[union-attr]
        path = f"pci{domain}:{first}"
    for child in element.findall("object"):
        _hwloc_object(writer, child, path, cpuset, nodeset)


def _hwloc_link(gigabytes: float) -> dict[str, str]:
    """Find the link that has hwloc's number of GB/s (transfer rate, times encoding, times lanes)."""
    for speed in (2.5, 5.0, 8.0, 16.0, 32.0):
        for width in (1, 2, 4, 8, 12, 16, 32):
            if (
                gigabytes >= 0.25
                and abs(speed * (0.8 if speed <= 5 else 128 / 130) * width / 8 - gigabytes) < 0.02 * gigabytes
            ):
                return {"current_link_speed": f"{speed} GT/s PCIe", "current_link_width": str(width)}
    return {}


# nixos-facter


def _facter(writer: SysfsWriter, report: Mapping[str, Mapping[str, list[dict[str, object]]]]) -> None:
    for item in (*report["hardware"]["bridge"], *report["hardware"]["graphics_card"]):
        if not str(item.get("sysfs_id", "")).startswith("/devices/pci"):
            continue
        code = "".join(_hex(item, name)[2:] for name in ("base_class", "sub_class", "pci_interface"))
        files = {"class": f"0x{code}", "vendor": f"0x{_hex(item, 'vendor')}", "device": f"0x{_hex(item, 'device')}"}
        group, driver = item.get("sysfs_iommu_group_id"), item.get("driver")
        writer.function(
            str(item["sysfs_id"]).removeprefix("/devices/"),
            files,
            driver=None if driver is None else str(driver),
            group=group if isinstance(group, int) else None,
        )


def _hex(item: Mapping[str, object], name: str) -> str:
    value = item.get(name)
    return str(value["hex"]) if isinstance(value, dict) else "0000"


# lspci -vvv

_CLASSES = {"PCI bridge": "0x060400", "VGA compatible controller": "0x030000", "3D controller": "0x030200"}
_VENDORS = {"NVIDIA": "0x10de", "Matrox": "0x102b", "Intel": "0x8086"}


def _lspci(writer: SysfsWriter, text: str) -> None:
    functions = {address: (header, body) for address, header, body in _lspci_functions(text)}
    above = {}
    for address, (_, body) in functions.items():
        behind = re.search(r"Bus: primary=\w\w, secondary=(\w\w)", body)
        if behind is not None:
            above[behind[1]] = address
    for address, (header, body) in functions.items():
        chain = [address]
        while (bridge := above.get(chain[0][:2])) is not None:
            chain.insert(0, bridge)
        path = "/".join([f"pci0000:{chain[0][:2]}", *(f"0000:{item}" for item in chain)])
        kind, _, product = header.partition(": ")
        device = re.search(r"Device ([0-9a-f]{4})", product)
        files = {
            "class": _CLASSES.get(kind, "0x088000"),
            "vendor": next((number for name, number in _VENDORS.items() if product.startswith(name)), "0x0000"),
            "device": f"0x{device[1] if device else '0000'}",
        }
        node = re.search(r"NUMA node: (\d+)", body)
        if node is not None:
            files["numa_node"] = node[1]
        for register, prefix in (("LnkCap", "max"), ("LnkSta", "current")):
            link = re.search(register + r":.*?Speed ([\d.]+)GT/s.*?Width x(\d+)", body)
            if link is not None:
                files[f"{prefix}_link_speed"] = f"{float(link[1])} GT/s PCIe"
                files[f"{prefix}_link_width"] = link[2]
        driver = re.search(r"Kernel driver in use: (\S+)", body)
        writer.function(path, files, driver=driver[1] if driver else None)


def _lspci_functions(text: str) -> Iterator[tuple[str, str, str]]:
    for block in re.split(r"\n(?=[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] )", text.strip()):
        first, _, body = block.partition("\n")
        address, _, header = first.partition(" ")
        yield address, header, body


def _bits(mask: str) -> list[int]:
    value = 0
    for group in mask.split(","):
        value = value << 32 | int(group or "0", 16)
    return [bit for bit in range(value.bit_length()) if value >> bit & 1]


def _list(mask: str) -> str:
    return ",".join(str(bit) for bit in _bits(mask))

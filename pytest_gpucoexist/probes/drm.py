"""DRM: which card and render nodes belong to a function, and functions that only a DRM tree shows.

`cardN` and `renderDN` change from boot to boot; they are facts for people and for opening the right node, never a
key. Source: Documentation/gpu/drm-uapi.rst, drivers/gpu/drm/drm_sysfs.c.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

from pytest_gpucoexist.model.identity import normal_pci_address
from pytest_gpucoexist.model.machine import DrmNodes
from pytest_gpucoexist.model.readings import Observation, Reading
from pytest_gpucoexist.probes.pcifiles import Uevent, read_function
from pytest_gpucoexist.probes.reader import link_name, reason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucoexist.host.base import Host
    from pytest_gpucoexist.probes.functions import PciFunction

__all__ = ["cards_only", "nodes_of", "observe"]

CLASS = "/sys/class/drm"

_NODE = re.compile(r"(?:card|renderD|controlD)[0-9]{1,6}")  # connectors are `card0-HDMI-A-1`
_CARD = re.compile(r"card[0-9]{1,6}")
_VENDOR_OF_DRIVER = {
    "amdgpu": "amd",
    "i915": "intel",
    "nouveau": "nvidia",
    "nova_core": "nvidia",
    "nvidia": "nvidia",
    "radeon": "amd",
    "xe": "intel",
}


def nodes_of(names: Sequence[str]) -> DrmNodes | None:
    """Sort the names of a `drm` folder into card, render node and others (`controlD64` of old kernels)."""
    nodes = sorted((name for name in names if _NODE.fullmatch(name)), key=lambda name: (len(name), name))
    card = next((name for name in nodes if name.startswith("card")), None)
    render = next((name for name in nodes if name.startswith("renderD")), None)
    others = tuple(name for name in nodes if name not in {card, render})
    return DrmNodes(card=card, render=render, others=others) if nodes else None


def observe(host: Host, functions: Sequence[PciFunction]) -> list[Observation]:
    """Tell the DRM nodes of each function, from its own `drm` folder, else from `/sys/class/drm`."""
    others: dict[str, list[str]] | None = None
    observations = []
    for function in functions:
        path = f"{function.path}/drm"
        try:
            nodes = nodes_of(host.list_dir(path))
        except OSError as error:
            nodes, detail = None, reason(error)
        else:
            detail = "an empty folder"
        if nodes is None and function.address is not None:
            others = _by_folder(host) if others is None else others
            nodes, path = nodes_of(others.get(function.address, ())), CLASS
        reading = (
            Reading(field="drm", value=nodes, source=path)
            if nodes is not None
            else Reading(field="drm", value=None, source=path, status="absent", detail=f"no DRM nodes: {detail}")
        )
        observations.append(function.observation("drm", [reading]))
    return observations


def cards_only(host: Host, known: Sequence[str]) -> tuple[list[PciFunction], list[Observation]]:
    """Find PCI GPUs that only `/sys/class/drm` shows: trees without a bus, functions whose class is unreadable.

    `known` are the addresses that the bus already explained. A card without PCI behind it (simpledrm, vkms, a system
    on a chip) is none of this probe's business. Where the tree does not tell an address, the card's name stands in.
    """
    functions = []
    observations = []
    for name in _nodes(host):
        path = f"{CLASS}/{name}/device"
        uevent = Uevent(host, path)
        if not _CARD.fullmatch(name) or not host.exists(path):
            continue
        address = uevent.address or _address_of_link(host, path)
        if (address is not None and address in known) or not _is_pci(host, path, uevent):
            continue
        card = None if address else name
        function, readings = read_function(host, path, address=address, card=card, uevent=uevent)
        nodes = [name, *(_by_folder(host).get(address, ()) if address else ())]
        readings.append(Reading(field="drm", value=nodes_of(sorted(set(nodes))), source=CLASS))
        readings.append(_no_chain(path))
        vendor = _VENDOR_OF_DRIVER.get(function.driver or "")
        if function.vendor_id is None and vendor is not None:
            detail = f"told by its driver, {function.driver}"
            readings.append(Reading(field="vendor", value=vendor, source=f"{path}/driver", detail=detail))
        functions.append(function)
        observations.append(function.observation("drm", readings, creates=True))
    return functions, observations


def _no_chain(path: str) -> Reading:
    detail = "the chain of bridges is not recorded: only DRM shows this device"
    return Reading(field="upstream", value=None, source=path, status="absent", detail=detail)


def _nodes(host: Host) -> list[str]:
    try:
        return sorted(filter(_NODE.fullmatch, host.list_dir(CLASS)), key=lambda name: (len(name), name))
    except OSError:
        return []


def _by_folder(host: Host) -> dict[str, list[str]]:
    """Group the nodes of `/sys/class/drm` by the PCI address of the device behind them."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in _nodes(host):
        path = f"{CLASS}/{name}/device"
        address = _address_of_link(host, path) or Uevent(host, path).address
        if address is not None:
            groups[address].append(name)
    return groups


def _address_of_link(host: Host, path: str) -> str | None:
    """Tell the function behind `/sys/class/drm/<node>/device`; a recorded link that dangles still names it."""
    try:
        return normal_pci_address(host.resolve(path).rpartition("/")[2])
    except OSError:
        pass
    try:
        parts = host.read_link(path.removesuffix("/device")).split("/")
    except OSError:
        return None
    # ../../devices/pci0000:00/0000:00:03.1/0000:0a:00.0/drm/card0
    return normal_pci_address(parts[-3]) if len(parts) > 3 and parts[-2] == "drm" else None


def _is_pci(host: Host, path: str, uevent: Uevent) -> bool:
    """Whether a PCI function is behind a card: its subsystem says so, or files that only PCI has, or its driver."""
    subsystem = link_name(host, "subsystem", f"{path}/subsystem")
    if subsystem.status == "ok":
        return bool(subsystem.value == "pci")
    if uevent.address is not None or host.exists(f"{path}/subsystem_vendor"):
        return True
    return link_name(host, "driver", f"{path}/driver").value in _VENDOR_OF_DRIVER

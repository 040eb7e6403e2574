"""What NVML says about mapped memory and peers of NVIDIA GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.gates.findings import Finding, skipped, unknown
from pytest_gpucoexist.gates.vendors import address_of, device_cells, devices, vendor_reply
from pytest_gpucoexist.model.machine import Gpu
from pytest_gpucoexist.probes.cells import value_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["SOURCE", "Peers", "amount", "nvml_cells", "peers_of", "silent"]

SOURCE = "nvml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """What one GPU may do with another's memory. `read` and `write` are `ok`, or NVML's reason.

    `nvlink`: both have links up, so the path need not be PCIe.
    """

    first: Gpu
    second: Gpu
    read: str
    write: str
    nvlink: bool


def nvml_cells(subject: Subject, gpu: Gpu) -> Mapping[str, Any] | None:
    """Return what NVML says about a GPU; None where it says nothing."""
    return device_cells(vendor_reply(subject, "nvidia"), gpu)


def silent(subject: Subject, what: str, on: Iterable[Gpu] = ()) -> Finding:
    """Say that NVML does not tell `what`. Where it is not here, and nobody wants NVIDIA's GPUs, nothing is unknown."""
    reply = vendor_reply(subject, "nvidia")
    why = reply.detail or ("it does not list this GPU" if reply.status == "ok" else reply.status)
    if reply.status in {"absent", "unsupported"} and subject.wanted("nvidia") is None:
        return skipped(f"NVML is not asked: {why}", on=on)
    return unknown(f"NVML does not tell {what}: {why}", on=on)


def amount(cells: Mapping[str, Any] | None, name: str, part: str) -> int | None:
    """Return a number of bytes out of a cell such as `bar1` or `memory`."""
    value = value_of(cells, name)
    found = value.get(part) if isinstance(value, dict) else None
    return found if isinstance(found, int) and not isinstance(found, bool) and found >= 0 else None


def peers_of(subject: Subject) -> list[Peers] | None:
    """Return NVML's matrix for the GPUs that are granted here; None when there is none, or it makes no sense."""
    reply = vendor_reply(subject, "nvidia")
    functions = {gpu.pci_address: gpu for gpu in subject.functions("nvidia")}
    by_index = {
        device.get("index"): functions[address]
        for device in devices(reply)
        if (address := address_of(device)) in functions
    }
    linked = {index: _has_links(device) for device in devices(reply) if (index := device.get("index")) is not None}
    found: list[Peers] = []
    for device in devices(reply):
        first = by_index.get(device.get("index"))
        rows = value_of(device, "p2p")
        if first is None:
            continue
        if not isinstance(rows, list):
            return None
        for row in rows:
            if (
                not isinstance(row, dict)
                or not isinstance(row.get("read"), str)
                or not isinstance(row.get("write"), str)
            ):
                return None
            second = by_index.get(row.get("peer"))
            if second is not None and second is not first:
                nvlink = linked.get(device.get("index"), False) and linked.get(row.get("peer"), False)
                found.append(Peers(first=first, second=second, read=row["read"], write=row["write"], nvlink=nvlink))
    return found


def _has_links(device: Mapping[str, Any]) -> bool:
    links = value_of(device.get("health"), "nvlinks")
    return isinstance(links, list) and bool(links)

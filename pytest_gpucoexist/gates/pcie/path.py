"""Walk from a GPU to the root port: which link leaves the card, which hops are above it, what each could do.

A link has two ends; what it can do is the lesser of both. Many cards carry a switch of their own: the GPU behind it
then shows the link inside the card, which says nothing about the slot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucoexist.model.machine import Link
from pytest_gpucoexist.probes.parse import hex_id
from pytest_gpucoexist.probes.pci import BUS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import Bridge, Gpu

__all__ = ["INTERNAL_BRIDGES", "Hop", "Walk", "bandwidth_gbps", "walk"]

INTERNAL_BRIDGES = {
    ("0x1002", "0x1478"): "Navi, upstream port (pci.ids)",
    ("0x1002", "0x1479"): "Navi, downstream port (pci.ids)",
    ("0x1022", "0x1470"): "Vega 10 (pci.ids)",
    ("0x1022", "0x1471"): "Vega 10 (pci.ids)",
    ("0x8086", "0x4fa0"): "Arc A750 and A770, upstream port (geerlingguy/raspberry-pi-pcie-devices#510)",
    ("0x8086", "0x4fa1"): "Arc A310, A370M and A380, upstream port (pci_release_bar0 in the kernel's quirks)",
    ("0x8086", "0x4fa4"): "Arc A series, downstream ports",
    ("0x8086", "0xe2ff"): "Arc B series, upstream port (geerlingguy/raspberry-pi-pcie-devices#695)",
    ("0x8086", "0xe2f0"): "Arc B series, downstream port of the GPU (intel/compute-runtime#942)",
    ("0x8086", "0xe2f1"): "Arc B series, downstream port of the sound function",
}
"""Ports of switches that are soldered on a graphics card, by vendor and device.

Links behind them are inside the card: an Arc shows 2.5 GT/s x1 there, for good (Syllo/nvtop#344), a Radeon its best
speed while the slot is slower (ilya-zlobintsev/LACT#334).
"""

_QEMU = "0x1b36"  # Red Hat: pcie-root-port and its like
# Transfer rate per lane in Gb/s after line coding, as the kernel counts (PCIE_SPEED2MBS_ENC, drivers/pci/pci.h).
_LANE_GBPS = {2.5: 2.0, 5.0: 4.0, 8.0: 7.877, 16.0: 15.754, 32.0: 31.508, 64.0: 63.015}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """One link: the port above and the device below, with what both ends say. Widths that make no sense are None."""

    upper: str
    lower: str
    width: int | None = None
    speed_gtps: float | None = None
    max_width: int | None = None
    max_speed_gtps: float | None = None
    port_known: bool = True

    @property
    def name(self) -> str:
        """The two ends: `0000:40:00.0 -> 0000:41:00.0`."""
        return f"{self.upper} -> {self.lower}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """The links between a GPU and its root port. `card` leaves the card; `above` are those nearer to the root.

    Without `card`, `reason` says why; `integrated` is the reason that is nobody's fault.
    """

    card: Hop | None = None
    above: tuple[Hop, ...] = ()
    internal: tuple[str, ...] = ()
    reason: str = ""
    integrated: bool = False


def walk(subject: Subject, gpu: Gpu) -> Walk:
    """Find the links of a GPU from what discovery has read."""
    return subject.shared(("pcie.walk", gpu.pci_address), lambda: _walk(subject, gpu))


def bandwidth_gbps(speed_gtps: float | None, width: int | None) -> float | None:
    """Return what a link carries one way, in Gb/s; None when either number is not known."""
    lane = _LANE_GBPS.get(speed_gtps or 0.0)
    return None if lane is None or not width else lane * width


def _walk(subject: Subject, gpu: Gpu) -> Walk:
    if gpu.kind == "integrated":
        return Walk(reason="integrated in the processor: no slot, no link", integrated=True)
    if gpu.upstream is None:
        return Walk(reason="the bridges above it are not known")
    if not gpu.upstream:
        return Walk(reason="on the root bus: no port above it", integrated=True)
    bridges = list(gpu.upstream_links)
    if len(bridges) != len(gpu.upstream):
        return Walk(reason="the bridges above it are not known")
    inside: list[Bridge] = []
    while bridges and _is_internal(subject, bridges[-1]):
        inside.append(bridges.pop())
    if not bridges:
        return Walk(reason="above it are only ports of its own card")
    lower, link = (inside[-1].pci_address, inside[-1].link) if inside else (gpu.pci_address or "", gpu.link)
    return Walk(
        card=_hop(subject, bridges[-1], lower, link),
        above=tuple(_hops(subject, bridges)),
        internal=tuple(bridge.pci_address for bridge in reversed(inside)),
    )


def _hops(subject: Subject, bridges: Sequence[Bridge]) -> list[Hop]:
    """Pair the ports above the card's own: root port and switch, switch and switch; links in a switch are none."""
    if len(bridges) % 2 == 0:  # a bridge to conventional PCI, or a port that is hidden: the pairs cannot be told
        return []
    return [
        _hop(subject, upper, lower.pci_address, lower.link)
        for upper, lower in zip(bridges[0:-1:2], bridges[1::2], strict=True)
    ]


def _hop(subject: Subject, port: Bridge, lower: str, link: Link) -> Hop:
    emulated = _ids(subject, port)[0] == _QEMU
    # What an emulated port says it can do is a default of the machine type, and means nothing.
    believed = Link() if emulated else port.link
    upper_width, upper_speed = _lanes(believed.max_width), believed.max_speed_gtps
    lower_width, lower_speed = _lanes(link.max_width), link.max_speed_gtps
    return Hop(
        upper=port.pci_address,
        lower=lower,
        width=_lanes(link.current_width),
        speed_gtps=link.current_speed_gtps,
        max_width=min((width for width in (upper_width, lower_width) if width), default=None),
        max_speed_gtps=min((speed for speed in (upper_speed, lower_speed) if speed), default=None),
        port_known=upper_width is not None,
    )


def _lanes(width: int | None) -> int | None:
    """Return a number of lanes; 0 is a port that says none, and all ones no answer."""
    return width if width is not None and 0 < width <= 32 else None


def _is_internal(subject: Subject, bridge: Bridge) -> bool:
    return _ids(subject, bridge) in INTERNAL_BRIDGES


def _ids(subject: Subject, bridge: Bridge) -> tuple[str, str]:
    ids = []
    for name in ("vendor", "device"):
        value = hex_id(subject.read(f"{BUS}/{bridge.pci_address}/{name}").text or "")
        ids.append(value if isinstance(value, str) else "")
    return ids[0], ids[1]

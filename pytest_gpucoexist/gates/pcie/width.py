"""The width of a GPU's link, against what both of its ends could do; and the narrowest hop above it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.findings import Finding, failed, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.pcie.folders import ASLEEP, asleep, folder, in_guest, is_removable, label
from pytest_gpucoexist.gates.pcie.path import Hop, Walk, bandwidth_gbps, walk
from pytest_gpucoexist.gates.pcie.registers import CONVENTIONAL, registers
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.machine import Link
from pytest_gpucoexist.model.verdicts import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import Gpu

__all__ = ["limited_by", "width"]

_FAIL_SHARE = 0.25
_LEAST_LANES = 0.5


@gate(
    "pcie.width",
    group="pcie-link",
    title="Link is as wide as card and port allow",
    reads="current_link_width and max_link_width of the GPU (of its own switch, where the card has one) and of the port"
    " above it",
    criterion="the negotiated width is the smaller one of what card and port can do; the speed is shown and not judged",
    why="A card that is not seated well, a damaged contact or a riser leave lanes out: copies take two or four times as"
    " long, and nothing says so. The speed of an idle link is always low and means nothing.",
    action="Reseat and clean the card and the riser, check the slot's bifurcation in the firmware. A link that is"
    " narrow on purpose: gpu_gate_limits = pcie.width.fail_share = 0.",
    source="facebookresearch/gcm check_pci.py; scitix/sichek check_pcie.go; Syllo/nvtop#344; ilya-zlobintsev/LACT#334",
    level="quick",
    limits={"fail_share": _FAIL_SHARE},
)
def width(subject: Subject) -> Iterator[Finding]:
    share = subject.limit("pcie.width", "fail_share", _FAIL_SHARE)
    for gpu in subject.functions():
        found = walk(subject, gpu)
        yield _no_link(subject, gpu, found) or _judge_width(subject, gpu, found, share)
    if not subject.functions():
        yield skipped("no GPU here has a PCI function")


@gate(
    "pcie.limited_by",
    group="pcie-link",
    title="No hop above the card is much narrower",
    reads="max_link_width and max_link_speed of every port between the GPU and its root port; other GPUs below them",
    criterion="every hop has at least half of the lanes that the card has",
    why="A slot with four lanes, or one behind the chipset, is no fault of the card, and a copy test that expects"
    " sixteen lanes there fails. GPUs that share a link share its bandwidth.",
    action="Put the card into a slot of the processor with more lanes, or expect less of it. A slot that is narrow on"
    " purpose: gpu_gate_limits, pcie.limited_by least_lanes=0.",
    source="Umio-Yasuno/amdgpu_top#33; imbue-ai/cluster-health (the kernel's `limited by` line, from the same"
    " registers: pcie_bandwidth_available)",
    level="quick",
    severity="info",
    limits={"least_lanes": _LEAST_LANES},
)
def limited_by(subject: Subject) -> Iterator[Finding]:
    least = subject.limit("pcie.limited_by", "least_lanes", _LEAST_LANES)
    for gpu in subject.functions():
        found = walk(subject, gpu)
        yield _no_link(subject, gpu, found) or _judge_hops(subject, gpu, found, least)
    if not subject.functions():
        yield skipped("no GPU here has a PCI function")


def _no_link(subject: Subject, gpu: Gpu, found: Walk) -> Finding | None:
    if found.integrated:
        return skipped(found.reason, on=[gpu])
    if asleep(subject, gpu):
        return skipped(ASLEEP, on=[gpu])
    if gpu.link == Link() and registers(subject, folder(subject, gpu)).conventional:
        return skipped(CONVENTIONAL, on=[gpu])
    if found.card is None:
        return unknown(f"its link cannot be judged: {found.reason}", on=[gpu])
    return None


def _judge_width(subject: Subject, gpu: Gpu, found: Walk, fail_share: float) -> Finding:
    hop = found.card
    assert hop is not None
    if hop.width is None or hop.max_width is None:
        missing = "the negotiated width" if hop.width is None else "the widths that card and port can do"
        return unknown(f"{missing} cannot be read", Evidence(source=hop.name, found="no number of lanes"), on=[gpu])
    evidence = _evidence(hop, found)
    if hop.width >= hop.max_width:
        return passed(f"x{hop.width}, as wide as card and port allow", evidence, on=[gpu])
    words = f"{label(gpu)} has {hop.width} of {hop.max_width} lanes (x{hop.width}, expected x{hop.max_width})"
    # A card that saves power can drop lanes with the speed; one that runs at full speed has lost them.
    full_speed = hop.speed_gtps is not None and hop.speed_gtps == hop.max_speed_gtps
    if in_guest(subject):
        return warned(f"{words}; in a virtual machine the host's slot may be the reason", evidence, on=[gpu])
    if is_removable(subject, gpu):
        return warned(f"{words}; it is an external GPU", evidence, on=[gpu])
    if hop.width > fail_share * hop.max_width or not full_speed:
        return warned(words + ("" if full_speed else "; some cards drop lanes at idle"), evidence, on=[gpu])
    return failed(words, evidence, on=[gpu])


def _judge_hops(subject: Subject, gpu: Gpu, found: Walk, least: float) -> Finding:
    card = found.card
    assert card is not None
    hops = [hop for hop in (*found.above, card) if hop.max_width is not None]
    own = _own_lanes(gpu, found)
    if not hops or own is None:
        return unknown("the widths that card and ports can do cannot be read", on=[gpu])
    evidence = [_evidence(hop, found) for hop in (*found.above, card)]
    narrow = min(hops, key=lambda hop: (hop.max_width or 0, bandwidth_gbps(hop.max_speed_gtps, hop.max_width) or 0.0))
    lanes = narrow.max_width or 0
    others = [each for each in subject.functions() if each != gpu and narrow.upper in (each.upstream or ())]
    shared = f", shared with {', '.join(each.id for each in others)}" if others else ""
    if lanes >= least * own:
        return passed(f"the card's {own} lanes meet at least {lanes} on every hop{shared}", *evidence, on=[gpu])
    words = f"x{lanes} at {narrow.name}, where {label(gpu)} has {own} lanes{shared}"
    if is_removable(subject, gpu):
        return passed(f"an external GPU: {words}; expect its cable's bandwidth and no peer copies", *evidence, on=[gpu])
    return warned(f"a narrow hop: {words}", *evidence, on=[gpu])


def _own_lanes(gpu: Gpu, found: Walk) -> int | None:
    """Return the lanes that the card itself has."""
    link = gpu.link
    if found.internal:
        link = next(each.link for each in gpu.upstream_links if each.pci_address == found.internal[0])
    return link.max_width if link.max_width and link.max_width <= 32 else None


def _evidence(hop: Hop, found: Walk) -> Evidence:
    aside = f"; the card's own switch ({', '.join(found.internal)}) is left out" if found.internal else ""
    port = "" if hop.port_known else " (the port does not say what it can do)"
    return Evidence(
        source=f"/sys/bus/pci/devices: {hop.name}",
        found=f"{_link(hop.speed_gtps, hop.width)}{aside if hop is found.card else ''}",
        expected=f"at most {_link(hop.max_speed_gtps, hop.max_width)}{port}",
    )


def _link(speed_gtps: float | None, width: int | None) -> str:
    rate = bandwidth_gbps(speed_gtps, width)
    speed = "speed not known" if speed_gtps is None else f"{speed_gtps:g} GT/s"
    lanes = "" if width is None else f" x{width}"
    return f"{speed}{lanes}" + (f" ({rate:.0f} Gb/s)" if rate is not None else "")

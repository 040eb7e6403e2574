"""Errors that the hardware has latched in its registers, whether or not the kernel heard of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.findings import Finding, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.pcie.config_space import Configuration, bits_named
from pytest_gpucoexist.gates.pcie.folders import folder
from pytest_gpucoexist.gates.pcie.registers import CONVENTIONAL, registers
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence
from pytest_gpucoexist.probes.pci import BUS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import Gpu

__all__ = ["aer_latched"]

# Requests for what is not there, and accesses that were turned away: latched on healthy machines while the bus is
# enumerated (bits 20 and 21 of the uncorrectable error status).
_HARMLESS_BITS = 1 << 20 | 1 << 21


@gate(
    "pcie.aer_latched",
    group="pcie-link",
    title="No uncorrected error is latched in the PCIe registers",
    reads="the configuration space (root only): Uncorrectable Error Status of the AER capability and Device Status of"
    " the PCI Express capability, of the GPU and of each port above it",
    criterion="no bit of an uncorrected error, and no fatal error, is set; unsupported requests are left out",
    why="Where the firmware keeps error handling for itself the kernel's log and counters stay clean, and a link that"
    " loses packets looks healthy.",
    action="Write the bits back to clear them (setpci -s ADDRESS ECAP_AER+0x04.l=ffffffff), run the load again and see"
    " whether they return; then reseat the card, replace riser or cable.",
    source="minisforum-docs/MS-02-Ultra#32; amd/node-scraper, pcie analyzer",
    level="quick",
)
def aer_latched(subject: Subject) -> Iterator[Finding]:
    for gpu in subject.functions():
        yield _judge(subject, gpu)
    if not subject.functions():
        yield skipped("no GPU here has a PCI function")


def _judge(subject: Subject, gpu: Gpu) -> Finding:
    own = registers(subject, folder(subject, gpu))
    places = [own, *(registers(subject, f"{BUS}/{address}") for address in gpu.upstream or ())]
    wrong: list[Evidence] = []
    read = 0
    for place in places:
        if place.space is not None:
            read += 1
            errors = _errors(place.space)
            if errors:
                wrong.append(Evidence(source=place.path, found=", ".join(errors), expected="no error latched"))
    if wrong:
        where = "; ".join(f"{each.found} at {each.source.split('/')[-2]}" for each in wrong)
        return warned(f"uncorrected PCIe errors are latched: {where}", *wrong, on=[gpu])
    if own.space is None:
        if own.asleep:
            return skipped(own.reason, on=[gpu])
        return unknown(f"its error registers cannot be read: {own.reason}", on=[gpu])
    if own.conventional:
        return skipped(CONVENTIONAL, on=[gpu])
    evidence = Evidence(source=own.path, found=f"no error latched in {read} functions on the path")
    return passed("no uncorrected error is latched", evidence, on=[gpu])


def _errors(space: Configuration) -> list[str]:
    found: list[str] = []
    latched = 0
    if space.aer is not None:
        latched = space.aer.uncorrectable_status & ~_HARMLESS_BITS
        found += bits_named(latched)
    express = space.express
    if express is not None and express.fatal and not latched:
        found.append("fatal error detected")
    # An unsupported request is itself a non-fatal error: together they say nothing more than that.
    if express is not None and express.nonfatal and not express.unsupported_request and not latched:
        found.append("non-fatal error detected")
    return found

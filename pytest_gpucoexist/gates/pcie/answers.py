"""A GPU that is listed must answer on the bus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.findings import Finding, failed, passed, skipped, unknown
from pytest_gpucoexist.gates.pcie.config_space import HEADER_BYTES, no_answer
from pytest_gpucoexist.gates.pcie.folders import ASLEEP, asleep_at, folder, label
from pytest_gpucoexist.gates.pcie.registers import read_bytes
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence
from pytest_gpucoexist.probes.pci import BUS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import Gpu

__all__ = ["config_space"]

_ALL_ONES = "answers, not all ones"
_ALL_LANES = "63"
"""The six bits of the negotiated width, all set (PCI_EXP_LNKSTA_NLW, include/uapi/linux/pci_regs.h)."""


@gate(
    "pcie.config_space",
    group="pcie-link",
    title="GPU answers on the bus",
    reads="the first 64 bytes of /sys/bus/pci/devices/<address>/config; current_link_width and current_link_speed"
    " where that is not to be had. A sleeping GPU is left alone.",
    criterion="the configuration space does not read all ones",
    why="A GPU that fell off the bus stays listed: its folder, its ids (cached by the kernel) and often its driver's"
    " device nodes are still there, and what uses it next hangs or gets nonsense.",
    action="Power the machine off completely (a reboot is often not enough); then look at power cables, seating, riser"
    " and the kernel log. Laptops: a tool that switches the GPU off may have done it.",
    source="NVIDIA/open-gpu-kernel-modules#1283; minisforum-docs/MS-02-Ultra#26",
    level="quick",
    severity="fail",
    blocking=True,
)
def config_space(subject: Subject) -> Iterator[Finding]:
    for gpu in subject.functions():
        yield _judge(subject, gpu, folder(subject, gpu))
    if not subject.functions():
        yield skipped("no GPU here has a PCI function")


def _judge(subject: Subject, gpu: Gpu, path: str) -> Finding:
    if asleep_at(subject, path):
        return skipped(ASLEEP, on=[gpu])
    on_bus = f"{BUS}/{gpu.pci_address}"
    if _found_on_bus(gpu, on_bus) and not subject.host.exists(on_bus):
        evidence = Evidence(source=on_bus, found="no such folder any more", expected="the GPU that was found there")
        return failed(f"{label(gpu)} is gone from the bus", evidence, on=[gpu])
    source = f"{path}/config"
    data, why = read_bytes(subject, source, HEADER_BYTES)
    if data is not None and len(data) >= 4:
        if no_answer(data):
            evidence = Evidence(source=source, found=f"{data[:4].hex(' ')} …: all ones", expected=_ALL_ONES)
            return _lost(gpu, evidence, *_link_evidence(subject, path))
        if data.strip(b"\0"):
            found = f"vendor 0x{data[1]:02x}{data[0]:02x}, device 0x{data[3]:02x}{data[2]:02x}"
            return passed("answers on the bus", Evidence(source=source, found=found, expected=_ALL_ONES), on=[gpu])
        why = "it reads all zeros"
    return _judge_by_link(subject, gpu, path, Evidence(source=source, found=why or "too short"))


def _found_on_bus(gpu: Gpu, path: str) -> bool:
    """Whether discovery found it in this folder. A tree may show a GPU in DRM, or in KFD, alone."""
    fact = gpu.facts.get("class_id")
    return fact is not None and fact.status == "ok" and fact.source.startswith(f"{path}/")


def _judge_by_link(subject: Subject, gpu: Gpu, path: str, unread: Evidence) -> Finding:
    """Judge by the link's files, registers of the same space: a number is an answer, all ones are none."""
    width = subject.read(f"{path}/current_link_width")
    text = (width.text or "").strip()
    speed = (subject.read(f"{path}/current_link_speed").text or "").strip()
    if text == _ALL_LANES and speed.startswith("Unknown"):
        return _lost(gpu, *_link_evidence(subject, path))
    if text.isascii() and text.isdigit() and int(text) <= 32:
        evidence = Evidence(source=width.path, found=f"{text} lanes", expected=_ALL_ONES)
        return passed("its link register answers", evidence, on=[gpu])
    return unknown(f"cannot tell whether it answers: its configuration space: {unread.found}", unread, on=[gpu])


def _link_evidence(subject: Subject, path: str) -> list[Evidence]:
    found: list[Evidence] = []
    for name in ("current_link_speed", "current_link_width", "max_link_speed"):
        read = subject.read(f"{path}/{name}")
        if read.text is not None:
            found.append(Evidence(source=read.path, found=read.text.strip()))
    return found


def _lost(gpu: Gpu, *evidence: Evidence) -> Finding:
    driver = f" although {gpu.driver} still holds it" if gpu.driver else ""
    return failed(f"{label(gpu)} does not answer on the bus any more{driver}", *evidence, on=[gpu])

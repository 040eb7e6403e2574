"""What the ports between GPU and processor allow: atomic operations, direct peer traffic, packet sizes."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.findings import Finding, failed, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.pcie.folders import folder, in_guest, label
from pytest_gpucoexist.gates.pcie.registers import CONVENTIONAL, Registers, registers
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence
from pytest_gpucoexist.probes.pci import BUS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.pcie.config_space import Express
    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import Gpu

__all__ = ["acs", "atomics", "mps"]


@gate(
    "pcie.atomics",
    group="pcie-link",
    title="PCIe atomics reach the processor",
    reads="the configuration space (root only): AtomicOpsCap of the root port and of switches, AtomicOpsCtl of the GPU",
    criterion="the root port completes 32 and 64 bit atomics, every switch routes them, the GPU may send them",
    why="ROCm signals through atomic operations on host memory. Without them a card before gfx9 is left out of the"
    " compute devices, and features of newer ones are off.",
    action="Put the card into a slot that belongs to the processor, not to the chipset.",
    source="ROCm/ROCmValidationSuite, peqt.so; ROCm/legacy-rocm-build#910",
    vendors=("amd",),
    level="quick",
    severity="fail",
)
def atomics(subject: Subject) -> Iterator[Finding]:
    for gpu in subject.functions("amd"):
        yield _judge_atomics(subject, gpu)
    if not subject.functions("amd"):
        yield skipped("no GPU here has a PCI function")


@gate(
    "pcie.acs",
    group="pcie-link",
    title="Switches let peers talk directly",
    reads="the configuration space (root only): ACSCtl of each port above two GPUs or more; /proc/cpuinfo",
    criterion="below a switch that two GPUs share, requests and completions are not redirected to the processor",
    why="Access Control Services send copies between two GPUs of one switch up to the processor and back: they are"
    " slower, and together with an IOMMU that translates they can deliver nothing.",
    action="Where the copies matter more than the isolation: switch ACS off in the firmware, or"
    " pci=disable_acs_redir=ADDRESS[;ADDRESS] on the kernel's command line.",
    source="leptonai/gpud, components/pci (leaves virtual machines out); scitix/sichek; intel/compute-runtime#942",
    level="quick",
)
def acs(subject: Subject) -> Iterator[Finding]:
    functions = subject.functions()
    if in_guest(subject):
        yield skipped("in a virtual machine: the switches belong to the host")
        return
    shared = _below_one_switch(functions)
    if not shared:
        yield skipped("no two GPUs here share a PCIe switch")
    for address, gpus in shared.items():
        found = registers(subject, f"{BUS}/{address}")
        if found.space is None:
            yield _not_read(found, gpus, f"whether {address} redirects peer traffic")
        elif found.space.acs is None:
            evidence = Evidence(source=found.path, found="no ACS capability")
            yield passed(f"{address} redirects nothing", evidence, on=gpus)
        else:
            control = found.space.acs
            on = [
                name
                for name, set_ in (("ReqRedir", control.request_redirect), ("CmpltRedir", control.completion_redirect))
                if set_
            ]
            evidence = Evidence(
                source=found.path,
                found=f"{' and '.join(on)} set" if on else "no redirection",
                expected="no redirection",
            )
            if on:
                yield warned(
                    f"{address} sends copies between GPUs of its switch up to the processor", evidence, on=gpus
                )
            else:
                yield passed(f"{address} redirects nothing", evidence, on=gpus)


@gate(
    "pcie.mps",
    group="pcie-link",
    title="Packet sizes fit along the path",
    reads="the configuration space (root only): MaxPayload of the GPU and of each port above it, MaxReadReq of the GPU",
    criterion="no device sends larger packets than the port above it takes",
    why="A packet that is larger than a port's MaxPayload is malformed, and a fatal error. Smaller ones than possible"
    " only cost bandwidth: 128 bytes in place of 256 about 8 %.",
    action="pci=pcie_bus_safe on the kernel's command line, or pci=pcie_bus_perf for the largest size that fits.",
    source="ROCm/ROCmValidationSuite, peqt; PCI Express Base 4.0, 2.2.2",
    level="quick",
    severity="info",
)
def mps(subject: Subject) -> Iterator[Finding]:
    for gpu in subject.functions():
        yield _judge_payload(subject, gpu)
    if not subject.functions():
        yield skipped("no GPU here has a PCI function")


def _not_read(found: Registers, gpus: list[Gpu], what: str) -> Finding:
    if found.asleep:
        return skipped(found.reason, on=gpus)
    return unknown(f"{what} cannot be read: {found.reason}", Evidence(source=found.path, found=found.reason), on=gpus)


def _path(subject: Subject, gpu: Gpu) -> list[Registers]:
    """Return the registers along the path, root port first, the GPU last."""
    ports = [registers(subject, f"{BUS}/{address}") for address in gpu.upstream or ()]
    return [*ports, registers(subject, folder(subject, gpu))]


def _judge_atomics(subject: Subject, gpu: Gpu) -> Finding:
    if gpu.kind == "integrated" or gpu.upstream == ():
        return skipped("integrated in the processor, or on the root bus: no port between", on=[gpu])
    if gpu.upstream is None:
        return unknown("the ports above it are not known", on=[gpu])
    path = _path(subject, gpu)
    if path[-1].conventional:
        return skipped(CONVENTIONAL, on=[gpu])
    for found in path:
        if found.space is None:
            return _not_read(found, [gpu], "PCIe atomics along its path")
    missing: list[Evidence] = []
    for found in path:
        express = found.space.express if found.space is not None else None
        if express is None:
            return unknown(f"{found.path} has no PCI Express capability", on=[gpu])
        missing += [Evidence(source=found.path, found=said) for said in _lacks(express)]
    if not missing:
        evidence = Evidence(source=path[0].path, found="AtomicOpsCap 32bit+ 64bit+; the GPU: AtomicOpsCtl ReqEn+")
        return passed("atomics reach the processor", evidence, on=[gpu])
    words = f"PCIe atomics do not reach the processor from {label(gpu)}: " + "; ".join(
        f"{each.found} at {each.source.split('/')[-2]}" for each in missing
    )
    version = gpu.kfd.gfx_target_version if gpu.kfd is not None else None
    if version is None and gpu.driver == "amdgpu" and subject.wanted("amd"):
        return failed(f"{words}; KFD has left it out", *missing, on=[gpu])
    return warned(words, *missing, on=[gpu])


def _lacks(express: Express) -> list[str]:
    if express.port_type == "root":
        return [] if express.atomic_32 and express.atomic_64 else ["the root port completes none"]
    if express.port_type in {"upstream", "downstream"}:
        return [] if express.atomic_routing else ["the switch does not route them"]
    if express.port_type == "endpoint":
        return [] if express.atomic_requester else ["the GPU may not send them (ReqEn-)"]
    return [f"a {express.port_type} on the path"]


def _below_one_switch(gpus: list[Gpu]) -> dict[str, list[Gpu]]:
    """Return the downstream ports of switches that two GPUs share, each with the GPUs of that switch.

    A switch's ports are the bridges below its upstream port: of two paths, what follows the last common bridge.
    """
    ports: dict[str, dict[str, Gpu]] = {}
    deep = [gpu for gpu in gpus if len(gpu.upstream or ()) > 2]
    for first in deep:
        for second in deep:
            ours, theirs = first.upstream or (), second.upstream or ()
            common = sum(1 for _ in _common(ours, theirs))
            # At least root port and upstream port in common, then a port of each one's own.
            if first is not second and common >= 2 and len(ours) > common and len(theirs) > common:
                both = {first.key: first, second.key: second}
                ports.setdefault(ours[common], {}).update(both)
    return {address: list(found.values()) for address, found in sorted(ports.items())}


def _common(ours: tuple[str, ...], theirs: tuple[str, ...]) -> Iterator[str]:
    for left, right in zip(ours, theirs, strict=False):
        if left != right:
            return
        yield left


def _judge_payload(subject: Subject, gpu: Gpu) -> Finding:
    if gpu.kind == "integrated" or gpu.upstream == ():
        return skipped("integrated in the processor, or on the root bus: no port between", on=[gpu])
    if gpu.upstream is None:
        return unknown("the ports above it are not known", on=[gpu])
    path = _path(subject, gpu)
    if path[-1].conventional:
        return skipped(CONVENTIONAL, on=[gpu])
    sizes: list[tuple[str, Express]] = []
    for found in path:
        if found.space is None:
            return _not_read(found, [gpu], "packet sizes along its path")
        if found.space.express is not None:
            sizes.append((found.path, found.space.express))
    if not sizes or sizes[-1][0] != path[-1].path:
        return unknown(f"{path[-1].path} has no PCI Express capability", on=[gpu])
    evidence = [Evidence(source=where, found=f"MaxPayload {each.payload} bytes") for where, each in sizes]
    for (_, above), (where, below) in pairwise(sizes):
        if below.payload > above.payload:
            if in_guest(subject):
                return skipped("in a virtual machine: the port above is emulated", on=[gpu])
            words = (
                f"{where.split('/')[-2]} sends packets of {below.payload} bytes, the port above takes {above.payload}"
            )
            return warned(words, *evidence, on=[gpu])
    own, possible = sizes[-1][1], min(each.payload_supported for _, each in sizes)
    words = f"packets of {own.payload} bytes fit along the path (at most {possible}); reads of {own.read_request} bytes"
    return passed(words, *evidence, on=[gpu])

"""Peer copies and the IOMMU: NVIDIA and AMD advise the opposite, and one mode holds for the whole machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.findings import Finding, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.mapping.bars import reach
from pytest_gpucoexist.gates.mapping.nvml import peers_of, silent
from pytest_gpucoexist.gates.mapping.translation import translation
from pytest_gpucoexist.gates.pcie.folders import in_guest
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence, Fix

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import Gpu

__all__ = ["p2p_nv", "p2p_radeon", "p2p_status_amd", "vendor_conflict"]

_PCIE = 2  # the kernel's CRAT type of a PCIe link (kfd_crat.h)
_INSTINCT = {"gfx908", "gfx90a", "gfx940", "gfx941", "gfx942", "gfx950"}
_BOOT = "/etc/default/grub (GRUB_CMDLINE_LINUX), or your boot loader's"


@gate(
    "mem.iommu.p2p_nv",
    group="memory-mapping",
    title="The IOMMU does not swallow copies between NVIDIA peers",
    reads="NVML: which pairs are peers, and whether NVLink joins them; the mode of the IOMMU for each of them",
    criterion="peers over PCIe have the mode identity, or no IOMMU",
    why="NVIDIA does not support PCIe peer access through an IOMMU that translates: it is offered, and zeros arrive.",
    action="Let addresses pass, or switch peer access off for the programs in question (NCCL_P2P_DISABLE=1).",
    source="docs.nvidia.com, PCIe Multi-GPU Systems; CAPS-UMU/FIDESlib#28; tinygrad/open-gpu-kernel-modules#18",
    vendors=("nvidia",),
    level="standard",
)
def p2p_nv(subject: Subject) -> Iterator[Finding]:
    if len(subject.functions("nvidia")) < 2:
        yield skipped("fewer than two NVIDIA GPUs: no peers")
        return
    if in_guest(subject):
        yield skipped("in a virtual machine: the IOMMU that counts is the host's")
        return
    pairs = _nvidia_peers(subject)
    if pairs is None:
        yield silent(subject, "which GPUs are peers")
    elif not pairs:
        yield passed("no NVIDIA GPU offers another its memory over PCIe", Evidence(source="nvml: p2p", found="no pair"))
    else:
        for gpu in pairs:
            yield _judge_nvidia(subject, gpu)


@gate(
    "mem.iommu.p2p_radeon",
    group="memory-mapping",
    title="The IOMMU suits copies between Radeon peers",
    reads="KFD's peer links between Radeon cards; the mode of the IOMMU; dma_mask_bits and `resource` of the cards",
    criterion="the IOMMU translates (AMD's advice for Radeon), or each card can address the other's memory",
    why="A Radeon addresses 44 bits on many kernels: registers above that are out of reach unless they are translated.",
    action="Remove iommu=pt from the kernel's command line.",
    source="ROCm/ROCm, docs/conceptual/iommu.rst; ROCm/ROCR-Runtime#355",
    vendors=("amd",),
    level="quick",
)
def p2p_radeon(subject: Subject) -> Iterator[Finding]:
    gpus = _radeon_peers(subject)
    if not gpus:
        yield skipped("no two Radeon cards offer each other their memory over PCIe")
        return
    reachable = all(each.status == "PASS" for each in reach(subject, gpus))
    for gpu in gpus:
        found = translation(subject, gpu)
        evidence = Evidence(source=found.source, found=found.type or found.words, expected="DMA or DMA-FQ")
        if found.kind == "translated":
            yield passed(f"the IOMMU {found.words}, as AMD advises for Radeon", evidence, on=[gpu])
        elif found.kind == "unknown":
            yield unknown(f"the mode of the IOMMU cannot be read: {found.reason}", evidence, on=[gpu])
        elif reachable:
            yield passed(f"the IOMMU {found.words}, and each card can address the others", evidence, on=[gpu])
        else:
            words = f"the IOMMU {found.words}, and not each card can address the others"
            yield warned(words, evidence, on=[gpu])


@gate(
    "mem.iommu.vendor_conflict",
    group="memory-mapping",
    title="NVIDIA's and AMD's advice on the IOMMU do not collide",
    reads="NVML's and KFD's peers over PCIe",
    criterion="not both NVIDIA and Radeon cards offer peer access over PCIe",
    why="NVIDIA wants iommu=pt, AMD wants the translated default for Radeon, and the command line holds for both.",
    action="Use peer copies of one vendor only, or set the type of each group before its driver binds.",
    source="ROCm/ROCm, docs/conceptual/iommu.rst, against docs.nvidia.com, PCIe Multi-GPU Systems",
    vendors=("nvidia", "amd"),
    level="standard",
)
def vendor_conflict(subject: Subject) -> Iterator[Finding]:
    radeons = _radeon_peers(subject)
    if not radeons or len(subject.functions("nvidia")) < 2:
        yield skipped("not two NVIDIA GPUs and two Radeon cards that could be peers")
        return
    cards = _nvidia_peers(subject)
    if cards is None:
        yield silent(subject, "which GPUs are peers")
    elif not cards:
        yield passed("only Radeon cards offer peer access over PCIe", Evidence(source="nvml: p2p", found="no pair"))
    else:
        words = "NVIDIA wants iommu=pt for its peers over PCIe, AMD the translated default for Radeon's"
        evidence = [
            Evidence(source=translation(subject, gpu).source, found=translation(subject, gpu).words)
            for gpu in (*cards, *radeons)
        ]
        groups = " ".join(str(gpu.iommu_group) for gpu in cards if gpu.iommu_group is not None)
        fix = Fix(
            lines=(f"for g in {groups}; do echo identity > /sys/kernel/iommu_groups/$g/type; done  # drivers unbound",)
        )
        yield warned(words, *evidence, on=[*cards, *radeons], fix=[fix] if groups else [])


@gate(
    "mem.p2p_status.amd",
    group="memory-mapping",
    title="AMD peers reach each other both ways",
    reads="/sys/class/kfd/kfd/topology/nodes/*/p2p_links and io_links: links between GPUs",
    criterion="where one GPU has a link to another, the other has one back",
    why="A one-way link is a card whose register does not show all its memory: programs that asked only one direction"
    " fail in the other.",
    action="Enable Resizable BAR for each card in the firmware; check CONFIG_HSA_AMD_P2P and pcie_p2p of amdgpu.",
    source="ROCm/legacy-rocm-build#579; ROCm/ROCR-Runtime#355; kfd_add_peer_prop, amdkfd/kfd_topology.c",
    vendors=("amd",),
    level="quick",
)
def p2p_status_amd(subject: Subject) -> Iterator[Finding]:
    by_node = {gpu.kfd.node: gpu for gpu in subject.gpus("amd") if gpu.kfd is not None}
    if len(by_node) < 2:
        yield skipped("fewer than two AMD GPUs in KFD: no peers")
        return
    links = {
        (node, link.node_to)
        for node, gpu in by_node.items()
        for link in (gpu.kfd.links if gpu.kfd is not None else ())
        if link.node_to in by_node
    }
    source = "/sys/class/kfd/kfd/topology/nodes/*/{io,p2p}_links"
    evidence = Evidence(source=source, found=f"{len(links)} links between {len(by_node)} GPUs", expected="both ways")
    one_way = sorted((first, second) for first, second in links if (second, first) not in links)
    if one_way:
        names = ", ".join(f"{by_node[first].id} to {by_node[second].id}" for first, second in one_way)
        gpus = list({by_node[node].key: by_node[node] for pair in one_way for node in pair}.values())
        yield warned(f"peers that reach each other one way only: {names}", evidence, on=gpus)
    elif links:
        yield passed("peers reach each other both ways", evidence)
    else:
        yield passed("KFD offers no peer access: copies go through the host", evidence)


def _nvidia_peers(subject: Subject) -> list[Gpu] | None:
    """Return the GPUs that have a peer over PCIe; None where NVML does not tell."""
    pairs = peers_of(subject)
    if not pairs:
        return None
    over_pcie = [pair for pair in pairs if not pair.nvlink and "ok" in {pair.read, pair.write}]
    return list({gpu.key: gpu for pair in over_pcie for gpu in (pair.first, pair.second)}.values())


def _radeon_peers(subject: Subject) -> list[Gpu]:
    """Return the Radeon cards that KFD joins with another one over PCIe."""
    cards = {
        gpu.kfd.node: gpu
        for gpu in subject.functions("amd")
        if gpu.kfd is not None and gpu.kind != "integrated" and gpu.arch not in _INSTINCT
    }
    return [
        gpu
        for gpu in cards.values()
        if gpu.kfd is not None and any(link.node_to in cards and link.type == _PCIE for link in gpu.kfd.links)
    ]


def _judge_nvidia(subject: Subject, gpu: Gpu) -> Finding:
    found = translation(subject, gpu)
    evidence = Evidence(source=found.source, found=found.type or found.words, expected="identity, or no IOMMU")
    if found.kind in {"identity", "off"}:
        return passed(f"peers over PCIe, and the IOMMU {found.words}", evidence, on=[gpu])
    if found.kind == "unknown":
        return unknown(f"peers over PCIe, and the mode of the IOMMU cannot be read: {found.reason}", evidence, on=[gpu])
    fix = Fix(lines=("iommu=pt",), path=_BOOT)
    words = f"peers over PCIe, and the IOMMU {found.words}: copies between them can arrive as zeros"
    return warned(words, evidence, on=[gpu], fix=[fix])

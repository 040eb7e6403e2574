"""Memory of NVIDIA GPUs that others can map, and whether the matrix of peers is whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.findings import Finding, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.mapping.addresses import size_words, sizes_of
from pytest_gpucoexist.gates.mapping.nvml import SOURCE, amount, nvml_cells, peers_of, silent
from pytest_gpucoexist.gates.mapping.resizable import SMALL_BYTES
from pytest_gpucoexist.gates.pcie.folders import label
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.gates.vendors import vendor_reply
from pytest_gpucoexist.model.verdicts import Evidence
from pytest_gpucoexist.probes.cells import value_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.mapping.nvml import Peers
    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import Gpu

__all__ = ["bar1_free", "cc_mode", "p2p_status", "rebar_nv"]

_USED_SHARE = 0.9
_BAR1 = 1
_SIZES = range(2**20, 2**48)
"""Bytes that a register or a card's memory can have: no window is below 1 MiB, no GPU addresses 256 TiB."""


@gate(
    "mem.rebar.nv",
    group="memory-mapping",
    title="The window into an NVIDIA card's memory",
    reads="NVML: BAR1 and memory of each GPU; whether the kernel has resource1_resize for it",
    criterion="BAR1 covers the memory, where the card can do it",
    why="Only what BAR1 covers can be mapped by peers, network cards and dma-buf. Work inside the GPU does not care.",
    action="Enable Resizable BAR (and Above 4G decoding, without CSM) in the firmware.",
    source="aikitoria/open-gpu-kernel-modules#9; tinygrad (`P2P mapping not supported for small bar devices`)",
    vendors=("nvidia",),
    level="standard",
    severity="info",
)
def rebar_nv(subject: Subject) -> Iterator[Finding]:
    for gpu in subject.functions("nvidia"):
        yield _judge_window(subject, gpu)
    if not subject.functions("nvidia"):
        yield skipped("no NVIDIA GPU here has a PCI function")


@gate(
    "mem.bar1_free",
    group="memory-mapping",
    title="There is room in BAR1",
    reads="NVML: used and total BAR1 of each GPU",
    criterion="less than 90 % is used",
    why="Mappings of the GPU's memory (peers, RDMA, graphics) fail when BAR1 is full, as if memory had run out.",
    action="Stop processes that map much of the GPU's memory, or enable Resizable BAR in the firmware.",
    source="NVIDIA/DCGM, PCIe plugin",
    vendors=("nvidia",),
    level="standard",
    limits={"used_share": _USED_SHARE},
)
def bar1_free(subject: Subject) -> Iterator[Finding]:
    limit = subject.limit("mem.bar1_free", "used_share", _USED_SHARE)
    for gpu in subject.functions("nvidia"):
        cells = nvml_cells(subject, gpu)
        total, used = amount(cells, "bar1", "total"), amount(cells, "bar1", "used")
        if cells is None:
            yield silent(subject, "how much of BAR1 is used", [gpu])
        elif value_of(cells, "bar1") is None:
            yield _without(cells, "bar1", gpu)
        elif total is None or total not in _SIZES or used is None or used > total:
            yield unknown("NVML's numbers for BAR1 make no sense", on=[gpu])
        else:
            shown = f"{size_words(used)} of {size_words(total)} used"
            evidence = Evidence(source=f"{SOURCE}: bar1", found=shown, expected=f"less than {limit:.0%}")
            if used < limit * total:
                yield passed("there is room in BAR1", evidence, on=[gpu])
            else:
                yield warned(f"BAR1 of {label(gpu)} is nearly full: {shown}", evidence, on=[gpu])
    if not subject.functions("nvidia"):
        yield skipped("no NVIDIA GPU here has a PCI function")


@gate(
    "mem.cc_mode",
    group="memory-mapping",
    title="Confidential computing is off",
    reads="NVML: state of confidential computing",
    criterion="it is off; where it is on, copies are slower",
    why="Every copy then goes through encrypted bounce buffers, and peers cannot reach each other.",
    action="Nothing, where it is meant to be on: expect less bandwidth. Else switch it off (nvidia-smi conf-compute).",
    source="NVIDIA/DCGM; nvml.h, nvmlConfComputeSystemState_t",
    vendors=("nvidia",),
    level="standard",
    severity="info",
)
def cc_mode(subject: Subject) -> Iterator[Finding]:
    reply = vendor_reply(subject, "nvidia")
    data = reply.data if reply.status == "ok" and isinstance(reply.data, dict) else {}
    state = value_of(data, "confidential_compute")
    feature = state.get("feature") if isinstance(state, dict) else None
    cell = data.get("confidential_compute")
    source = f"{SOURCE}: nvmlSystemGetConfComputeState"
    if feature == 0 and feature is not False:
        yield passed("confidential computing is off", Evidence(source=source, found="feature 0: disabled"))
    elif feature == 1 and feature is not True:
        evidence = Evidence(source=source, found="feature 1: enabled", expected="disabled")
        yield warned("confidential computing is on: copies are encrypted, slower, and never direct", evidence)
    elif isinstance(cell, dict) and cell.get("status") == "unsupported":
        yield skipped("this driver or these GPUs have no confidential computing")
    else:
        yield silent(subject, "whether confidential computing is on")


@gate(
    "mem.p2p_status.nv",
    group="memory-mapping",
    title="NVIDIA GPUs of one model are all peers, or none are",
    reads="NVML: nvmlDeviceGetP2PStatus for reading and writing, of each pair of GPUs of the same model",
    criterion="every pair says the same, in both directions, for reading as for writing",
    why="A hole in the matrix is a GPU in another slot, a switch with ACS, or a driver that gave up on a link: copies"
    " between some pairs then go through the host, and programs that asked one pair only get errors.",
    action="Look which pairs differ (nvidia-smi topo -p2p r), and what is between them (nvidia-smi topo -m).",
    source="scitix/sichek, components/nvidia/checker/check_p2p.go (a partial matrix is abnormal)",
    vendors=("nvidia",),
    level="standard",
)
def p2p_status(subject: Subject) -> Iterator[Finding]:
    if len(subject.functions("nvidia")) < 2:
        yield skipped("fewer than two NVIDIA GPUs: no peers")
        return
    pairs = peers_of(subject)
    if pairs is None or not (pairs or vendor_reply(subject, "nvidia").status == "ok"):
        yield silent(subject, "which GPUs are peers")
        return
    models: dict[str | None, list[Peers]] = {}
    for pair in pairs:
        if pair.first.device_id == pair.second.device_id:
            models.setdefault(pair.first.device_id, []).append(pair)
    if not models:
        yield skipped("no two NVIDIA GPUs here are of one model")
    for same in models.values():
        yield _judge_matrix(same)


def _without(cells: object, name: str, gpu: Gpu) -> Finding:
    cell = cells.get(name) if isinstance(cells, dict) else None
    status, detail = (cell.get("status"), cell.get("detail")) if isinstance(cell, dict) else (None, None)
    if status == "unsupported":
        return skipped(f"this GPU has no {name}", on=[gpu])
    return unknown(f"NVML does not tell its {name}: {detail or 'no such value in the reply'}", on=[gpu])


def _judge_window(subject: Subject, gpu: Gpu) -> Finding:
    cells = nvml_cells(subject, gpu)
    if cells is None:
        return silent(subject, "the size of BAR1", [gpu])
    window, memory = amount(cells, "bar1", "total"), amount(cells, "memory", "total")
    if window is None or memory is None:
        return _without(cells, "bar1" if window is None else "memory", gpu)
    if window not in _SIZES or memory not in _SIZES:
        return unknown("NVML's numbers for BAR1 and memory make no sense", on=[gpu])
    evidence = Evidence(source=f"{SOURCE}: bar1", found=size_words(window), expected=f"at least {size_words(memory)}")
    if window >= memory:
        return passed("BAR1 covers the whole memory", evidence, on=[gpu])
    sizes = sizes_of(subject, gpu, _BAR1)
    larger = sizes is not None and (sizes.largest_bytes is None or sizes.largest_bytes > window)
    if window > SMALL_BYTES or not larger:
        return passed(f"BAR1 covers {size_words(window)}: peers and RDMA can map that much", evidence, on=[gpu])
    words = f"BAR1 of {label(gpu)} covers {size_words(window)} of {size_words(memory)}, and could cover more"
    return warned(words, evidence, on=[gpu])


def _judge_matrix(pairs: list[Peers]) -> Finding:
    gpus = list({gpu.key: gpu for pair in pairs for gpu in (pair.first, pair.second)}.values())
    says = {(pair.first.id, pair.second.id): (pair.read, pair.write) for pair in pairs}
    good = [names for names, (read, write) in says.items() if read == write == "ok"]
    evidence = Evidence(
        source=f"{SOURCE}: nvmlDeviceGetP2PStatus",
        found=f"{len(good)} of {len(says)} directions are peers",
        expected="all or none",
    )
    if len(good) == len(says):
        return passed("each GPU can reach each other's memory", evidence, on=gpus)
    reasons = sorted({word for both in says.values() for word in both} - {"ok"})
    half = [names for names, (read, write) in says.items() if (read == "ok") != (write == "ok")]
    if not good and not half:
        return passed(
            f"no GPU can reach another's memory ({', '.join(reasons)}): copies go through the host", evidence, on=gpus
        )
    named = ", ".join(f"{first} to {second}" for first, second in says if (first, second) not in good)
    return warned(f"the matrix of peers has holes: {named} ({', '.join(reasons)})", evidence, on=gpus)

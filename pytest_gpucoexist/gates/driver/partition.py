"""How AMD's accelerators are partitioned, and whether what is here fits it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.findings import Finding, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.pcie.folders import ASLEEP, asleep, folder
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence
from pytest_gpucoexist.probes.reader import excerpt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import Gpu

__all__ = ["partition"]

_COMPUTE = {"SPX": 1, "DPX": 2, "TPX": 3, "QPX": 4, "CPX": None}
_MEMORY = re.compile(r"NPS[1248]")


@gate(
    "drv.amd.partition",
    group="driver",
    title="AMD accelerators of one model are partitioned alike",
    reads="current_compute_partition and current_memory_partition of each PCI function of amdgpu",
    criterion="one mode for all accelerators of a model",
    why="with one card in CPX and the next in SPX device numbers, memory sizes and speeds differ between equal cards",
    action="set the same mode on all: amd-smi set --gpu all --compute-partition SPX",
    source="ROCm/amdsmi py-interface; amd/node-scraper amdsmi plugin",
    vendors=("amd",),
)
def partition(subject: Subject) -> Iterator[Finding]:
    """Read each card's modes and compare cards of the same model."""
    modes: dict[str, list[tuple[Gpu, str, tuple[Evidence, ...]]]] = {}
    for gpu in subject.functions("amd"):
        path = folder(subject, gpu)
        if asleep(subject, gpu):
            yield skipped(ASLEEP, on=[gpu])
            continue
        text = subject.read(f"{path}/current_compute_partition", 64)
        if text.text is None:
            if text.status in {"absent", "unsupported"} and subject.host.exists(path):
                yield skipped("it cannot be partitioned", on=[gpu])
            else:
                yield unknown(f"{text.path}: {text.detail}", on=[gpu])
            continue
        compute = text.text.strip()
        memory = subject.read(f"{path}/current_memory_partition", 64)
        nps = (memory.text or "").strip()
        wrong = compute not in _COMPUTE or (memory.text is not None and not _MEMORY.fullmatch(nps))
        if wrong:
            yield unknown(f"its partition modes make no sense: {excerpt(compute)} {excerpt(nps)}", on=[gpu])
            continue
        evidence = [Evidence(source=text.path, found=compute)]
        if nps:
            evidence.append(Evidence(source=memory.path, found=nps))
        modes.setdefault(gpu.device_id or "", []).append((gpu, f"{compute} {nps}".strip(), tuple(evidence)))
    for cards in modes.values():
        different = sorted({mode for _gpu, mode, _evidence in cards})
        for gpu, mode, evidence_of in cards:
            if len(different) > 1:
                words = f"cards of this model are partitioned differently: {', '.join(different)}"
                yield warned(words, *evidence_of, on=[gpu])
            else:
                yield passed(f"its mode is {mode}", *evidence_of, on=[gpu])

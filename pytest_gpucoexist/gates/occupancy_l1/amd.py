"""Memory and time of others on AMD's GPUs, as amdgpu shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.findings import Finding, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.occupancy.display import shows_desktop
from pytest_gpucoexist.gates.pcie.folders import asleep, folder
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject


@gate(
    "proc.amd.vram_used",
    group="occupancy",
    title="The GPU's memory is free and it is idle",
    reads="mem_info_vram_used, mem_info_vram_total and gpu_busy_percent of each AMD board that is awake",
    criterion="less than 5 % of the memory, less than 10 % busy; 25 % and 30 % where it shows a desktop",
    why="Memory and time that others take are missing to the tests.",
    action="End what uses it, or choose another GPU",
    source="ROCm/amdsmi; kernel amdgpu_vram_mgr.c, amdgpu_pm.c",
    vendors=("amd",),
    level="standard",
    limits={"percent": 5, "busy": 10, "desktop_percent": 25, "desktop_busy": 30},
)
def vram_used(subject: Subject) -> Iterator[Finding]:
    """Read what amdgpu accounts. A processor's GPU shares its memory with the desktop by design: not judged."""
    limits = (subject.limit("proc.amd.vram_used", "percent", 5), subject.limit("proc.amd.vram_used", "busy", 10))
    desktop = (
        subject.limit("proc.amd.vram_used", "desktop_percent", 25),
        subject.limit("proc.amd.vram_used", "desktop_busy", 30),
    )
    some = False
    for gpu in subject.functions("amd"):
        some = True
        on = [each for each in subject.gpus("amd") if each.pci_address == gpu.pci_address]
        if gpu.kind == "integrated":
            yield skipped("its memory is the desktop's too", on=on)
            continue
        if asleep(subject, gpu):
            yield skipped("asleep: nobody uses it", on=on)
            continue
        percent, limit_busy = desktop if shows_desktop(subject, gpu) else limits
        path = folder(subject, gpu)
        names = ("mem_info_vram_used", "mem_info_vram_total", "gpu_busy_percent")
        texts = {name: subject.read(f"{path}/{name}") for name in names}
        used, total, busy = (_number(text.text) for text in texts.values())
        if all(text.status == "absent" for text in texts.values()):
            yield skipped("its driver does not account memory", on=on)
            continue
        evidence = Evidence(
            source=f"{path}: {', '.join(names)}",
            found=f"{_mib(used)} of {_mib(total)} MiB, {'?' if busy is None else busy} % busy",
            expected=f"less than {percent:g} %, less than {limit_busy:g} % busy",
        )
        if busy is not None and 100 >= busy >= limit_busy:
            yield warned(f"it is {busy} % busy", evidence, on=on)
        elif used is None or not total or used > total or (busy or 0) > 100:
            yield unknown("its memory or its load could not be read", evidence, on=on)
        elif used * 100 >= percent * total:
            yield warned("more of its memory is in use than an idle board needs", evidence, on=on)
        else:
            yield passed("its memory is free and it is idle", evidence, on=on)
    if not some:
        yield skipped("no AMD GPU with a PCI function here")


def _mib(count: int | None) -> str:
    return "?" if count is None else str(count >> 20)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 20 else None

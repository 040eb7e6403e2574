"""What amdgpu counts of memory errors: boards for data centres have a `ras` folder, and some for workstations."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.findings import Finding, failed, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.pcie.folders import asleep, folder
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence
from pytest_gpucoexist.probes.reader import excerpt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import Gpu

_COUNT = re.compile(r"(ue|ce|de): (\d{1,20})")
_PAGE = re.compile(r"0x[0-9a-fA-F]{1,16} : 0x[0-9a-fA-F]{1,16} : ([RPF])")
_MASK = re.compile(r"feature mask: 0x([0-9a-fA-F]{1,16})")
_INACCESSIBLE = "Query currently inaccessible"
_KINDS = {"ue": "uncorrectable", "de": "deferred", "ce": "corrected"}


@gate(
    "ras.amd.counts",
    group="ras",
    title="No uncorrectable memory errors",
    reads="ras/*_err_count of each AMD GPU: uncorrectable (ue), deferred (de) and corrected (ce) errors by block",
    criterion="ue 0 and de 0; ce above 0 warns",
    why="Data was lost: results are wrong, or the next access to the page ends the process.",
    action="Reset the GPU or reboot; replace the board when errors come back",
    source="ROCm/amdsmi rocm_smi_device.cc; amd/node-scraper amdsmi analyzer; kernel amdgpu_ras.c",
    vendors=("amd",),
    severity="fail",
    blocking=True,
)
def counts(subject: Subject) -> Iterator[Finding]:
    """Read the counters of each GPU that is awake."""
    yield from _awake(subject, _counts)


@gate(
    "ras.amd.bad_pages",
    group="ras",
    title="Few bad pages, and none waits",
    reads="ras/gpu_vram_bad_pages of each AMD GPU: retired (R), pending (P) and unretirable (F) pages",
    criterion="no F; P warns; fewer than 128 in all",
    why="A page that could not be retired is still given out; after 128 the driver wants another board.",
    action="P: reset the GPU when nothing uses it; F, or 128 and more: replace the board",
    source="ROCm/amdsmi src/amd_smi/amd_smi_utils.cc; amd/node-scraper",
    vendors=("amd",),
    severity="fail",
    limits={"pages": 128},
)
def bad_pages(subject: Subject) -> Iterator[Finding]:
    """Read the table itself: amdsmi leaves its count unset when the file is empty."""
    limit = subject.limit("ras.amd.bad_pages", "pages", 128)
    yield from _awake(subject, lambda subject, gpu, on: _bad_pages(subject, gpu, on, limit))


@gate(
    "ras.amd.features",
    group="ras",
    title="RAS is on where the board has it",
    reads="ras/features of each AMD GPU; /sys/module/amdgpu/parameters/ras_enable",
    criterion="a feature mask above 0",
    why="With RAS off errors of memory are neither corrected nor counted: the gates beside this one see nothing.",
    action="Remove amdgpu.ras_enable=0 from the kernel command line or modprobe.d",
    source="ROCm/legacy-rocm-build#1541; kernel amdgpu_ras.c",
    vendors=("amd",),
    severity="info",
)
def features(subject: Subject) -> Iterator[Finding]:
    """Record the mask of features."""
    yield from _awake(subject, _features)


def _awake(subject: Subject, judge: Callable[[Subject, Gpu, list[Gpu]], Finding]) -> Iterator[Finding]:
    """Judge each GPU of amdgpu that has a `ras` folder and is awake."""
    some = False
    for gpu in subject.functions("amd"):
        on = [each for each in subject.gpus("amd") if each.pci_address == gpu.pci_address]
        some = True
        if gpu.driver != "amdgpu":
            yield skipped("amdgpu does not hold it", on=on)
        elif asleep(subject, gpu):
            yield skipped("asleep; a quick gate does not wake it", on=on)
        elif not subject.names(_folder(subject, gpu)):
            yield skipped("this board or driver has no RAS counters", on=on)
        else:
            yield judge(subject, gpu, on)
    if not some:
        yield skipped("no AMD GPU with a PCI function here")


def _counts(subject: Subject, gpu: Gpu, on: list[Gpu]) -> Finding:
    files = [name for name in subject.names(_folder(subject, gpu)) if name.endswith("_err_count")]
    if not files:
        return skipped("this board or driver has no RAS counters", on=on)
    totals = dict.fromkeys(_KINDS, 0)
    shown, unread, read = [], [], 0
    for name in files:
        text = subject.read(f"{_folder(subject, gpu)}/{name}")
        block = name.removesuffix("_err_count")
        found = _errors(text.text or "")
        if text.text is None or found is None:
            unread.append(f"{block}: {text.detail or excerpt(text.text or '')}")
            continue
        read += 1
        for kind, count in found.items():
            totals[kind] += count
        shown += [f"{block} {kind}: {count}" for kind, count in found.items() if count]
    evidence = Evidence(
        source=f"{_folder(subject, gpu)}/*_err_count",
        found=", ".join(shown) or f"all 0 in {read} blocks",
        expected="ue: 0, de: 0",
    )
    lost = [f"{totals[kind]} {_KINDS[kind]}" for kind in ("ue", "de") if totals[kind]]
    if lost:
        noun = "error" if totals["ue"] + totals["de"] == 1 else "errors"
        return failed(f"{' and '.join(lost)} memory {noun} since the driver loaded", evidence, on=on)
    if unread:
        return unknown(f"counters could not be read: {'; '.join(unread)}", evidence, on=on)
    if totals["ce"]:
        noun = "error" if totals["ce"] == 1 else "errors"
        return warned(f"{totals['ce']} corrected memory {noun} since the driver loaded", evidence, on=on)
    return passed("no memory error since the driver loaded", evidence, on=on)


def _errors(text: str) -> dict[str, int] | None:
    """Read lines such as `ue: 0`; None when it is anything else."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        match = _COUNT.fullmatch(line.strip())
        if match is None:
            return None
        found[match[1]] = int(match[2])
    return found if "ue" in found and "ce" in found else None


def _bad_pages(subject: Subject, gpu: Gpu, on: list[Gpu], limit: float) -> Finding:
    path = f"{_folder(subject, gpu)}/gpu_vram_bad_pages"
    if "gpu_vram_bad_pages" not in subject.names(_folder(subject, gpu)):
        return skipped("this board or driver keeps no table of bad pages", on=on)
    text = subject.read(path)
    if text.text is None:
        return unknown(f"the table of bad pages could not be read: {text.detail}", on=on)
    rows = [line.strip() for line in text.text.splitlines() if line.strip()]
    flags = [match[1] for row in rows if (match := _PAGE.fullmatch(row)) is not None]
    if len(flags) != len(rows):
        odd = next(row for row in rows if _PAGE.fullmatch(row) is None)
        return unknown(f"the table of bad pages makes no sense: {excerpt(odd)}", on=on)
    failures, pending = flags.count("F"), flags.count("P")
    evidence = Evidence(
        source=path,
        found=f"{len(flags)} pages: {flags.count('R')} retired, {pending} pending, {failures} unretirable",
        expected=f"0 pending, 0 unretirable, fewer than {limit:g}",
    )
    if failures:
        return failed(f"{failures} bad page{'s' * (failures > 1)} of memory could not be retired", evidence, on=on)
    if len(flags) >= limit:
        return failed(f"{len(flags)} bad pages of memory", evidence, on=on)
    if pending:
        return warned(
            f"{pending} bad page{'s wait' if pending > 1 else ' waits'} for a reset to be retired", evidence, on=on
        )
    return passed("no bad page waits", evidence, on=on)


def _features(subject: Subject, gpu: Gpu, on: list[Gpu]) -> Finding:
    text = subject.read(f"{_folder(subject, gpu)}/features")
    if text.text is None:
        return (
            skipped("this driver has no ras/features", on=on)
            if text.status == "absent"
            else unknown(f"the RAS features could not be read: {text.detail}", on=on)
        )
    match = _MASK.match(text.text)
    if match is None:
        return unknown(f"the RAS features make no sense: {excerpt(text.text)}", on=on)
    evidence = Evidence(source=text.path, found=f"feature mask 0x{match[1]}", expected="above 0")
    if int(match[1], 16) == 0:
        return warned("the board has RAS, and it is off", evidence, on=on)
    return passed("RAS is on", evidence, on=on)


def _folder(subject: Subject, gpu: Gpu) -> str:
    return f"{folder(subject, gpu)}/ras"

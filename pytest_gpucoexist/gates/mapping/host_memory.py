"""Host memory for staging: how much there is, where the kernel bounces or moves it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.findings import Finding, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.mapping.addresses import MIB, size_words
from pytest_gpucoexist.gates.mapping.limits import limits_of
from pytest_gpucoexist.gates.pcie.folders import ASLEEP, asleep, folder, label
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence
from pytest_gpucoexist.probes.parse import number
from pytest_gpucoexist.probes.reader import excerpt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import Gpu

__all__ = ["available_bytes", "gtt", "host_free", "numa_balancing", "swiotlb_force"]

_STAGING_MIB = 64.0
_RESERVE = 2048 * MIB
_SLOTS = 4
_USED_SHARE = 0.5

_GUEST_NODES = {"/sys/class/misc/sev-guest": "SEV", "/sys/class/misc/tdx_guest": "TDX"}
"""What a confidential guest has; the flags `sev` and `sev_es` of a processor only say what it could do."""


@gate(
    "mem.host_free",
    group="memory-mapping",
    title="There is host memory to stage through",
    reads="MemAvailable in /proc/meminfo; memory.max, memory.current and memory.stat of this process's cgroups (v2), or"
    " memory.limit_in_bytes and memory.usage_in_bytes (v1)",
    criterion="2 GiB and four staging buffers are free, within the cgroup's limit too",
    why="Copies between vendors go through pinned host memory. Where it runs out the kernel kills a process, and what"
    " a test reports then is of no use.",
    action="Free memory, raise the container's limit, or shrink the staging buffers.",
    source="Azure/azurehpc-health-checks; Documentation/admin-guide/cgroup-v2.rst",
    vendors=(),
    level="quick",
    limits={"staging_mib": _STAGING_MIB},
)
def host_free(subject: Subject) -> Iterator[Finding]:
    staging = subject.limit("mem.host_free", "staging_mib", _STAGING_MIB)
    needed = int(_SLOTS * staging * MIB) + _RESERVE
    text = subject.read("/proc/meminfo")
    free = None if text.text is None else available_bytes(text.text)
    if free is None:
        yield unknown(f"/proc/meminfo does not tell how much is free: {text.detail or 'no MemAvailable in it'}")
        return
    rooms = [(free, "/proc/meminfo", "MemAvailable"), *limits_of(subject)]
    least, source, what = min(rooms)
    evidence = Evidence(source=source, found=f"{what}: {size_words(least)}", expected=f"at least {size_words(needed)}")
    if least >= needed:
        yield passed("there is host memory to stage through", evidence)
    else:
        yield warned(
            f"only {size_words(least)} of host memory are free ({what}); {size_words(needed)} wanted", evidence
        )


@gate(
    "mem.gtt.amd",
    group="memory-mapping",
    title="AMD GPUs can map enough host memory",
    reads="mem_info_gtt_total of each AMD GPU",
    criterion="it holds two staging buffers",
    why="hipHostRegister and hipHostMalloc fail with out of memory when the GPU's window into host memory is small.",
    action="Raise it: amdgpu.gttsize, or ttm.pages_limit on newer kernels.",
    source="ROCm/legacy-rocm-build#1483",
    vendors=("amd",),
    level="quick",
    limits={"staging_mib": _STAGING_MIB},
)
def gtt(subject: Subject) -> Iterator[Finding]:
    needed = int(2 * subject.limit("mem.gtt.amd", "staging_mib", _STAGING_MIB) * MIB)
    for gpu in subject.functions("amd"):
        yield _judge_gtt(subject, gpu, needed)
    if not subject.functions("amd"):
        yield skipped("no AMD GPU here has a PCI function")


@gate(
    "mem.swiotlb_force",
    group="memory-mapping",
    title="Copies do not go through bounce buffers",
    reads="swiotlb= and mem_encrypt= in /proc/cmdline; signs of a SEV or TDX guest; /sys/kernel/debug/swiotlb (root)",
    criterion="bounce buffers are not forced, and less than half of them are used",
    why="Each copy to or from the device is then copied once more by the processor: half the bandwidth, or less.",
    action="Remove swiotlb=force and mem_encrypt=on from the kernel's command line; in a confidential guest expect it.",
    source="QubesOS/qubes-issues#5670; Documentation/core-api/swiotlb.rst",
    level="quick",
    limits={"used_share": _USED_SHARE},
)
def swiotlb_force(subject: Subject) -> Iterator[Finding]:
    limit = subject.limit("mem.swiotlb_force", "used_share", _USED_SHARE)
    text = subject.read("/proc/cmdline")
    if text.text is None:
        yield unknown(f"/proc/cmdline cannot be read: {text.detail}")
        return
    words = text.text.split()
    forced = [word for word in words if re.fullmatch(r"swiotlb=(?:\d+(?:,\d+)?,)?force|mem_encrypt=on", word)]
    if forced:
        evidence = Evidence(source=text.path, found=" ".join(forced), expected="neither of them")
        yield warned(f"copies go through bounce buffers: {' '.join(forced)}", evidence)
        return
    for path, kind in _GUEST_NODES.items():
        if subject.host.exists(path):
            evidence = Evidence(source=path, found=f"a {kind} guest", expected="no confidential guest")
            yield warned(f"a confidential guest ({kind}): copies go through bounce buffers", evidence)
            return
    used, slots = (
        number(subject.read(f"/sys/kernel/debug/swiotlb/{name}").text or "")
        for name in ("io_tlb_used", "io_tlb_nslabs")
    )
    evidence = Evidence(source=text.path, found="nothing that forces bounce buffers")
    if isinstance(used, int) and isinstance(slots, int) and slots:
        shown = Evidence(source="/sys/kernel/debug/swiotlb", found=f"{used} of {slots} slots used")
        if used > limit * slots:
            yield warned(f"bounce buffers are in use: {used} of {slots} slots", shown)
            return
        yield passed("bounce buffers are not forced, and hardly used", evidence, shown)
        return
    yield passed("bounce buffers are not forced", evidence)


@gate(
    "mem.numa_balancing",
    group="memory-mapping",
    title="Pages stay where they were put while copies are measured",
    reads="/proc/sys/kernel/numa_balancing; /sys/kernel/mm/transparent_hugepage/enabled",
    criterion="with several NUMA nodes, automatic balancing is off while copies are measured; else it is only told",
    why="The kernel moves pages between nodes while they are copied, and a bandwidth is measured of two nodes.",
    action="While you measure: echo 0 | sudo tee /proc/sys/kernel/numa_balancing",
    source="nvidia-bug-report.sh; amd/node-scraper, sysctl and sys_settings",
    vendors=(),
    level="quick",
    severity="info",
)
def numa_balancing(subject: Subject) -> Iterator[Finding]:
    if len(subject.machine.numa_nodes) < 2:
        yield skipped("fewer than two NUMA nodes")
        return
    text = subject.read("/proc/sys/kernel/numa_balancing")
    if text.text is None and text.status == "absent" and subject.host.exists("/proc/sys/kernel"):
        yield skipped("this kernel does not balance NUMA nodes")
        return
    state = number(text.text or "", high=3)
    if not isinstance(state, int):
        yield unknown(f"{text.path} cannot be read: {text.detail or state.detail}")
        return
    pages = subject.read("/sys/kernel/mm/transparent_hugepage/enabled")
    evidence = [Evidence(source=text.path, found=str(state), expected="0 while copies are measured")]
    if pages.text is not None:
        evidence.append(Evidence(source=pages.path, found=excerpt(pages.text.strip())))
    measuring = subject.level in {"transfer", "full"}
    if state and measuring:
        yield warned("the kernel moves pages between NUMA nodes while copies are measured", *evidence)
    else:
        yield passed(f"automatic NUMA balancing is {'on' if state else 'off'}", *evidence)


def available_bytes(text: str) -> int | None:
    """Read MemAvailable of `/proc/meminfo` (proc(5): in kB)."""
    match = re.search(r"^MemAvailable:\s{1,20}([0-9]{1,15}) kB$", text, re.MULTILINE)
    return None if match is None else int(match[1]) * 1024


def _judge_gtt(subject: Subject, gpu: Gpu, needed: int) -> Finding:
    if asleep(subject, gpu):
        return skipped(ASLEEP, on=[gpu])
    text = subject.read(f"{folder(subject, gpu)}/mem_info_gtt_total")
    if text.status == "absent":
        return skipped("its driver does not tell", on=[gpu])
    total = number(text.text or "", low=1)
    if not isinstance(total, int):
        return unknown(f"how much host memory it can map cannot be read: {text.detail or total.detail}", on=[gpu])
    evidence = Evidence(source=text.path, found=size_words(total), expected=f"at least {size_words(needed)}")
    if total >= needed:
        return passed("it can map enough host memory", evidence, on=[gpu])
    return warned(f"{label(gpu)} can map only {size_words(total)} of host memory", evidence, on=[gpu])

"""Gates about what else a GPU or its CPUs do: a display, an integrated GPU beside the cards, the CPUs' clock."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.asked import VENDOR_NAMES
from pytest_gpucoexist.gates.findings import Finding, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence, Fix
from pytest_gpucoexist.model.visibility.order import amd_uuid, count_rocm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import Gpu

__all__ = ["boot_display", "cpu_governor", "igpu_visible"]

_CONNECTOR = re.compile(r"card\d+-[\w-]+")
_POLICIES = "/sys/devices/system/cpu/cpufreq"
_POLICY = re.compile(r"policy(\d+)")
_MAX_POLICIES = 64
# With these the governor powersave follows the load (Documentation/admin-guide/pm/intel_pstate.rst, amd-pstate.rst).
_SCALING = {"intel_pstate", "amd-pstate-epp", "amd_pstate_epp"}


@gate(
    "topo.igpu_visible",
    group="numa",
    vendors=("amd",),
    title="No integrated AMD GPU among the cards",
    reads="the GPUs that ROCm counts, in its order, after the masks",
    criterion="beside AMD cards, the processor's own GPU is hidden from ROCm",
    why="ROCm counts the processor's GPU too, sometimes first: a program that takes device 0, or all of them, "
    "crashes or gives wrong results there",
    action="hide it with ROCR_VISIBLE_DEVICES, which names the cards",
    source="lemonade-sdk/lemonade#1921; ROCm/TheRock#3392",
)
def igpu_visible(subject: Subject) -> Iterator[Finding]:
    """Look for an APU beside cards."""
    counted = count_rocm(subject.machine).gpus
    small = [gpu for gpu in counted if gpu.kind == "integrated"]
    cards = [gpu for gpu in counted if gpu.kind != "integrated"]
    if not small or not cards:
        why = "ROCm counts no integrated GPU here" if not small else "ROCm counts no card beside the integrated GPU"
        yield (
            passed(why, Evidence(source="KFD", found=_listed(counted)))
            if counted
            else skipped("ROCm counts no GPU here")
        )
        return
    shown = [gpu for gpu in small if gpu.visible]
    evidence = Evidence(source="GPUs in ROCm's order", found=_listed(counted), expected="cards alone")
    if not shown or not any(gpu.visible for gpu in cards):
        yield passed("the integrated GPU and the cards are not both visible", evidence, on=small)
        return
    if not _rocm_is_here(subject):
        yield passed("ROCm would count the integrated GPU beside the cards; nothing here uses ROCm", evidence, on=small)
        return
    names = [amd_uuid(gpu) for gpu in cards]
    value = ",".join(names if "GPU-XX" not in names else [str(counted.index(gpu)) for gpu in cards])
    yield warned(
        f"ROCm counts the processor's own GPU ({shown[0].id}, number {counted.index(shown[0])}) beside {len(cards)} "
        f"card{'s' if len(cards) > 1 else ''}",
        evidence,
        on=shown,
        fix=[Fix(lines=(f"export ROCR_VISIBLE_DEVICES={value}",))],
    )


def _rocm_is_here(subject: Subject) -> bool:
    """Whether somebody wants ROCm, or has it: a wheel that brings HIP along counts too."""
    if subject.wanted("amd") is not None or "amd" in subject.needed:
        return True
    return any("amd" in runtime.vendors for runtime in subject.machine.runtimes)


def _listed(gpus: tuple[Gpu, ...]) -> str:
    return ", ".join(f"{number}: {gpu.id} ({gpu.kind})" for number, gpu in enumerate(gpus)) or "none"


@gate(
    "topo.boot_display",
    group="numa",
    severity="info",
    title="No test GPU drives a display",
    reads="boot_vga, /sys/class/drm/card*-*/status",
    criterion="no monitor is connected to it",
    why="a desktop takes memory and time of its GPU, and on NVIDIA the driver ends a kernel that holds up the display",
    action="expect noise in memory and timing, or run the desktop on another GPU",
    source="canonical/checkbox contrib/pc-sanity/bin/check-nvidia.sh",
)
def boot_display(subject: Subject) -> Iterator[Finding]:
    """Look at each GPU's connectors. Their status is what the driver remembers: reading it wakes nothing."""
    for gpu in subject.functions():
        yield _display(subject, gpu)
    if not subject.functions():
        yield skipped("the GPUs here have no PCI function, by which their connectors are known")


def _display(subject: Subject, gpu: Gpu) -> Finding:
    boot = {True: "1", False: "0", None: "not told"}[gpu.boot_vga]
    rows = [Evidence(source=f"/sys/bus/pci/devices/{gpu.pci_address}/boot_vga", found=boot, expected="0")]
    card = gpu.drm.card if gpu.drm is not None else None
    names = [name for name in subject.names("/sys/class/drm") if _CONNECTOR.fullmatch(name)]
    mine = [name for name in names if name.startswith(f"{card}-") and "Writeback" not in name]
    connected, unread = [], []
    for name in mine:
        path = f"/sys/class/drm/{name}/status"
        status = (subject.read(path).text or "").strip()
        if status == "connected":
            connected.append(name.partition("-")[2])
        elif status not in {"disconnected", "unknown"}:
            unread.append(name)
        rows.append(Evidence(source=path, found=status or "cannot be read", expected="disconnected"))
    idle = gpu.kind == "integrated" or not (gpu.usable.cuda or gpu.usable.rocm)
    if connected and idle and subject.wanted(gpu.vendor) is None:
        words = (
            f"it drives a display ({', '.join(connected)}), and nothing here asks for {VENDOR_NAMES[gpu.vendor]} GPUs"
        )
        return skipped(words, on=[gpu])
    if connected:
        return warned(f"it drives a display ({', '.join(connected)})", *rows, on=[gpu])
    if unread:
        return unknown("its connectors cannot be read", *rows, on=[gpu])
    if mine:
        return passed("no monitor is connected to it", *rows, on=[gpu])
    if gpu.class_id is not None and not gpu.class_id.startswith("0x0300"):
        rows.append(Evidence(source="class", found=gpu.class_id, expected="no display controller that shows a picture"))
        return passed("its class is not that of a display", *rows, on=[gpu])
    if gpu.boot_vga is False:
        return passed("it has no connector, and was not the display at boot", *rows, on=[gpu])
    return unknown("whether it drives a display is not told: no connector of it is listed", *rows, on=[gpu])


@gate(
    "topo.cpu_governor",
    group="numa",
    severity="info",
    title="The CPUs follow the load",
    reads="/sys/devices/system/cpu/cpufreq/policy*/scaling_governor and scaling_driver",
    criterion="performance, schedutil, ondemand, or powersave of a driver that follows the load by itself",
    why="CPUs that stay at their lowest clock halve every staged copy, and a bandwidth test then blames the GPU",
    action="sudo cpupower frequency-set -g performance, while measuring",
    source="Documentation/admin-guide/pm/cpufreq.rst, intel_pstate.rst",
)
def cpu_governor(subject: Subject) -> Iterator[Finding]:
    """Look at the governor of each policy."""
    policies = sorted(int(match[1]) for match in map(_POLICY.fullmatch, subject.names(_POLICIES)) if match is not None)
    if not policies and not subject.names("/sys/devices/system/cpu"):
        yield unknown(
            "the CPUs are not told", Evidence(source="/sys/devices/system/cpu", found="nothing", expected="cpufreq")
        )
        return
    if not policies:
        yield skipped("no cpufreq here: a virtual machine, or a clock that firmware alone decides")
        return
    governors: dict[str, int] = {}
    for number in policies[:_MAX_POLICIES]:
        text = subject.read(f"{_POLICIES}/policy{number}/scaling_governor").text
        word = (text or "").strip()
        if not re.fullmatch(r"[a-z_]{1,15}", word):
            path = f"{_POLICIES}/policy{number}/scaling_governor"
            yield unknown(
                "a governor cannot be read",
                Evidence(source=path, found=repr(word) if text is not None else "not there"),
            )
            return
        governors[word] = governors.get(word, 0) + 1
    driver = (subject.read(f"{_POLICIES}/policy{policies[0]}/scaling_driver").text or "").strip()
    found = ", ".join(f"{count} {word}" for word, count in governors.items())
    evidence = Evidence(source=f"{_POLICIES}/policy*/scaling_governor", found=f"{found}; driver {driver or 'not told'}")
    slow = "powersave" in governors and driver not in _SCALING
    if slow:
        fix = [Fix(lines=("sudo cpupower frequency-set -g performance",))]
        yield warned(
            f"the governor powersave of {driver or 'this driver'} keeps CPUs at their lowest clock", evidence, fix=fix
        )
        return
    yield passed(f"the CPUs follow the load ({found})", evidence)

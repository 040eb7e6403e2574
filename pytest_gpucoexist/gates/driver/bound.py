"""Which kernel driver holds each GPU.

A device's `driver` link in sysfs is the truth: loaded modules say nothing about who holds what. A foreign driver is
wrong only where somebody wants to compute on the card.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.asked import VENDOR_NAMES as NAMES
from pytest_gpucoexist.gates.driver.generations import outdated
from pytest_gpucoexist.gates.findings import Finding, failed, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.kernel_module.advice import FORCED_OUT, keep_out, let_in, rebuild_initramfs
from pytest_gpucoexist.gates.kernel_module.rules import module_rules
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence, Fix

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import Gpu

__all__ = ["OWN_DRIVERS", "bound_driver", "is_own"]

OWN_DRIVERS = {"nvidia": ("nvidia",), "amd": ("amdgpu",), "intel": ("i915", "xe")}
PROMISES = {"nvidia": ("nvidia", "cuda"), "amd": ("amd", "rocm"), "intel": ("intel",)}

# Drivers that hold a device for somebody else: a virtual machine, or a program of its own.
_GIVEN_AWAY = {
    "vfio-pci",
    "pci-stub",
    "pciback",
    "xen-pciback",
    "xe-vfio-pci",
    "nvgrace-gpu-vfio-pci",
    "nvidia-vgpu-vfio",
    "uio_pci_generic",
    "igb_uio",
}
# nova-core's driver is registered under several spellings, depending on the kernel.
_NOVA = {"nova_core", "nova-core", "novacore", "NovaCore"}

NO_LINE = "no such line"

_DEVICES = "/sys/bus/pci/devices"


def is_own(gpu: Gpu) -> bool:
    """Whether the vendor's own compute driver holds the GPU."""
    return gpu.driver in OWN_DRIVERS.get(gpu.vendor, ())


@gate(
    "drv.bound_driver",
    group="driver",
    title="The vendor's kernel driver holds the GPU",
    reads="the link `driver` of each GPU's PCI function, `driver_override`, modprobe.d and the kernel's command line",
    criterion="nvidia holds NVIDIA's GPUs, amdgpu AMD's, i915 or xe Intel's, where somebody wants to compute on them",
    why="with nouveau, nova_core, radeon or vfio-pci on the card CUDA, ROCm and Level Zero do not see it: tests skip "
    "silently or fall back to the CPU",
    action="load the vendor's driver; keep the other one out in modprobe.d, rebuild the initramfs and reboot",
    source="NVIDIA/DCGM nvvs/src/Software.cpp (nouveau); wezterm/wezterm#3561 (vfio-pci); "
    "beclab/Olares#3963 (nova_core)",
    severity="fail",
    blocking=True,
)
def bound_driver(subject: Subject) -> Iterator[Finding]:
    """Judge each PCI function of a GPU by the driver that holds it."""
    functions = subject.functions()
    if not functions:
        yield skipped("the GPUs here have no PCI function")
        return
    told = subject.host.exists("/sys/bus/pci/drivers") or any(
        gpu.driver or any(bridge.driver for bridge in gpu.upstream_links) for gpu in subject.machine.gpus
    )
    for gpu in functions:
        yield _judge(subject, gpu, functions, told=told)


def _judge(subject: Subject, gpu: Gpu, functions: list[Gpu], *, told: bool) -> Finding:
    fact = gpu.facts.get("driver")
    link = Evidence(
        source=(fact.source if fact is not None else "") or f"{_DEVICES}/{gpu.pci_address}/driver",
        found=gpu.driver or "no link",
        expected=_expected(gpu),
    )
    if is_own(gpu):
        return passed(f"{gpu.driver} holds it", link, on=[gpu])
    if gpu.driver is None and (not told or fact is None or fact.status != "absent"):
        detail = fact.detail if fact is not None and fact.status != "absent" else "nothing here tells drivers"
        return unknown(f"which driver holds it is not known: {detail}", link, on=[gpu])
    if gpu.driver is None and subject.host.exists(f"{_DEVICES}/{gpu.pci_address}/physfn"):
        return skipped("a virtual function that nobody uses", on=[gpu])
    wanted = subject.wanted(gpu.vendor)
    state = "no driver holds it" if gpu.driver is None else f"{gpu.driver} holds it"
    vendor = NAMES[gpu.vendor]
    if wanted is None:
        return skipped(f"{state}, and nothing here asks for {vendor} GPUs", on=[gpu])
    good = [each for each in functions if each.vendor == gpu.vendor and is_own(each)]
    away = _given_away(subject, gpu)
    promised = _promised(subject, gpu.vendor)
    enough = len(good) >= max(promised, 1)
    if away is not None and enough:
        return warned(
            f"{state}: it was given away ({away}), and {len(good)} other {vendor} GPU(s) are here to be used",
            link,
            on=[gpu],
            action="nothing, if a virtual machine is to have it",
        )
    old = outdated(gpu)
    if old is not None and (enough or not promised):
        if good:
            return skipped(f"{state}: {old}; the other {vendor} GPU(s) have their driver", on=[gpu])
        return warned(f"{state}: {old}, though {wanted}", link, on=[gpu])
    if gpu.kind == "integrated" and enough:
        return warned(f"{state}: this integrated GPU cannot be used, the other {vendor} GPU(s) can", link, on=[gpu])
    if gpu.kind == "integrated" and gpu.vendor == "intel" and not promised:
        # Level Zero's loader comes along with hwloc and compilers: no sign that anybody computes on a display's GPU.
        return warned(f"{state}: this integrated GPU cannot be used, though {wanted}", link, on=[gpu])
    more, fix = _help(subject, gpu, away)
    if gpu.driver is None and away is None and not promised and any(each.expected == NO_LINE for each in more):
        # `prime-select intel` does this to a laptop whose NVIDIA software stays installed.
        words = f"{state}: a line keeps {_expected(gpu)} out, though {wanted}"
        return warned(words, link, *more, on=[gpu], action="nothing, if that is on purpose", fix=fix)
    expected = _expected(gpu)
    words = f"{state} instead of {expected}" if gpu.driver else f"{state}: {expected} is not bound"
    return failed(f"{words}, though {wanted}", link, *more, on=[gpu], action=_action(gpu, away), fix=fix)


def _expected(gpu: Gpu) -> str:
    """Name the drivers that could hold it."""
    return " or ".join(OWN_DRIVERS[gpu.vendor])


def _promised(subject: Subject, vendor: str) -> int:
    return max((subject.promised.get(name, 0) for name in PROMISES[vendor]), default=0)


def _given_away(subject: Subject, gpu: Gpu) -> str | None:
    """Say who took the device away on purpose: a driver for passing it on, or an override."""
    if gpu.driver in _GIVEN_AWAY:
        return f"{gpu.driver} passes a device to a virtual machine or a program"
    override = subject.read(f"{_DEVICES}/{gpu.pci_address}/driver_override", 256).text
    # The kernel prints "(null)" where nobody set one.
    if override and override != "(null)" and override not in OWN_DRIVERS[gpu.vendor]:
        return f"driver_override is {override}"
    return None


def _action(gpu: Gpu, away: str | None) -> str | None:
    if away is not None:
        return "give it back to the host: remove it from vfio-pci's ids or the override, and reboot"
    if gpu.driver is None:
        return (
            f"load {OWN_DRIVERS[gpu.vendor][0]}; where it is loaded, the kernel's log says why it refused this device"
        )
    return None


def _help(subject: Subject, gpu: Gpu, away: str | None) -> tuple[list[Evidence], tuple[Fix, ...]]:
    """Find the lines that explain it, and the lines that change it."""
    rules = module_rules(subject)
    if away is not None:
        ids = [
            Evidence(source=setting.where, found=f"vfio-pci ids={setting.value}")
            for name, setting in rules.settings("vfio-pci").items()
            if name == "ids"
        ]
        return ids, ()
    own = OWN_DRIVERS[gpu.vendor]
    blocks = [block for name in own for block in rules.blocks(name)]
    evidence = [Evidence(source=block.where, found=block.text, expected=NO_LINE) for block in blocks[:4]]
    if gpu.driver is None:
        if blocks:
            return evidence, let_in(subject, blocks[0])
        return evidence, (Fix(lines=(f"sudo modprobe {own[0]}",)),)
    name = "nova_core" if gpu.driver in _NOVA else gpu.driver
    if name == "radeon":
        line = "options radeon si_support=0 cik_support=0", "options amdgpu si_support=1 cik_support=1"
        return evidence, (Fix(path="/etc/modprobe.d/amdgpu.conf", lines=line), rebuild_initramfs(subject))
    return evidence, keep_out(subject, name) if name in FORCED_OUT else (rebuild_initramfs(subject),)

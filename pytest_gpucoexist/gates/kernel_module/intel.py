"""i915 or xe: which of the two holds an Intel GPU, and which one `force_probe` asks for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.driver.generations import xe_is_official
from pytest_gpucoexist.gates.findings import Finding, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.kernel_module.rules import module_rules
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import Gpu

__all__ = ["force_probe_says", "one_driver"]


def force_probe_says(value: str, device: int) -> bool | None:
    """Whether `force_probe` asks for (True) or forbids (False) a device; None when it does not name it.

    Ids are hexadecimal, `*` is every device, `!` forbids (i915_pci.c, `device_id_in_list`; a ban comes first).
    """
    asked: bool | None = None
    for part in value.split(","):
        word = part.strip().lower()
        ban, name = word.startswith("!"), word.removeprefix("!")
        named = name == "*" or (re.fullmatch(r"(0x)?[0-9a-f]{1,4}", name) is not None and int(name, 16) == device)
        if named and ban:
            return False
        if named:
            asked = True
    return asked


@gate(
    "kmod.intel.one_driver",
    group="kernel-module",
    title="The driver that force_probe asks for holds the Intel GPU",
    reads="the link `driver` of each Intel GPU; force_probe of i915 and xe on the command line and in modprobe.d",
    criterion="i915 or xe holds it, as asked; xe is not forced on a GPU that it does not support yet",
    why="with the other driver the compute runtime may not find the GPU, or run with features that are not finished",
    action="use the driver that supports this PCI id without being forced",
    source="geerlingguy/raspberry-pi-pcie-devices#510; strongtz/i915-sriov-dkms#235",
    vendors=("intel",),
)
def one_driver(subject: Subject) -> Iterator[Finding]:
    """Compare, for each GPU, who holds it with what is asked for."""
    functions = subject.functions("intel")
    if not functions:
        yield skipped("the GPUs here have no PCI function")
    for gpu in functions:
        yield _judge(subject, gpu)


def _judge(subject: Subject, gpu: Gpu) -> Finding:
    try:
        device = int(gpu.device_id or "", 16)
    except ValueError:
        return unknown("its PCI id is not known", on=[gpu])
    rules = module_rules(subject)
    says: dict[str, bool | None] = {}
    evidence = [Evidence(source=f"/sys/bus/pci/devices/{gpu.pci_address}/driver", found=gpu.driver or "no link")]
    for name in ("i915", "xe"):
        setting = rules.settings(name).get("force_probe")
        says[name] = None if setting is None else force_probe_says(setting.value, device)
        if setting is not None:
            evidence.append(Evidence(source=setting.where, found=f"{name}.force_probe={setting.value}"))
    if gpu.driver is None and says["i915"] is False and not says["xe"] and not xe_is_official(gpu):
        words = f"no driver holds it: i915.force_probe forbids {device:04x}, and xe takes it only when forced"
        return warned(words, *evidence, on=[gpu], action=f"add xe.force_probe={device:04x}, or allow i915")
    if gpu.driver not in {"i915", "xe"}:
        return skipped("neither i915 nor xe holds it; drv.bound_driver judges that", on=[gpu])
    other = "xe" if gpu.driver == "i915" else "i915"
    if says[gpu.driver] is False:
        return warned(f"{gpu.driver} holds it although its force_probe forbids {device:04x}", *evidence, on=[gpu])
    if says[other] and not says[gpu.driver]:
        return warned(
            f"{other}.force_probe asks {other} to take it, and {gpu.driver} does",
            *evidence,
            on=[gpu],
            action=f"forbid the other one too: {gpu.driver}.force_probe=!{device:04x} {other}.force_probe={device:04x}",
        )
    if gpu.driver == "xe" and says["xe"] and xe_is_official(gpu) is False:
        return warned(f"xe was forced on {device:04x}, which it does not support by itself", *evidence, on=[gpu])
    return passed(f"{gpu.driver} holds it", *evidence, on=[gpu])

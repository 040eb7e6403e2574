"""Dumps that a driver left when a GPU crashed: devcoredump, and i915's error state.

A dump stays until somebody reads it, at most some minutes (drivers/base/devcoredump.c, `DEVCD_TIMEOUT`); i915 keeps its
first error state until it is cleared (i915_gpu_error.c). Both lie in memory: reading them wakes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.findings import Finding, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence, Fix
from pytest_gpucoexist.probes.reader import excerpt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import Gpu

__all__ = ["devcoredump"]

_DUMPS = "/sys/class/devcoredump"
_CLEAN = "No error state collected"


@gate(
    "drv.devcoredump",
    group="driver",
    title="No driver holds a dump of a crashed GPU",
    reads="/sys/class/devcoredump/devcd*/failing_device; for i915 the first line of /sys/class/drm/cardN/error",
    criterion="no dump of a GPU that is here",
    why="the GPU hung or crashed earlier in this boot, and may do so again",
    action="save the dump for a report, then clear it",
    source="the kernel's drivers/base/devcoredump.c and drivers/gpu/drm/i915/i915_sysfs.c",
)
def devcoredump(subject: Subject) -> Iterator[Finding]:
    """Look for dumps by device, and ask i915 for its error state."""
    functions = subject.functions()
    if not functions:
        yield skipped("the GPUs here have no PCI function")
        return
    dumps = _dumps(subject)
    kept = subject.host.exists(_DUMPS)
    for gpu in functions:
        data = dumps.get(gpu.pci_address or "")
        if data is not None:
            evidence = Evidence(source=data, found="a dump", expected="none")
            fix = (Fix(lines=(f"sudo cat {data} > gpu-dump.txt", f"echo 1 | sudo tee {data}")),)
            yield warned(
                "its driver dumped its state a few minutes ago: it crashed or hung", evidence, on=[gpu], fix=fix
            )
        elif gpu.driver == "i915":
            yield _error_state(subject, gpu)
        elif gpu.driver == "nvidia":
            yield skipped("the NVIDIA driver makes no such dumps", on=[gpu])
        elif kept:
            yield passed("no dump is kept", Evidence(source=_DUMPS, found="nothing of this device"), on=[gpu])
        elif subject.host.simulated:
            yield unknown(f"{_DUMPS} is not here", on=[gpu])
        else:
            yield skipped("this kernel keeps no dumps of devices", on=[gpu])


def _dumps(subject: Subject) -> dict[str, str]:
    """Return the data file of each dump, by the PCI address of the device that failed."""
    found: dict[str, str] = {}
    for name in subject.names(_DUMPS):
        if name.startswith("devcd"):
            try:
                target = subject.host.resolve(f"{_DUMPS}/{name}/failing_device")
            except OSError:
                continue
            found.setdefault(target.rpartition("/")[2], f"{_DUMPS}/{name}/data")
    return found


def _error_state(subject: Subject, gpu: Gpu) -> Finding:
    card = gpu.drm.card if gpu.drm is not None else None
    if card is None:
        return unknown("i915's error state is not known: no DRM card belongs to it", on=[gpu])
    path = f"/sys/class/drm/{card}/error"
    text = subject.read(path, 256)
    if text.text is None:
        if text.status == "absent" and not subject.host.simulated:
            return skipped("this i915 was built without error states", on=[gpu])
        return unknown(f"i915's error state is not known: {path}: {text.detail}", on=[gpu])
    line = text.text.strip().partition("\n")[0]
    evidence = Evidence(source=path, found=line[:120], expected=_CLEAN)
    if line.startswith(_CLEAN):
        return passed("i915 collected no error state", evidence, on=[gpu])
    if not line.isprintable() or not line:
        return unknown(f"{path} makes no sense: {excerpt(line)}", on=[gpu])
    fix = (Fix(lines=(f"sudo cat {path} > i915-error.txt", f"echo 1 | sudo tee {path}")),)
    return warned("i915 collected an error state: the GPU hung earlier in this boot", evidence, on=[gpu], fix=fix)

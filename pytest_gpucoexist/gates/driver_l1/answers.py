"""Whether the vendors' libraries initialise and answer in time."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.gates.asked import VENDOR_NAMES
from pytest_gpucoexist.gates.boards import no_reply, other_driver
from pytest_gpucoexist.gates.findings import Finding, failed, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.gates.vendors import LIBRARIES, LIBRARY_NAMES, library_reply, vendor_reply
from pytest_gpucoexist.model.verdicts import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.host.base import HelperReply
    from pytest_gpucoexist.model.machine import Gpu

__all__ = ["TEGRA", "cause_of", "driven", "hung"]

TEGRA = {"nvgpu", "gk20a"}
"""The drivers of the GPU of a Jetson, which is no PCI device."""

_NO_ANSWER = re.compile(r"no answer within ([0-9.]+) s")
_NAMES = {"nvml": "NVML", "cuda": "CUDA", "amdsmi": "AMD SMI", "hip": "HIP or HSA", "levelzero": "Level Zero"}

_ACTIONS = {
    "denied": "Give this user access to /dev/nvidiactl and /dev/nvidiaN (NVIDIA's default is everybody)",
    "mismatch": "Reboot, or unload and load the nvidia modules, so that kernel and libraries are of one release; in a"
    " container, restart it",
    "lost": "Look for Xid 79 in the kernel log, then reboot; if it comes back, look at power and slot",
    "not-loaded": "The device nodes or the module's answer are missing here: see dev.nv.ctl",
    "library": "Reinstall the driver's user-space libraries",
    "no-library": "Install the driver's user-space libraries (libnvidia-ml.so.1)",
    "unknown": "In a container whose cgroup was reloaded (systemctl daemon-reload) restart the container; else look at"
    " the kernel log and reboot",
}


def cause_of(reply: HelperReply) -> str | None:
    """Return the helper's word for why it has no answer; None in a reply of an older recording, or after a crash."""
    cause = reply.data.get("cause") if isinstance(reply.data, dict) else None
    if isinstance(cause, str):
        return cause
    return "mismatch" if reply.status == "broken" and "version mismatch" in (reply.detail or "") else None


def hung(reply: HelperReply) -> float | None:
    """Return the deadline that a library let pass, in seconds; None when it answered, whatever it said."""
    match = _NO_ANSWER.search(reply.detail or "") if reply.status == "broken" else None
    try:
        return float(match[1]) if match else None
    except ValueError:
        return None


def driven(subject: Subject, vendor: str) -> list[Gpu]:
    """Return the devices here that the vendor's own kernel driver holds."""
    return [gpu for gpu in subject.gpus(vendor) if other_driver(gpu) is None]


@gate(
    "drv.nv.nvml_init",
    group="driver",
    title="NVML initialises",
    reads="nvmlInit in a process of its own",
    criterion="it succeeds",
    why="Without it the driver's user-space part does not reach the kernel module: CUDA fails too.",
    action=_ACTIONS["unknown"],
    source="mej/nhc scripts/csc_nvidia_smi.nhc; Azure/azurehpc-health-checks customTests/csc_nvidia_smi.nhc",
    vendors=("nvidia",),
    level="standard",
    severity="fail",
    blocking=True,
)
def nvml_init(subject: Subject) -> Iterator[Finding]:
    """Say why NVML does not initialise. What is only not installed is a fault where NVIDIA is wanted."""
    yield _initialised(subject, "nvidia")


@gate(
    "drv.amd.amdsmi_init",
    group="driver",
    title="AMD SMI initialises",
    reads="amdsmi_init in a process of its own",
    criterion="it succeeds",
    why="Monitoring of AMD GPUs fails; often ROCm fails for the same reason.",
    action="Join the groups render and video; load amdgpu; install the amdsmi of the ROCm release that is installed",
    source="ROCm/amdsmi include/amd_smi/amdsmi.h",
    vendors=("amd",),
    level="standard",
    severity="fail",
)
def amdsmi_init(subject: Subject) -> Iterator[Finding]:
    """Say why AMD SMI does not initialise."""
    yield _initialised(subject, "amd")


def _initialised(subject: Subject, vendor: str) -> Finding:
    reply, on, name = vendor_reply(subject, vendor), driven(subject, vendor), LIBRARY_NAMES[vendor]
    if not on:
        return skipped(f"no GPU here is held by {VENDOR_NAMES[vendor]}'s driver; {name} has nothing to ask")
    said = reply.detail or "no reason given"
    evidence = Evidence(source=f"{name}: initialise", found=f"{reply.status}: {said}", expected="success")
    if reply.status == "ok":
        return passed(f"{name} initialises", Evidence(source=f"{name}: initialise", found="success"), on=on)
    cause = cause_of(reply)
    if hung(reply) is not None:
        return unknown(f"{said}; see drv.query_timeout", evidence, on=on)
    if cause in {"no-client", "client", "nonsense"} or said == "not recorded":
        return unknown(f"{name} could not be asked: {said}", evidence, on=on)
    if cause == "no-library":
        wanted = subject.wanted(vendor)
        if all(gpu.driver in TEGRA for gpu in on):
            return skipped("NVML is not installed: a Jetson has it from JetPack 6 on, and CUDA does not need it", on=on)
        if wanted is None:
            return skipped(f"{name} is not installed, and nobody wants {VENDOR_NAMES[vendor]} here", on=on)
        return _failed(f"{name} is not installed, and {wanted}", evidence, on, vendor, cause)
    if reply.status == "unsupported" and cause != "not-loaded":
        return skipped(said, on=on)
    if reply.status == "absent":
        return unknown(f"{name} could not be asked: {said}", evidence, on=on)
    return _failed(said, evidence, on, vendor, cause)


def _failed(reason: str, evidence: Evidence, on: list[Gpu], vendor: str, cause: str | None) -> Finding:
    action = _ACTIONS.get(cause or "unknown") if vendor == "nvidia" else None
    return failed(reason, evidence, on=on, action=action)


@gate(
    "drv.query_timeout",
    group="driver",
    title="Drivers answer in time",
    reads="every vendor library in a process of its own with a deadline; the state of a process that cannot be ended",
    criterion="an answer within the deadline, and no process left in the kernel",
    why="A driver that hangs takes every test that touches it along, and a process in state D cannot be killed.",
    action="Start no test; look at the kernel log and reboot. On a machine with many boards and without persistence"
    " mode, allow more time first",
    source="leptonai/gpud#117 (nvidia-smi stuck in D after Xid 45); NVIDIA/NVSentinel#1748",
    level="standard",
    severity="fail",
    blocking=True,
    limits={"seconds_per_board": 2},
)
def query_timeout(subject: Subject) -> Iterator[Finding]:
    """Judge each vendor whose GPUs are here by what came of all of its libraries."""
    each_s = subject.limit("drv.query_timeout", "seconds_per_board", 2)
    for vendor in ("nvidia", "amd", "intel"):
        on = driven(subject, vendor)
        replies = {helper: library_reply(subject, helper) for helper, owner in LIBRARIES.items() if owner == vendor}
        if on:
            yield _in_time(replies, on, each_s)
    if not any(driven(subject, vendor) for vendor in ("nvidia", "amd", "intel")):
        yield skipped("no GPU here is held by its vendor's driver")


def _in_time(replies: dict[str, HelperReply], on: list[Gpu], each_s: float) -> Finding:
    evidence = [
        Evidence(
            source=f"{_NAMES[helper]}, in a process of its own",
            found=f"{reply.status} after {reply.duration_s:g} s" + (f": {reply.detail}" if reply.detail else ""),
            expected="an answer",
        )
        for helper, reply in replies.items()
    ]
    left = [helper for helper, reply in replies.items() if _left_behind(reply)]
    late = {helper: seconds for helper, reply in replies.items() if (seconds := hung(reply)) is not None}
    boards = len({gpu.pci_address or gpu.key for gpu in on})
    if left:
        names = " and ".join(_NAMES[helper] for helper in left)
        return failed(f"{names} hung in the kernel: its process cannot be killed", *evidence, on=on)
    if late:
        names, seconds = " and ".join(_NAMES[helper] for helper in late), max(late.values())
        if seconds < each_s * boards:
            # NVML initialises each board anew where persistence mode is off, and takes a second or two for each.
            return unknown(
                f"{names} gave no answer within {seconds:g} s, which is short for {boards} boards", *evidence, on=on
            )
        return failed(f"{names} gave no answer within {seconds:g} s", *evidence, on=on)
    crashed = [helper for helper, reply in replies.items() if "was killed by" in (reply.detail or "")]
    if crashed:
        return warned(f"{' and '.join(_NAMES[helper] for helper in crashed)} crashed", *evidence, on=on)
    if not any(reply.status == "ok" for reply in replies.values()):
        first: HelperReply = next(iter(replies.values()))
        return no_reply(first, _NAMES[next(iter(replies))], tuple(on))
    return passed("the libraries that are installed answer in time", *evidence, on=on)


def _left_behind(reply: HelperReply) -> Any:
    return reply.left_behind is not None or "cannot be killed" in (reply.detail or "")

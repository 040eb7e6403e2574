"""NVIDIA's driver in the kernel's log: Xids, lost GPUs, what kept it from starting one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.kernel_log.evidence import log_evidence
from pytest_gpucoexist.gates.kernel_log.lines import judge_lines
from pytest_gpucoexist.gates.registry import gate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.findings import Finding
    from pytest_gpucoexist.gates.kernel_log.lines import Event
    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.kernellog.classify import LogFinding

__all__ = ["api_mismatch", "bar", "fallen", "init", "nvlink", "probe", "xid"]

_READS = "the kernel's log of this boot: /dev/kmsg, else (level standard) journald"
_CHAIN_S = 10
_NVLINK_XIDS = frozenset({74, *range(144, 151)})


@gate(
    "klog.nv.xid",
    group="kernel-log",
    title="No Xid that leaves the GPU unusable",
    reads=_READS,
    criterion="no Xid whose code says that the GPU needs a reset, a reboot or a replacement; what the driver itself"
    " recovered from, or a module that was loaded again, puts earlier ones behind",
    why="after such an Xid every further call on that GPU hangs, fails or computes on lost memory",
    action="Do what the code asks for: reset the GPU (`nvidia-smi --gpu-reset -i …`), reboot, or have it replaced.",
    source="NVIDIA/DCGM DcgmHealthWatch; leptonai/gpud xid catalogue; NVIDIA/open-gpu-kernel-modules#1045, #1150",
    vendors=("nvidia",),
    severity="fail",
    blocking=True,
)
def xid(subject: Subject) -> Iterator[Finding]:
    """Judge Xids by the policy for their code, in the session and earlier; the first of a chain is named."""
    evidence = log_evidence(subject)
    lines = [line for line in evidence.findings if line.rule == "nv.xid"]

    def grade(event: Event) -> Event | None:
        if event.line.xid in _NVLINK_XIDS:
            return None  # klog.nv.nvlink
        if event.line.xid == 45 and any(_explains(line, event.line) for line in lines):
            return event.graded(None)
        return event.put_behind(subject, "loaded", "recovered", "found")

    yield from judge_lines(subject, ["nv.xid"], "nvidia", what="Xid", grade=grade)


@gate(
    "klog.nv.fallen",
    group="kernel-log",
    title="GPU still on the bus",
    reads=_READS,
    criterion="the driver never said that a GPU has fallen off the bus, unless it was loaded again since",
    why="the driver works against registers that answer all ones; NVML and CUDA hang or fail on this GPU, and"
    " sometimes on its neighbours",
    action="Switch the machine off and on. If it comes back: check power cables, riser, temperature, and ASPM"
    " (`pcie_aspm=off`).",
    source="NVIDIA/NVSentinel#155; Bumblebee-Project/Bumblebee#554; system76/firmware-open#259",
    vendors=("nvidia",),
    severity="fail",
    blocking=True,
)
def fallen(subject: Subject) -> Iterator[Finding]:
    """Judge lines about a lost GPU; calls that failed after it was lost do not take a device out by themselves."""

    def grade(event: Event) -> Event:
        if event.line.rule == "nv.attach_sanity":
            event = event.graded("FAIL" if event.in_session else "WARN", blocking=False)
        return event.put_behind(subject, "loaded", "found")

    yield from judge_lines(
        subject,
        ["nv.fallen_off_bus", "nv.attach_sanity"],
        "nvidia",
        what="line about a GPU that fell off the bus",
        grade=grade,
    )


@gate(
    "klog.nv.probe",
    group="kernel-log",
    title="NVIDIA's driver claimed the GPUs",
    reads=f"{_READS}; the bound driver of each GPU",
    criterion="no line about a GPU that the driver could not claim, since it was loaded last",
    why="CUDA does not see a GPU that nouveau, Nova or vfio-pci owns, or that the driver could not start",
    action="Decide which driver shall own the GPU: blacklist nouveau and nova_core, or undo the vfio-pci binding.",
    source="wezterm/wezterm#3561; beclab/Olares PR#3963",
    vendors=("nvidia",),
    severity="fail",
)
def probe(subject: Subject) -> Iterator[Finding]:
    """Judge probe lines beside what is bound now: a GPU that has its driver was claimed after all."""
    wanted = subject.wanted("nvidia")
    bound = all(gpu.driver == "nvidia" for gpu in subject.functions("nvidia"))

    def grade(event: Event) -> Event:
        mine = event.gpus or subject.functions("nvidia")
        if all(gpu.driver == "nvidia" for gpu in mine) and (event.gpus or bound):
            return event.graded(None)
        if wanted is None:
            return event.graded(None)
        if any(gpu.driver == "vfio-pci" for gpu in mine):
            return event.graded("WARN")
        return event.put_behind(subject, "loaded")

    yield from judge_lines(
        subject,
        [
            *("nv.probe_not_called", "nv.probe_failed", "nv.no_devices", "nv.probe_err"),
            *("nv.nova_bound", "nouveau.active"),
        ],
        "nvidia",
        what="line about a GPU that NVIDIA's driver could not claim",
        grade=grade,
    )


@gate(
    "klog.nv.api_mismatch",
    group="kernel-log",
    title="Library and kernel module of one release",
    reads=_READS,
    criterion="no client of another release than the loaded module's, since the module was loaded last",
    why="a program with libraries of another release cannot use the GPU: NVML and CUDA fail to initialise",
    action="Reboot (or load the module again) after an update; build the container image anew.",
    source="NVIDIA/open-gpu-kernel-modules#829; ublue-os/bazzite#2668",
    vendors=("nvidia",),
    severity="fail",
)
def api_mismatch(subject: Subject) -> Iterator[Finding]:
    """Judge mismatches: one earlier this boot can have been another container's client."""

    def grade(event: Event) -> Event:
        if event.line.rule == "nv.api_mismatch" and not event.in_session:
            event = event.weakened()
        return event.put_behind(subject, "loaded")

    yield from judge_lines(
        subject,
        ["nv.api_mismatch", "nv.modeset_mismatch"],
        "nvidia",
        what="client of another driver release",
        grade=grade,
    )


@gate(
    "klog.nv.init",
    group="kernel-log",
    title="NVIDIA's driver started the GPUs",
    reads=f"{_READS}; the bound driver of each GPU",
    criterion="no failed start of a GPU or of its firmware since the module was loaded last",
    why="the module is loaded and the GPU does not work: the first call fails or blocks",
    action="Check the firmware files, the flavour of the module (open or proprietary), power, and the BIOS.",
    source="NVIDIA/gpu-operator#649; NVIDIA/open-gpu-kernel-modules#789, #1230",
    vendors=("nvidia",),
    severity="fail",
)
def init(subject: Subject) -> Iterator[Finding]:
    """Judge failed starts; firmware that is missing for a GPU that runs was one of several names tried."""

    def grade(event: Event) -> Event:
        if event.line.rule == "fw.missing" and event.gpus and all(gpu.driver == "nvidia" for gpu in event.gpus):
            return event.graded(None)
        return event.put_behind(subject, "loaded", "registered", "found")

    yield from judge_lines(
        subject,
        ["nv.rminit", "nv.gsp", "nv.vbios", "nv.unsupported_by_flavor", "nv.drm_alloc", "fw.missing"],
        "nvidia",
        what="failed start of an NVIDIA GPU",
        grade=grade,
    )


@gate(
    "klog.nv.bar",
    group="kernel-log",
    title="NVIDIA's driver got the GPU's memory windows",
    reads=_READS,
    criterion="no complaint of the driver about a BAR that was not assigned or is taken, since it was loaded last",
    why="without its BARs the GPU cannot be used at all",
    action="Switch Above 4G Decoding on in the BIOS, or boot with `pci=realloc=on`.",
    source="Dunedan/mbp-2016-linux#60; h8d13/archinstoo#244",
    vendors=("nvidia",),
    severity="fail",
)
def bar(subject: Subject) -> Iterator[Finding]:
    """Judge the driver's own words about BARs; the kernel's are in klog.pci.bar."""

    def grade(event: Event) -> Event:
        return event.put_behind(subject, "loaded", "registered", "found")

    yield from judge_lines(
        subject, ["nv.bar_invalid"], "nvidia", what="complaint about the BARs of an NVIDIA GPU", grade=grade
    )


@gate(
    "klog.nv.nvlink",
    group="kernel-log",
    title="NVLink and peer memory without errors",
    reads=_READS,
    criterion="no fatal NVLink or NVSwitch error in this session; others, and peer memory that lost its context, are a"
    " warning",
    why="peers behind a broken link hang or get wrong data",
    action="Check the bridge, then reset both peers (all GPUs of an NVSwitch fabric).",
    source="leptonai/gpud PR#1174; NVIDIA/NVSentinel",
    vendors=("nvidia",),
    severity="fail",
)
def nvlink(subject: Subject) -> Iterator[Finding]:
    """Judge Xids about NVLink, errors of switches, and links that were not found at start."""

    def grade(event: Event) -> Event | None:
        if event.line.rule == "nv.xid" and event.line.xid not in _NVLINK_XIDS:
            return None
        if not event.in_session:
            # At boot a GPU without a bridge says that its links found nobody, too.
            event = event.graded(None) if event.line.rule == "nv.nvlink_mask" else event.weakened()
        return event.put_behind(subject, "loaded", "recovered", "found")

    yield from judge_lines(
        subject,
        ["nv.xid", "nv.sxid", "nv.nvlink_mask", "nv.peermem"],
        "nvidia",
        what="error of NVLink",
        grade=grade,
    )


def _explains(cause: LogFinding, clean_up: LogFinding) -> bool:
    """Whether an Xid is what a clean-up (45) of the same GPU at most 10 s later followed."""
    if cause.pci_address != clean_up.pci_address or cause.xid == 45 or cause.number > clean_up.number:
        return False
    if cause.time_s is None or clean_up.time_s is None:
        return True
    return 0 <= clean_up.time_s - cause.time_s <= _CHAIN_S

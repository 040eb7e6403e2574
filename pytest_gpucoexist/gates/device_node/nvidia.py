"""The nodes that CUDA opens: `/dev/nvidiactl`, one for each GPU, and the one of unified memory.

The driver makes none of them: udev, or NVIDIA's setuid program `nvidia-modprobe` at first use, does. In a container
both are missing, and what was not passed in stays away.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.container.place import container_of
from pytest_gpucoexist.gates.device_node.rights import advice, node_evidence, problem_of, setuid_helper
from pytest_gpucoexist.gates.findings import Finding, failed, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence, Fix
from pytest_gpucoexist.probes.nvidia import parse_information

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import Gpu

__all__ = ["control", "minor", "unified_memory"]

_CTL, _UVM = "/dev/nvidiactl", "/dev/nvidia-uvm"
_MAJOR = re.compile(r"^\s*(\d+) (\S+)$", re.MULTILINE)
_NVIDIA_MAJOR = 195
_ASLEEP = {"suspended", "suspending"}


@gate(
    "dev.nv.ctl",
    group="device-node",
    vendors=("nvidia",),
    severity="fail",
    blocking=True,
    title="NVIDIA's control node opens",
    reads="/dev/nvidiactl: whether this process may open it, its mode and owner",
    criterion="this process may open /dev/nvidiactl for reading and writing",
    why="every call of NVML and CUDA begins with this node: without it no GPU is seen, and tests skip as if there were "
    "none",
    action="create the node with nvidia-modprobe, or give this user the right to open it",
    source="NVIDIA/DCGM nvvs/src/Software.cpp (checkPermissions)",
)
def control(subject: Subject) -> Iterator[Finding]:
    """Judge the node that all GPUs share."""
    gpus = _bound(subject)
    if not gpus:
        yield skipped("the nvidia driver is bound to no GPU here")
        return
    yield _judge(subject, _CTL, gpus, "-c=0")


@gate(
    "dev.nv.minor",
    group="device-node",
    vendors=("nvidia",),
    severity="fail",
    blocking=True,
    title="Each NVIDIA GPU's own node opens",
    reads="'Device Minor' in /proc/driver/nvidia/gpus/*/information, and /dev/nvidia<minor>",
    criterion="this process may open /dev/nvidia<minor> of each GPU that the driver lists",
    why="CUDA leaves out a GPU whose node it cannot open, and every index behind it moves",
    action="create the node with nvidia-modprobe, or give this user the right to open it (NVreg_DeviceFileMode, udev)",
    source="NVIDIA/DCGM nvvs/src/Software.cpp (checkPermissions)",
)
def minor(subject: Subject) -> Iterator[Finding]:
    """Judge each GPU's own node."""
    gpus = _bound(subject)
    if not gpus:
        yield skipped("the nvidia driver is bound to no GPU here")
    for gpu in gpus:
        path = f"/proc/driver/nvidia/gpus/{gpu.pci_address}/information"
        if gpu.runtime_status in _ASLEEP:
            yield skipped("asleep; a quick gate does not wake it", on=[gpu])
            continue
        text = subject.read(path)
        if text.text is None:
            yield unknown(
                "the driver does not say which node is this GPU's",
                Evidence(source=path, found=text.detail or text.status, expected="Device Minor: a number"),
                on=[gpu],
            )
            continue
        number = parse_information(text.text).minor
        if number is None or number > 255:
            yield unknown(
                "the driver does not say which node is this GPU's",
                Evidence(source=path, found=repr(text.text[:60]), expected="Device Minor: a number"),
                on=[gpu],
            )
            continue
        yield _judge(subject, f"/dev/nvidia{number}", [gpu], f"-c={number}", device=(_NVIDIA_MAJOR, number))


@gate(
    "dev.nv.uvm",
    group="device-node",
    vendors=("nvidia",),
    severity="fail",
    title="The node of unified memory opens and is the driver's",
    reads="/dev/nvidia-uvm, and the number of nvidia-uvm in /proc/devices",
    criterion="this process may open /dev/nvidia-uvm, and its number is the one that the kernel gave to nvidia-uvm",
    why="without it cuInit gives 999 (unknown error) while nvidia-smi works; the number is a new one after each load "
    "of the module, and a node with the old one leads nowhere",
    action="nvidia-modprobe -u -c=0",
    source="NVIDIA/nvidia-docker#139, #423; gorgonia/cu#2",
)
def unified_memory(subject: Subject) -> Iterator[Finding]:
    """Judge the node of unified memory."""
    gpus = _bound(subject)
    if not gpus:
        yield skipped("the nvidia driver is bound to no GPU here")
        return
    if not any(subject.host.exists(path) for path in (_UVM, "/sys/module/nvidia_uvm")) and subject.host.covers("/dev"):
        helper = setuid_helper(subject)
        evidence = Evidence(source="/sys/module/nvidia_uvm", found="not loaded", expected="loaded")
        if helper is not None and container_of(subject) is None:
            yield passed(
                f"nvidia-uvm is not loaded yet; CUDA loads it at first use through {helper} (setuid root)",
                evidence,
                on=gpus,
            )
            return
    major = _major(subject, "nvidia-uvm")
    yield _judge(subject, _UVM, gpus, "-u -c=0", device=None if major is None else (major, 0))


def _bound(subject: Subject) -> list[Gpu]:
    return [gpu for gpu in subject.functions("nvidia") if gpu.driver == "nvidia"]


def _judge(
    subject: Subject, path: str, gpus: Sequence[Gpu], arguments: str, *, device: tuple[int, int] | None = None
) -> Finding:
    """Judge one node; `device` is the number that it must have, where that is known."""
    problem = problem_of(subject, path)
    evidence = node_evidence(subject, path, problem)
    if problem is None:
        return _numbered(subject, path, gpus, device, evidence)
    if not problem.known:
        return unknown(f"{path} is not recorded", evidence, on=gpus)
    if problem.status == "absent":
        return _missing(subject, path, gpus, arguments, evidence)
    action, fix = advice(subject, path)
    return _verdict(subject, problem.reason, evidence, gpus, action, fix)


def _missing(subject: Subject, path: str, gpus: Sequence[Gpu], arguments: str, evidence: Evidence) -> Finding:
    fix = Fix(lines=(f"sudo nvidia-modprobe {arguments}",))
    if container_of(subject) is not None:
        action, lines = advice(subject, path)
        return _verdict(subject, f"{path} is not in this container", evidence, gpus, action, lines)
    helper = setuid_helper(subject)
    if helper is not None:
        reason = f"{path} is not there yet; CUDA makes it at first use through {helper} (setuid root)"
        return warned(
            reason, evidence, on=gpus, action="create the node before the run, so that its GPU is found", fix=[fix]
        )
    return _verdict(subject, f"no {path}", evidence, gpus, f"create it: nvidia-modprobe {arguments}", [fix])


def _verdict(
    subject: Subject, reason: str, evidence: Evidence, gpus: Sequence[Gpu], action: str, fix: Sequence[Fix]
) -> Finding:
    """Fail where somebody expects NVIDIA's GPUs to work, warn elsewhere."""
    if subject.wanted("nvidia") is None:
        reason += "; nothing here says that NVIDIA GPUs are expected to work"
        return warned(reason, evidence, on=gpus, action=action, fix=fix)
    return failed(reason, evidence, on=gpus, action=action, fix=fix)


def _numbered(
    subject: Subject, path: str, gpus: Sequence[Gpu], device: tuple[int, int] | None, evidence: Evidence
) -> Finding:
    """Compare the node's number with the driver's: a node of another number opens something else, or nothing."""
    try:
        node = subject.host.stat(path)
    except OSError:
        return passed(f"{path} may be opened", evidence, on=gpus)
    if node.kind != "chardev":
        fix = Fix(lines=(f"sudo rm {path}", "sudo nvidia-modprobe -u -c=0"))
        return failed(
            f"{path} is no device node but a {node.kind}",
            evidence,
            on=gpus,
            action="remove it and create the node",
            fix=[fix],
        )
    if device is not None and node.major is not None and (node.major, node.minor) != device:
        reason = f"{path} is device {node.major}:{node.minor}, and the driver answers at {device[0]}:{device[1]}"
        action = "remove the stale node and create it again; in a container, restart the container"
        return failed(
            reason,
            evidence,
            on=gpus,
            action=action,
            fix=[Fix(lines=(f"sudo rm {path}", "sudo nvidia-modprobe -u -c=0"))],
        )
    return passed(f"{path} may be opened", evidence, on=gpus)


def _major(subject: Subject, name: str) -> int | None:
    """Return the number of a character driver (`/proc/devices`), None where it is not listed."""
    text = (subject.read("/proc/devices").text or "").partition("Block devices:")[0]
    return next((int(match[1]) for match in _MAJOR.finditer(text) if match[2] == name and len(match[1]) < 7), None)

"""Why a node cannot be opened, and the exact lines that would change it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.container.place import container_of, runtime_of
from pytest_gpucoexist.model.verdicts import Evidence, Fix
from pytest_gpucoexist.probes.nodes import NodeProblem, node_problem

if TYPE_CHECKING:
    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.host.base import Node

__all__ = ["Advice", "advice", "node_evidence", "problem_of", "setuid_helper"]

_OVERFLOW_ID = 65534
_MODPROBE = ("/usr/bin/nvidia-modprobe", "/bin/nvidia-modprobe", "/usr/local/bin/nvidia-modprobe")

Advice = tuple[str, tuple[Fix, ...]]
"""An action in words, and lines to run or to add."""


def problem_of(subject: Subject, path: str) -> NodeProblem | None:
    """Return why this process may not open a node, asked once for all gates; None when it may."""
    return subject.shared(("device_node", "problem", path), lambda: node_problem(subject.host, path))


def node_evidence(
    subject: Subject, path: str, problem: NodeProblem | None, expected: str = "opens for reading and writing"
) -> Evidence:
    """Say what was there: the node's mode and owner, or that there is none."""
    node = _stat(subject, path)
    if node is None:
        found = "not there" if problem is None or problem.withheld else problem.reason
    else:
        numbers = f", device {node.major}:{node.minor}" if node.major is not None else ""
        found = f"mode {node.mode & 0o777:04o}, uid {node.uid}, gid {node.gid}{numbers}"
        if problem is None:
            found += "; may be opened"
    me = subject.host.identity()
    groups = ",".join(map(str, me.groups[:12]))
    return Evidence(
        source=path, found=f"{found}; this process is uid {me.uid} in groups {groups or 'none'}", expected=expected
    )


def advice(subject: Subject, path: str) -> Advice:
    """Say what opens the node to this process: the group that owns it, not the one that usually does."""
    node = _stat(subject, path)
    if container_of(subject) is not None:
        return _in_container(subject, path, node)
    if node is None:
        return f"load the driver that makes {path}", ()
    if node.mode & 0o060 == 0o060 and node.gid != 0:
        name = _group_name(subject, node.gid)
        if name is not None:
            action = f"add the user to group {name}, which owns {path}, and log in again"
            return action, (Fix(lines=(f"sudo usermod -aG {name} $USER",)),)
        action = f"add the user to the group with gid {node.gid}, which owns {path}; it has no name here"
        return action, (
            Fix(lines=(f"sudo groupadd -g {node.gid} gpu{node.gid}", f"sudo usermod -aG gpu{node.gid} $USER")),
        )
    if path.startswith("/dev/nvidia"):
        line = "options nvidia NVreg_ModifyDeviceFiles=1 NVreg_DeviceFileMode=0666"
        return (
            "let the driver make its nodes for everybody (or for a group that the user is in) and reload it",
            (Fix(path="/etc/modprobe.d/nvidia-nodes.conf", lines=(line,)),),
        )
    pattern = 'KERNEL=="kfd"' if path == "/dev/kfd" else 'SUBSYSTEM=="drm", KERNEL=="renderD*"'
    return (
        f"give {path} to a group that the user is in, by a udev rule",
        (
            Fix(path="/etc/udev/rules.d/70-gpu-render.rules", lines=(f'{pattern}, GROUP="render", MODE="0660"',)),
            Fix(lines=("sudo udevadm control --reload", "sudo udevadm trigger", "sudo usermod -aG render $USER")),
        ),
    )


def setuid_helper(subject: Subject) -> str | None:
    """Return NVIDIA's program that makes missing nodes at first use: libcuda and NVML call it, when it is setuid."""
    for path in _MODPROBE:
        node = _stat(subject, path)
        if node is not None and node.mode & 0o4000 and node.uid == 0:
            return path
    return None


def _in_container(subject: Subject, path: str, node: Node | None) -> Advice:
    runtime = runtime_of(subject)
    if node is None:
        option = "--gpus all" if path.startswith("/dev/nvidia") else f"--device {path}"
        return f"pass {path} into the container ({option})", (
            Fix(lines=(f"{runtime} run {option} …",)),
        ) if runtime in {"docker", "podman"} else ()
    if runtime == "Kubernetes":
        return f"run the pod with supplementalGroups: [{node.gid}]", ()
    if node.gid == _OVERFLOW_ID or runtime == "podman":
        return "keep the groups of the host's user in the container", (
            Fix(lines=("podman run --group-add keep-groups …",)),
        )
    return (
        f"start the container with the number of the group that owns {path}; its name need not exist inside",
        (Fix(lines=(f"docker run --group-add {node.gid} …",)),),
    )


def _group_name(subject: Subject, gid: int) -> str | None:
    return next((name for name, number in subject.host.identity().group_names.items() if number == gid), None)


def _stat(subject: Subject, path: str) -> Node | None:
    def ask() -> Node | None:
        try:
            return subject.host.stat(path)
        except OSError:
            return None

    return subject.shared(("device_node", "stat", path), ask)

"""Access that was given at the container's start and taken away while it runs.

systemd rewrites a container's device rules at `daemon-reload`; NVIDIA's nodes have no links in `/dev/char`, so their
rules are lost. The nodes stay with mode 0666, and opening them gives EPERM: access(2) says so too, because the kernel
asks the device cgroup there as well (fs/namei.c, inode_permission).
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.asked import promise_of
from pytest_gpucoexist.gates.container.place import container_of, runtime_of
from pytest_gpucoexist.gates.device_node.opening import open_node
from pytest_gpucoexist.gates.device_node.rights import node_evidence, problem_of
from pytest_gpucoexist.gates.findings import Finding, failed, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.gates.vendors import vendor_reply
from pytest_gpucoexist.model.verdicts import Evidence, Fix

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import Gpu

__all__ = ["DeviceRule", "cgroup_lost", "dev_char", "device_rules", "permits"]

_CTL = "/dev/nvidiactl"
_RULES = "/sys/fs/cgroup/devices/devices.list"
_RULE = re.compile(r"([abc]) (\*|\d{1,10}):(\*|\d{1,10}) ([rwm]{1,3})")
_TOOLKIT = ("/usr/bin/nvidia-container-runtime", "/etc/nvidia-container-runtime/config.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRule:
    """A line of `devices.list` (Documentation/admin-guide/cgroup-v1/devices.rst); None stands for `*`."""

    kind: str
    major: int | None
    minor: int | None
    access: str


def device_rules(text: str) -> tuple[DeviceRule, ...] | None:
    """Read `devices.list` of a control group of version 1; None where a line makes no sense.

    >>> device_rules("c 195:* m")
    (DeviceRule(kind='c', major=195, minor=None, access='m'),)
    """
    rules: list[DeviceRule] = []
    for line in text.splitlines():
        match = _RULE.fullmatch(line.strip())
        if match is None:
            return None
        kind, major, minor, access = match.groups()
        numbers = [None if number == "*" else int(number) for number in (major, minor)]
        rules.append(DeviceRule(kind=kind, major=numbers[0], minor=numbers[1], access=access))
    return tuple(rules) or None


def permits(rules: tuple[DeviceRule, ...], major: int, minor: int) -> bool:
    """Whether the rules let a character device be read and written."""
    return any(
        rule.kind in "ac"
        and rule.major in {None, major}
        and rule.minor in {None, minor}
        and {"r", "w"} <= {*rule.access}
        for rule in rules
    )


@gate(
    "ctr.nv.cgroup_lost",
    group="container",
    vendors=("nvidia",),
    severity="fail",
    blocking=True,
    needs_gpu=False,
    title="The container has kept its NVIDIA devices",
    reads="rights on /dev/nvidiactl against its mode, devices.list of the control group; from level standard on, "
    "opening the node, and NVML",
    criterion="what the node's mode allows is allowed",
    why="after systemctl daemon-reload on the host a running container gets 'Failed to initialize NVML: Unknown "
    "Error': every GPU test in it fails until it is started again",
    action="start the container again; to keep it from happening, pass the nodes with --device, use CDI, or let "
    "docker use the driver cgroupfs",
    source="NVIDIA/nvidia-container-toolkit#48, #251; NVIDIA/nvidia-docker#1730",
)
def cgroup_lost(subject: Subject) -> Iterator[Finding]:
    """Judge the control node, which every use of an NVIDIA GPU opens."""
    if container_of(subject) is None:
        yield skipped("not in a container")
        return
    gpus = [gpu for gpu in subject.machine.gpus if gpu.vendor == "nvidia" and gpu.is_compute]
    if not subject.host.covers("/dev"):
        yield unknown("the recording has no /dev", Evidence(source="/dev", found="not recorded"), on=gpus)
        return
    if not gpus or not subject.host.exists(_CTL):
        yield skipped("no NVIDIA device was passed into this container")
        return
    given = [gpu for gpu in gpus if gpu.granted] or gpus
    problem = problem_of(subject, _CTL)
    evidence = [node_evidence(subject, _CTL, problem)]
    rules = subject.read(_RULES)
    parsed = None if rules.text is None else device_rules(rules.text)
    if parsed is not None:
        ours = [line for line in (rules.text or "").splitlines() if " 195:" in line or line.startswith("a ")]
        evidence.append(
            Evidence(source=_RULES, found="; ".join(ours) or "no rule for 195:255", expected="c 195:255 rw")
        )
    if problem is not None and problem.known and not problem.withheld:
        yield skipped(f"a matter of rights, not of the control group: {problem.reason}", on=given)
        return
    if (problem is not None and problem.withheld) or (parsed is not None and not permits(parsed, 195, 255)):
        yield _lost(subject, given, "the device cgroup refuses /dev/nvidiactl, although its mode allows it", evidence)
        return
    if problem is not None:
        yield unknown(problem.reason, *evidence, on=given)
        return
    if subject.level != "quick":
        opened = open_node(subject, _CTL)
        evidence.append(Evidence(source=f"opening {_CTL}", found=opened.words, expected="opens"))
        if opened.code == errno.EPERM:
            yield _lost(subject, given, "opening /dev/nvidiactl gives EPERM, although its mode allows it", evidence)
            return
        reply = vendor_reply(subject, "nvidia")
        if reply.status == "broken" and "Unknown Error" in (reply.detail or ""):
            evidence.append(Evidence(source="NVML", found=reply.detail or "", expected="answers"))
            yield _lost(subject, given, "NVML gives 'Unknown Error', although /dev/nvidiactl may be opened", evidence)
            return
    yield passed("the container has the NVIDIA devices that it was given", *evidence, on=given)


def _lost(subject: Subject, gpus: list[Gpu], reason: str, evidence: list[Evidence]) -> Finding:
    """Fail where devices were given to this container; a mounted /dev alone gives nothing."""
    value = subject.host.environ.get("NVIDIA_VISIBLE_DEVICES")
    if value not in {None, "", "none"} or promise_of(subject, "nvidia") is not None:
        runtime = runtime_of(subject)
        fix = [Fix(lines=("docker restart CONTAINER",))] if runtime == "docker" else []
        return failed(f"{reason}: the container has lost its GPUs", *evidence, on=gpus, fix=fix)
    return warned(f"{reason}; nothing says that devices were given to this container", *evidence, on=gpus)


@gate(
    "ctr.nv.dev_char",
    group="container",
    vendors=("nvidia",),
    severity="info",
    title="Containers keep their devices when systemd reloads",
    reads="on a host with NVIDIA's container runtime: the link /dev/char/195:255",
    criterion="the link exists",
    why="without it systemd drops the device rules of running containers at daemon-reload, and they lose their GPUs",
    action="sudo nvidia-ctk system create-dev-char-symlinks --create-all",
    source="NVIDIA/nvidia-container-toolkit#48",
)
def dev_char(subject: Subject) -> Iterator[Finding]:
    """Judge a host that starts containers with GPUs."""
    if container_of(subject) is not None:
        yield skipped("this is a container: its host's links do not show here")
        return
    toolkit = next((path for path in _TOOLKIT if subject.host.exists(path)), None)
    if toolkit is None:
        yield skipped("no NVIDIA container runtime is installed here")
        return
    if not subject.host.covers("/dev"):
        yield unknown("the recording has no /dev", Evidence(source="/dev/char", found="not recorded"))
        return
    path = "/dev/char/195:255"
    if subject.host.exists(path):
        yield passed("the nodes have their links in /dev/char", Evidence(source=path, found="there"))
        return
    yield warned(
        "NVIDIA's nodes have no links in /dev/char: running containers lose their GPUs at systemctl daemon-reload",
        Evidence(source=path, found="not there", expected="a link to /dev/nvidiactl"),
        Evidence(source=toolkit, found="there"),
        fix=[Fix(lines=("sudo nvidia-ctk system create-dev-char-symlinks --create-all",))],
    )

"""What was passed into a container: nodes, groups, and NVIDIA's variables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.asked import VENDOR_NAMES, asked_by_name, promise_of
from pytest_gpucoexist.gates.container.place import container_of, is_rootless, runtime_of
from pytest_gpucoexist.gates.device_node.rights import node_evidence, problem_of
from pytest_gpucoexist.gates.findings import Finding, failed, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence, Fix

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import Gpu

__all__ = ["groups", "nodes", "visible_devices"]

_OUTSIDE = "not in a container"
_OVERFLOW_ID = 65534
_OPTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "nvidia": {
        "docker": ("docker run --gpus all …", "docker run --device nvidia.com/gpu=all …"),
        "podman": ("podman run --device nvidia.com/gpu=all …",),
        "Apptainer": ("apptainer exec --nv …",),
    },
    "amd": {
        "docker": ("docker run --device /dev/kfd --device /dev/dri …",),
        "podman": ("podman run --device /dev/kfd --device /dev/dri --group-add keep-groups …",),
        "Apptainer": ("apptainer exec --rocm …",),
    },
}
_IN_KUBERNETES = {"nvidia": "nvidia.com/gpu: 1", "amd": "amd.com/gpu: 1"}


@gate(
    "ctr.nodes",
    group="container",
    vendors=("nvidia", "amd"),
    severity="fail",
    needs_gpu=False,
    title="The nodes of each needed vendor are in the container",
    reads="/dev/nvidia*, /dev/kfd, /dev/dri/renderD* in a container",
    criterion="of each vendor that is promised, every node that its runtime opens is there",
    why="docker's --gpus passes NVIDIA's nodes alone, and /dev/dri without /dev/kfd gives graphics without ROCm",
    action="pass the nodes in when the container is started",
    source="ROCm/rocminfo#116; docker run --gpus (NVIDIA only)",
)
def nodes(subject: Subject) -> Iterator[Finding]:
    """Look for the nodes of what this run asks for, and of what is granted."""
    place = container_of(subject)
    if place is None:
        yield skipped(_OUTSIDE)
        return
    if not subject.host.covers("/dev"):
        yield unknown("the recording has no /dev", Evidence(source="/dev", found="not recorded"))
        return
    said = False
    for vendor in ("nvidia", "amd"):
        gpus = subject.gpus(vendor)
        wish = promise_of(subject, vendor)
        hidden = [gpu for gpu in subject.machine.gpus if gpu.vendor == vendor and gpu.is_compute and not gpu.granted]
        missed = wish or (asked_by_name(subject, vendor) if hidden else None)
        if not gpus and missed is None:
            continue
        said = True
        wanted: tuple[str, ...] = ("/dev/nvidiactl", "/dev/nvidia-uvm") if vendor == "nvidia" else ("/dev/kfd",)
        if gpus and all(gpu.pci_address is None for gpu in gpus):
            wanted = ()  # WSL2 and Jetson have other nodes
        missing = [path for path in wanted if not subject.host.exists(path)]
        rows = [Evidence(source=path, found="not there", expected="there") for path in missing]
        name = VENDOR_NAMES[vendor]
        if not gpus:
            reason = f"no {name} GPU is passed into this container, although {missed}"
            if hidden:
                reason += f"; the host has {len(hidden)}"
            make = failed if wish is not None else warned
            yield make(reason, *rows, action=_action(subject, vendor), fix=_fix(subject, vendor))
        elif missing:
            reason = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not in this container"
            make = failed if wish is not None else warned
            yield make(reason, *rows, on=gpus, action=_action(subject, vendor), fix=_fix(subject, vendor))
        else:
            yield passed(
                f"what {name}'s runtime opens is in this container",
                *(Evidence(source=path, found="there") for path in wanted),
                on=gpus,
            )
    if not said:
        yield skipped("no GPU is passed into this container, and none is asked for")


def _action(subject: Subject, vendor: str) -> str:
    if runtime_of(subject) == "Kubernetes":
        return (
            f"ask for the device in the pod's resources ({_IN_KUBERNETES[vendor]}), through the vendor's device plugin"
        )
    return "pass the nodes in when the container is started"


def _fix(subject: Subject, vendor: str) -> tuple[Fix, ...]:
    lines = _OPTIONS[vendor].get(runtime_of(subject))
    return () if lines is None else (Fix(lines=lines),)


@gate(
    "ctr.amd.group",
    group="container",
    vendors=("amd",),
    severity="fail",
    title="The container's user is in the group that owns AMD's nodes",
    reads="the number of the group that owns /dev/kfd and each render node, and this process's groups",
    criterion="the process is in that group, or the nodes are open to it in another way",
    why="a group's name means nothing in a container: what counts is the host's number, which images do not know",
    action="start the container with --group-add and the number (podman: keep-groups)",
    source="ROCm/rocminfo#34, #116; ROCm/k8s-device-plugin#39",
)
def groups(subject: Subject) -> Iterator[Finding]:
    """Compare numbers, not names."""
    if container_of(subject) is None:
        yield skipped(_OUTSIDE)
        return
    paths: dict[str, list[Gpu]] = {"/dev/kfd": subject.functions("amd")}
    for gpu in subject.functions("amd"):
        if gpu.drm is not None and gpu.drm.render is not None:
            paths.setdefault(f"/dev/dri/{gpu.drm.render}", []).append(gpu)
    me = subject.host.identity()
    for path, gpus in paths.items():
        try:
            node = subject.host.stat(path)
        except OSError:
            if path != "/dev/kfd":
                yield unknown(f"{path} cannot be looked at", Evidence(source=path, found="not there"), on=gpus)
            continue
        problem = problem_of(subject, path)
        evidence = node_evidence(subject, path, problem, f"group {node.gid} among this process's")
        if node.gid in me.groups:
            yield passed("the process is in the group that owns AMD's nodes", evidence, on=gpus)
        elif problem is None:
            yield passed("AMD's nodes are open to this process without the group", evidence, on=gpus)
        elif problem.withheld or not problem.known:
            yield unknown(problem.reason, evidence, on=gpus)
        else:
            yield _outsider(subject, path, node.gid, gpus, evidence)


def _outsider(subject: Subject, path: str, gid: int, gpus: list[Gpu], evidence: Evidence) -> Finding:
    make = failed if subject.wanted("amd") is not None else warned
    if gid == _OVERFLOW_ID or is_rootless(subject):
        reason = f"{path} belongs to a group of the host that this user namespace does not map"
        action = "podman (with crun) keeps the host's groups: --group-add keep-groups"
        return make(
            reason, evidence, on=gpus, action=action, fix=[Fix(lines=("podman run --group-add keep-groups …",))]
        )
    reason = f"this process is not in group {gid}, which owns {path}"
    if runtime_of(subject) == "Kubernetes":
        return make(reason, evidence, on=gpus, action=f"securityContext: supplementalGroups: [{gid}]")
    fix = Fix(lines=(f"docker run --group-add {gid} …",))
    return make(reason, evidence, on=gpus, action=f"start the container with --group-add {gid}", fix=[fix])


@gate(
    "ctr.visible_env",
    group="container",
    vendors=("nvidia",),
    severity="fail",
    needs_gpu=False,
    title="NVIDIA's runtime was told to inject devices",
    reads="NVIDIA_VISIBLE_DEVICES, NVIDIA_DRIVER_CAPABILITIES",
    criterion="where NVIDIA is promised, devices were injected, with the capabilities compute and utility",
    why="NVIDIA's container runtime injects what these variables say, at the start of the container alone; with CDI "
    "the variable is void and the devices are there all the same",
    action="start the container with NVIDIA's runtime and NVIDIA_VISIBLE_DEVICES=all (docker --gpus all), or by CDI",
    source="NVIDIA Container Toolkit: documentation of the environment variables; CDI specs set "
    "NVIDIA_VISIBLE_DEVICES=void",
)
def visible_devices(subject: Subject) -> Iterator[Finding]:
    """Judge the variables by what came of them."""
    if container_of(subject) is None:
        yield skipped(_OUTSIDE)
        return
    environ = subject.host.environ
    value, capabilities = environ.get("NVIDIA_VISIBLE_DEVICES"), environ.get("NVIDIA_DRIVER_CAPABILITIES")
    evidence = Evidence(source="NVIDIA_VISIBLE_DEVICES", found="not set" if value is None else repr(value))
    gpus = subject.gpus("nvidia")
    if not gpus:
        wish = promise_of(subject, "nvidia")
        if wish is None:
            yield skipped("no NVIDIA GPU is in this container, and none is promised")
            return
        why = {
            None: "NVIDIA_VISIBLE_DEVICES is not set",
            "": "NVIDIA_VISIBLE_DEVICES is empty",
            "none": "NVIDIA_VISIBLE_DEVICES=none injects the driver without devices",
            "void": "NVIDIA_VISIBLE_DEVICES=void injects nothing, and CDI has not either",
        }.get(value, f"NVIDIA_VISIBLE_DEVICES={value} was set, and this container's runtime is not NVIDIA's")
        yield failed(f"no NVIDIA device was injected, although {wish}: {why}", evidence, fix=_fix(subject, "nvidia"))
        return
    lacking = _lacking(value, capabilities)
    if lacking:
        yield warned(
            f"NVIDIA_DRIVER_CAPABILITIES={capabilities} leaves out {' and '.join(lacking)}",
            Evidence(source="NVIDIA_DRIVER_CAPABILITIES", found=repr(capabilities), expected="compute,utility"),
            on=gpus,
            action="start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility: compute brings libcuda, "
            "utility NVML",
        )
        return
    how = "by CDI" if value == "void" else "by its nodes" if value in {None, "", "none"} else "by NVIDIA's runtime"
    yield passed(f"NVIDIA devices are in this container, injected {how}", evidence, on=gpus)


def _lacking(value: str | None, capabilities: str | None) -> list[str]:
    """Return what the capabilities leave out. Unset they are compute and utility; CDI does not look at them."""
    if capabilities is None or value in {None, "", "void"}:
        return []
    given = {word.strip() for word in capabilities.split(",")}
    return [] if not capabilities or "all" in given else [word for word in ("compute", "utility") if word not in given]

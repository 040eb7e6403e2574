"""Which node is which GPU's, and whether what was seen as root holds for others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.container.place import container_of, is_rootless
from pytest_gpucoexist.gates.device_node.opening import HARMLESS, open_node
from pytest_gpucoexist.gates.device_node.rights import problem_of
from pytest_gpucoexist.gates.findings import Finding, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.gates.vendors import devices, vendor_reply
from pytest_gpucoexist.model.verdicts import Evidence
from pytest_gpucoexist.probes.cells import value_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.host.base import Node
    from pytest_gpucoexist.model.machine import Gpu

__all__ = ["index_map", "open_test"]


@gate(
    "dev.index_map",
    group="device-node",
    level="standard",
    severity="info",
    title="One name, one GPU",
    reads="card, render node, KFD node and NVML's index of each GPU; device numbers in /dev and in sysfs",
    criterion="no two GPUs have the same card, render node or KFD node, and /dev/dri/renderD<n> is device 226:<n>",
    why="cardN, renderDN, NVML's and a runtime's index are four different numberings; in a container a node can carry "
    "another's name, and the program then talks to another GPU",
    action="choose GPUs by PCI address or UUID; pass nodes into a container under their own names",
    source="pytorch/pytorch PR#197790; leptonai/gpud",
)
def index_map(subject: Subject) -> Iterator[Finding]:
    """Put the numberings side by side and look for one number that means two GPUs."""
    gpus = subject.gpus()
    taken: dict[str, list[Gpu]] = {}
    rows: list[Evidence] = []
    nvml = _nvml_indices(subject)
    for gpu in gpus:
        names = _names(gpu)
        for name in names:
            if gpu.partition is None:
                taken.setdefault(name, []).append(gpu)
        if gpu.uuid in nvml:
            names.append(f"NVML index {nvml[gpu.uuid]}")
        rows.append(Evidence(source=gpu.key, found=", ".join(names) or "no name beside its own"))
    wrong = False
    for name, owners in taken.items():
        if len(owners) > 1:
            wrong = True
            yield warned(f"{name} is claimed by {' and '.join(gpu.id for gpu in owners)}", *rows, on=owners)
    for gpu in gpus:
        for path, node, expected in _renamed(subject, gpu):
            wrong = True
            evidence = Evidence(
                source=path, found=f"device {node.major}:{node.minor}", expected=f"device 226:{expected}"
            )
            yield warned(f"{path} is the node of another GPU under this name", evidence, on=[gpu])
    if not taken and not any(gpu.uuid in nvml for gpu in gpus):
        yield unknown("no number of any GPU is told", *rows)
    elif not wrong:
        yield passed(
            f"{len(rows)} GPUs, every number means one of them" if len(rows) != 1 else "one GPU, one name of each kind",
            *rows,
        )


def _names(gpu: Gpu) -> list[str]:
    names = []
    if gpu.drm is not None:
        names += [name for name in (gpu.drm.card, gpu.drm.render) if name is not None]
    if gpu.kfd is not None:
        names.append(f"KFD node {gpu.kfd.node}")
    return names


def _nvml_indices(subject: Subject) -> dict[str | None, object]:
    if not subject.gpus("nvidia"):
        return {}
    return {
        uuid: device.get("index")
        for device in devices(vendor_reply(subject, "nvidia"))
        if isinstance(uuid := value_of(device, "uuid"), str)
    }


def _renamed(subject: Subject, gpu: Gpu) -> Iterator[tuple[str, Node, int]]:
    """Yield render nodes whose number is not the one in their name (drm_drv.c: minor and name are the same)."""
    render = gpu.drm.render if gpu.drm is not None else None
    if render is None or not render.removeprefix("renderD").isdecimal():
        return
    path, number = f"/dev/dri/{render}", int(render.removeprefix("renderD"))
    try:
        node = subject.host.stat(path)
    except OSError:
        return
    if node.kind == "chardev" and node.minor is not None and (node.major, node.minor) != (226, number):
        yield path, node, number


@gate(
    "dev.access_open_test",
    group="device-node",
    severity="info",
    title="What was seen holds for an ordinary user",
    reads="the effective uid; the nodes' modes; from level standard on, opening /dev/nvidiactl and /dev/kfd",
    criterion="the process is not root, or the nodes are open to everybody, so that the answer is the same for others",
    why="root opens every node: a suite that passes as root can fail for everybody else; and a node whose mode allows "
    "it can still refuse (device cgroup)",
    action="run gpucoexist doctor as the user who runs the tests",
    source="ROCm/rocminfo#34",
)
def open_test(subject: Subject) -> Iterator[Finding]:
    """Say as whom nodes were looked at; from level standard on, open those that are harmless to open."""
    me = subject.host.identity()
    paths = _node_paths(subject)
    known = {path: node for path in paths if (node := _stat(subject, path)) is not None}
    if not known:
        if not subject.host.covers("/dev"):
            yield unknown("the recording has no /dev", Evidence(source="/dev", found="not recorded", expected="nodes"))
        else:
            yield skipped("no node of a GPU is here to be opened")
        return
    refused = [
        (path, answer)
        for path in HARMLESS
        if path in known and problem_of(subject, path) is None and (answer := open_node(subject, path)).code
    ]
    for path, answer in refused:
        evidence = Evidence(source=path, found=answer.words, expected="opens, as its mode says")
        yield warned(f"{path} cannot be opened although its mode allows it", evidence)
    if refused:
        return
    closed = [path for path, node in known.items() if node.mode & 0o006 != 0o006]
    who = Evidence(source="effective uid", found=str(me.uid), expected="not 0, or nodes open to everybody")
    if me.uid != 0:
        yield passed(f"nodes were looked at as uid {me.uid}", who)
    elif not closed:
        yield passed("this is root, and the nodes are open to everybody", who)
    elif subject.since_s is not None:
        yield passed("this is root, as whom the tests of this session run", who)
    elif container_of(subject) is not None or is_rootless(subject):
        yield passed("this is the container's root, as whom tests usually run in a container", who)
    else:
        rows = [
            Evidence(source=path, found=f"mode {known[path].mode & 0o777:04o}, gid {known[path].gid}")
            for path in closed[:4]
        ]
        yield warned("this is root: whether other users may open the nodes was not seen", who, *rows)


def _node_paths(subject: Subject) -> list[str]:
    paths: dict[str, None] = {}
    if subject.gpus("nvidia"):
        paths["/dev/nvidiactl"] = None
    if subject.gpus("amd"):
        paths["/dev/kfd"] = None
    for gpu in subject.gpus("amd", "intel"):
        if gpu.drm is not None and gpu.drm.render is not None:
            paths[f"/dev/dri/{gpu.drm.render}"] = None
    return list(paths)


def _stat(subject: Subject, path: str) -> Node | None:
    try:
        node = subject.host.stat(path)
    except OSError:
        return None
    return node if node.kind == "chardev" else None

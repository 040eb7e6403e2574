"""The nodes that ROCm and Level Zero open: `/dev/kfd` and a render node for each GPU."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.asked import VENDOR_NAMES, promise_of
from pytest_gpucoexist.gates.device_node.rights import advice, node_evidence, problem_of
from pytest_gpucoexist.gates.findings import Finding, failed, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence, Fix

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import Gpu

__all__ = ["by_path", "kfd", "render"]

_KFD = "/dev/kfd"
_DRIVERS = {"amd": ("amdgpu",), "intel": ("i915", "xe")}
_BY_PATH = "/dev/dri/by-path"


@gate(
    "dev.amd.kfd",
    group="device-node",
    vendors=("amd",),
    severity="fail",
    blocking=True,
    title="ROCm's node opens",
    reads="/dev/kfd: whether this process may open it, its mode and owner",
    criterion="this process may open /dev/kfd for reading and writing",
    why="ROCm reaches every AMD GPU through this node; without the right to open it rocminfo and HIP see no GPU",
    action="join the group that owns /dev/kfd; where there is no such node, load amdgpu (built with CONFIG_HSA_AMD)",
    source="ROCm/rocminfo#34; ROCm/legacy-rocm-build#4043, #2232",
)
def kfd(subject: Subject) -> Iterator[Finding]:
    """Judge the node that all AMD GPUs share."""
    gpus = [gpu for gpu in subject.functions("amd") if gpu.driver == "amdgpu"]
    if not gpus:
        yield skipped("amdgpu is bound to no GPU here")
        return
    problem = problem_of(subject, _KFD)
    evidence = node_evidence(subject, _KFD, problem)
    if problem is None:
        yield passed(f"{_KFD} may be opened", evidence, on=gpus)
    elif not problem.known:
        yield unknown(f"{_KFD} is not recorded", evidence, on=gpus)
    elif problem.status == "absent" and not any(gpu.kfd for gpu in gpus):
        wish = subject.wanted("amd")
        if wish is None:
            yield skipped(f"no {_KFD}, and nobody expects ROCm here", on=gpus)
        else:
            yield failed(f"no {_KFD}, although {wish}", evidence, on=gpus, action=_absent(problem.code))
    else:
        yield _refused(subject, _KFD, gpus, evidence)


def _absent(code: int) -> str:
    if code in {errno.ENOENT, errno.ENOTDIR}:
        return "use a kernel whose amdgpu has CONFIG_HSA_AMD; in a container pass the node in (--device /dev/kfd)"
    return "look in the kernel log: KFD could not be initialised"


@gate(
    "dev.render",
    group="device-node",
    vendors=("amd", "intel"),
    severity="fail",
    blocking=True,
    title="Each render node opens",
    reads="/dev/dri/renderD* of each AMD and Intel GPU: mode, owner, and this process's groups",
    criterion="this process may open the render node of each GPU for reading and writing",
    why="memory is allocated through the render node; ROCm gives up on all AMD GPUs when a single one is refused",
    action="join the group that owns the node: render on some systems, video on others",
    source="ROCm/rocminfo#34; nvidia-bug-report.sh (permissions of /dev/dri)",
)
def render(subject: Subject) -> Iterator[Finding]:
    """Judge the render node of each GPU of the vendors that need one."""
    asked = False
    for vendor in ("amd", "intel"):
        gpus = [gpu for gpu in subject.functions(vendor) if gpu.driver in _DRIVERS[vendor]]
        for gpu in gpus:
            asked = True
            if gpu.drm is None or gpu.drm.render is None:
                yield unknown(
                    "no render node is known",
                    Evidence(
                        source=f"/sys/bus/pci/devices/{gpu.pci_address}/drm", found="no renderD*", expected="renderD<n>"
                    ),
                    on=[gpu],
                )
                continue
            path = f"/dev/dri/{gpu.drm.render}"
            problem = problem_of(subject, path)
            evidence = node_evidence(subject, path, problem)
            if problem is None:
                yield passed("the render node may be opened", evidence, on=[gpu])
            elif not problem.known:
                yield unknown("the render node is not recorded", evidence, on=[gpu])
            elif vendor == "amd" and problem.code == errno.EACCES and len(gpus) > 1:
                yield _refused(subject, path, gpus, evidence)
            else:
                yield _refused(subject, path, [gpu], evidence)
    if not asked:
        yield skipped("neither amdgpu, i915 nor xe is bound to a GPU here")


def _refused(subject: Subject, path: str, gpus: list[Gpu], evidence: Evidence) -> Finding:
    """Judge a node that this process may not open: a failure where somebody expects the vendor's GPUs to work."""
    problem = problem_of(subject, path)
    assert problem is not None
    vendor = gpus[0].vendor
    action, fix = advice(subject, path)
    reason = problem.reason
    if path != _KFD and vendor == "amd" and len(gpus) > 1:
        reason += ", and ROCm loses every AMD GPU when one render node is refused"
    wish = subject.wanted(vendor)
    small = all(gpu.kind == "integrated" for gpu in gpus)
    if wish is None and small and vendor not in subject.needed:
        # The groups that Ubuntu and Debian ask for are missing to most users, and a display does without.
        return skipped(f"{reason}; nothing here asks for the processor's own GPU", on=gpus)
    if small and vendor == "intel" and promise_of(subject, vendor) is None:
        # Level Zero's loader comes along with hwloc and compilers: no sign that anybody computes on a display's GPU.
        return warned(reason, evidence, on=gpus, action=action, fix=fix)
    if wish is None:
        reason += f"; nothing here says that {VENDOR_NAMES[vendor]} GPUs are expected to work"
        return warned(reason, evidence, on=gpus, action=action, fix=fix)
    return failed(reason, evidence, on=gpus, action=action, fix=fix, blocking=vendor == "amd")


@gate(
    "dev.amd.by_path",
    group="device-node",
    vendors=("amd", "intel"),
    severity="info",
    title="Names that udev gives lead to the right render node",
    reads="/dev/dri/by-path/pci-<address>-render",
    criterion="the link of each GPU leads to its render node",
    why="by-path is the name that survives a boot; where it leads to another card, tools that use it talk to that card",
    action="sudo udevadm trigger --subsystem-match=drm",
    source="proposed with this catalogue; names as in systemd's 60-drm.rules",
)
def by_path(subject: Subject) -> Iterator[Finding]:
    """Compare udev's links with what sysfs says."""
    gpus = [gpu for gpu in subject.functions("amd", "intel") if gpu.drm is not None and gpu.drm.render is not None]
    if not gpus:
        yield skipped("no GPU with a render node")
        return
    if not subject.names(_BY_PATH):
        yield skipped("no udev here made links by path (a container, or a small system)")
        return
    for gpu in gpus:
        assert gpu.drm is not None
        path = f"{_BY_PATH}/pci-{gpu.pci_address}-render"
        expected = f"/dev/dri/{gpu.drm.render}"
        try:
            found = subject.host.resolve(path)
        except OSError as error:
            found = f"not there ({errno.errorcode.get(error.errno or 0, error)})"
        evidence = Evidence(source=path, found=found, expected=expected)
        if found == expected:
            yield passed("the link by path leads to the GPU's render node", evidence, on=[gpu])
        elif found.startswith("/"):
            yield warned(f"{path} leads to {found}, and the GPU's node is {expected}", evidence, on=[gpu], fix=_TRIGGER)
        else:
            yield warned(f"no {path}", evidence, on=[gpu], fix=_TRIGGER)


_TRIGGER = (Fix(lines=("sudo udevadm trigger --subsystem-match=drm",)),)

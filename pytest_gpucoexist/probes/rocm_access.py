"""Whether this process can use an AMD GPU through ROCm.

Needed: amdgpu bound, a KFD node, `/dev/kfd` and the GPU's render node openable for reading and writing. libhsakmt
drops a render node that is absent or refused with EPERM, but gives up the whole topology on EACCES: then no AMD GPU is
usable.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_gpucoexist.host.base import Host
from pytest_gpucoexist.probes.nodes import NodeProblem, node_problem
from pytest_gpucoexist.probes.platform import WSL_DRIVER
from pytest_gpucoexist.probes.verdict import Verdict, lost_reason, no, unbound_reason, yes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_gpucoexist.model.machine import Gpu

__all__ = ["RocmRules"]

_DRIVER = "amdgpu"
_KFD = "/dev/kfd"
_TOPOLOGY = "/sys/class/kfd/kfd/topology/nodes"


@dataclass(frozen=True, slots=True, kw_only=True)
class RocmRules:
    """The rules of ROCm on one host.

    `kfd_problem` and `node_problems` (by render node) were found once; `refused` names KFD nodes that the device
    cgroup hides (reading them gives EPERM). `blocking` is the render node whose EACCES loses every AMD GPU.
    """

    host: Host
    container: str | None
    kfd_problem: NodeProblem | None = None
    node_problems: dict[str, NodeProblem] = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    blocking: tuple[str, str] | None = None

    @classmethod
    def of(cls, host: Host, container: str | None, gpus: Iterable[Gpu]) -> RocmRules:
        """Read once what the rules need for all GPUs."""
        mine = [gpu for gpu in gpus if gpu.vendor == "amd"]
        if not mine or not host.covers("/dev"):
            return cls(host=host, container=container)
        problems: dict[str, NodeProblem] = {}
        blocking: tuple[str, str] | None = None
        for gpu in mine:
            path = _render_node(gpu)
            problem = None if path is None else node_problem(host, path)
            if path is None or problem is None:
                continue
            problems[path] = problem
            refused = problem.code == errno.EACCES and not problem.withheld
            if blocking is None and gpu.kfd is not None and refused:
                blocking = path, f"{gpu.key}: {problem.reason}"
        return cls(
            host=host,
            container=container,
            kfd_problem=node_problem(host, _KFD),
            node_problems=problems,
            refused=_refused_nodes(host),
            blocking=blocking,
        )

    def judge(self, gpu: Gpu) -> Verdict:
        """Decide `usable.rocm` of one GPU."""
        if gpu.vendor != "amd":
            return no("vendor", "unsupported", "not an AMD GPU")
        if not gpu.is_compute:
            return no("kind", "unsupported", f"no compute device: {gpu.kind}")
        if gpu.driver == WSL_DRIVER:
            return no("driver", "unsupported", "WSL2 has no KFD: only /dev/dxg")
        lost = lost_reason(self.host, gpu)
        if lost is not None:
            return no("PCI configuration space", "broken", lost)
        # A recording of the KFD topology alone does not tell the driver; nothing but amdgpu makes KFD nodes.
        if gpu.driver != _DRIVER and (gpu.driver is not None or gpu.kfd is None):
            return no("driver", "absent", unbound_reason(gpu.driver, _DRIVER))
        return self._judge_nodes(gpu)

    def _judge_nodes(self, gpu: Gpu) -> Verdict:
        if not self.host.covers("/dev"):
            if gpu.kfd is None:
                return self._no_kfd_node()
            return yes("KFD topology", "assumed: amdgpu is bound and has a KFD node; the recording has no /dev")
        path = _render_node(gpu)
        problem = self.node_problems.get(path or "")
        if problem is not None and problem.withheld:
            # devtmpfs makes a node for every minor: where it is missing, somebody made a smaller /dev.
            where = f"this container ({self.container})" if self.container else "a sandboxed /dev"
            reason = f"not granted here: {problem.reason} in {where}"
            return no(problem.path, problem.status, reason, withheld=True)
        if self.kfd_problem is not None and self.kfd_problem.known:
            return self._no_kfd(self.kfd_problem)
        if gpu.kfd is None:
            return self._no_kfd_node()
        if problem is not None and problem.known:
            return no(problem.path, problem.status, problem.reason)
        if self.blocking is not None:
            reason = f"ROCm loses every AMD GPU when one render node is refused: {self.blocking[1]}"
            return no(self.blocking[0], "denied", reason)
        opened = f"{_KFD} and {path}" if path is not None else _KFD
        return yes("device nodes", f"amdgpu is bound, has a KFD node, and {opened} can be opened")

    def _no_kfd(self, problem: NodeProblem) -> Verdict:
        if problem.status != "absent":
            return no(problem.path, problem.status, problem.reason)
        if self.container is not None:
            reason = f"no {_KFD} in this container ({self.container}): pass it in (--device {_KFD})"
        else:
            reason = f"no {_KFD}: amdgpu was built without CONFIG_HSA_AMD, or took no GPU for compute"
        return no(problem.path, problem.status, reason)

    def _no_kfd_node(self) -> Verdict:
        if self.refused:
            reason = f"not granted here: KFD hides {', '.join(self.refused)} (EPERM: device cgroup)"
            return no(_TOPOLOGY, "denied", reason, withheld=True)
        if not self.host.covers(_TOPOLOGY):
            return no(_TOPOLOGY, "absent", "the recording has no KFD topology, so nothing shows that ROCm can use it")
        reason = "no KFD node: this chip has no ROCm, or its slot has no PCIe atomics (see the kernel log)"
        return no(_TOPOLOGY, "absent", reason)


def _render_node(gpu: Gpu) -> str | None:
    if gpu.kfd is not None and gpu.kfd.render_minor:
        return f"/dev/dri/renderD{gpu.kfd.render_minor}"
    if gpu.drm is not None and gpu.drm.render is not None:
        return f"/dev/dri/{gpu.drm.render}"
    return None


def _refused_nodes(host: Host) -> tuple[str, ...]:
    try:
        names = host.list_dir(_TOPOLOGY)
    except OSError:
        return ()
    refused: list[str] = []
    for name in names:
        try:
            host.read_text(f"{_TOPOLOGY}/{name}/gpu_id")
        except OSError as error:
            if error.errno == errno.EPERM:
                refused.append(f"node {name}")
    return tuple(refused)

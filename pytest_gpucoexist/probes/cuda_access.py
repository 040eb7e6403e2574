"""Whether this process can use an NVIDIA GPU through CUDA.

Needed: the nvidia driver bound, its nodes openable and NVML answering for this GPU. The nodes are `/dev/nvidiactl`,
`/dev/nvidia<minor>` and `/dev/nvidia-uvm` (without it `cuInit` returns 999). Where NVML is not installed or was not
asked, the nodes decide.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_gpucoexist.host.base import Host
from pytest_gpucoexist.model.readings import Fact
from pytest_gpucoexist.probes.nodes import NodeProblem, node_problem
from pytest_gpucoexist.probes.nvidia import Information, gpu_information
from pytest_gpucoexist.probes.platform import DXG, WSL_DRIVER, WSL_LIBRARIES
from pytest_gpucoexist.probes.verdict import Verdict, lost_reason, no, unbound_reason, yes

if TYPE_CHECKING:
    from pytest_gpucoexist.model.machine import Gpu

__all__ = ["CudaRules"]

_DRIVER = "nvidia"
_NVML = "nvml"
_TEGRA_NODES = ("/dev/nvmap", "/dev/nvhost-ctrl-gpu")
_MODPROBE = "create it with `nvidia-modprobe -u -c {minor}`"
_MIG_PARTITION = re.compile(r"\D*(\d+)\D+(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaRules:
    """The rules of CUDA on one host. `nvml` is what came of asking NVML as a whole; None when it was not asked."""

    host: Host
    container: str | None
    nvml: Fact | None = None
    information: dict[str, Information] = field(default_factory=dict)

    @classmethod
    def of(cls, host: Host, container: str | None, nvml: Fact | None = None) -> CudaRules:
        """Read once what the rules need for all GPUs."""
        return cls(host=host, container=container, nvml=nvml, information=gpu_information(host))

    def judge(self, gpu: Gpu) -> Verdict:
        """Decide `usable.cuda` of one GPU."""
        if gpu.vendor != _DRIVER:
            return no("vendor", "unsupported", "not an NVIDIA GPU")
        if not gpu.is_compute:
            return no("kind", "unsupported", f"no compute device: {gpu.kind}")
        if gpu.partition is None and gpu.features.get("mig"):
            return no("features.mig", "unsupported", "MIG is on: CUDA sees its instances, not the whole GPU")
        if gpu.driver == WSL_DRIVER:
            return self._judge_wsl()
        if gpu.pci_address is None and gpu.driver not in {_DRIVER, None}:
            return self._judge_nodes(gpu, _TEGRA_NODES, "the Tegra driver is bound")
        return self._judge_pci(gpu)

    def _judge_pci(self, gpu: Gpu) -> Verdict:
        known = self.information.get(gpu.pci_address or "")
        lost = lost_reason(self.host, gpu)
        if lost is not None:
            return no("PCI configuration space", "broken", lost)
        if gpu.driver != _DRIVER and (gpu.driver is not None or known is None):
            return no("driver", "absent", unbound_reason(gpu.driver, _DRIVER))
        if known is not None and known.excluded:
            reason = "excluded from use by the driver's parameter NVreg_ExcludedGpus"
            return no("/proc/driver/nvidia/gpus", "denied", reason)
        if known is None and self.information:
            return self._not_listed(gpu)
        minor = None if known is None else known.minor
        return self._judge_nodes(gpu, self._nodes(gpu, minor), "the nvidia driver is bound")

    def _not_listed(self, gpu: Gpu) -> Verdict:
        """Judge a GPU that is bound but not among the driver's own.

        The NVIDIA container runtime mounts a `/proc/driver/nvidia` that holds the injected GPUs only.
        """
        source = "/proc/driver/nvidia/gpus"
        if self.container is not None:
            reason = (
                f"not granted here: this container ({self.container}) was given other GPUs (NVIDIA_VISIBLE_DEVICES)"
            )
            return no(source, "denied", reason, withheld=True)
        return no(source, "broken", f"the nvidia driver does not list {gpu.pci_address}: it failed to initialise it")

    def _nodes(self, gpu: Gpu, minor: int | None) -> tuple[str, ...]:
        nodes = ["/dev/nvidiactl", "/dev/nvidia-uvm"]
        if minor is not None:
            nodes.insert(1, f"/dev/nvidia{minor}")
            nodes += self._mig_nodes(gpu, minor)
        return tuple(nodes)

    def _mig_nodes(self, gpu: Gpu, minor: int) -> list[str]:
        """Return the capability nodes of a MIG instance, which a container must be given one by one."""
        instance = _MIG_PARTITION.fullmatch(gpu.partition or "")
        if instance is None:
            return []
        folder = f"/proc/driver/nvidia/capabilities/gpu{minor}/mig/gi{instance[1]}"
        nodes: list[str] = []
        for path in (f"{folder}/access", f"{folder}/ci{instance[2]}/access"):
            try:
                text = self.host.read_text(path)
            except OSError:
                continue
            capability = re.search(r"^DeviceFileMinor:\s*(\d+)", text, re.MULTILINE)
            if capability is not None:
                nodes.append(f"/dev/nvidia-caps/nvidia-cap{capability[1]}")
        return nodes

    def _judge_nodes(self, gpu: Gpu, nodes: tuple[str, ...], bound: str) -> Verdict:
        if not self.host.covers("/dev"):
            return self._judge_nvml(gpu, f"assumed: {bound}; the recording has no /dev")
        for path in nodes:
            problem = node_problem(self.host, path)
            if problem is not None and problem.known:
                return self._refused(problem)
        return self._judge_nvml(gpu, f"{bound} and {', '.join(nodes)} can be opened")

    def _refused(self, problem: NodeProblem) -> Verdict:
        if problem.withheld and self.container is not None:
            reason = f"not granted here: {problem.reason} in this container ({self.container})"
            return no(problem.path, problem.status, reason, withheld=True)
        if problem.withheld and problem.status == "denied":
            # A batch system gives a job its GPUs by a device cgroup, without any container (Slurm, ConstrainDevices).
            return no(problem.path, problem.status, f"not granted here: {problem.reason}", withheld=True)
        reason = problem.reason
        minor = problem.path.removeprefix("/dev/nvidia")
        if problem.status == "absent" and (minor.isdecimal() or minor in {"ctl", "-uvm"}):
            reason += ": " + _MODPROBE.format(minor=minor if minor.isdecimal() else 0)
        return no(problem.path, problem.status, reason)

    def _judge_nvml(self, gpu: Gpu, nodes: str) -> Verdict:
        said = _nvml_of(gpu) or self.nvml
        if said is None:
            return yes("device nodes", f"{nodes}; NVML was not asked")
        if said.status == "ok":
            return yes(_NVML, f"{nodes}; NVML answers")
        # "absent" is a library that is not installed, or one that answers and lists others.
        if said.status == "absent" and "lists" not in (said.detail or ""):
            return yes("device nodes", f"{nodes}; NVML is not there to ask ({said.detail})")
        return no(_NVML, said.status, f"NVML does not answer for this GPU: {said.detail or said.status}")

    def _judge_wsl(self) -> Verdict:
        problem = node_problem(self.host, DXG)
        if problem is not None and problem.known:
            return self._refused(problem)
        if not any(self.host.exists(f"{WSL_LIBRARIES}/{name}") for name in ("libcuda.so.1", "libcuda.so")):
            reason = f"no libcuda in {WSL_LIBRARIES}: install NVIDIA's driver in Windows"
            return no(WSL_LIBRARIES, "absent", reason)
        return yes(DXG, f"{DXG} can be opened and {WSL_LIBRARIES} has libcuda")


def _nvml_of(gpu: Gpu) -> Fact | None:
    """Return a fact that NVML told about this GPU, else why it told none; None when it was not asked."""
    facts = [fact for fact in gpu.facts.values() if fact.source == _NVML]
    return next((fact for fact in facts if fact.status == "ok"), facts[0] if facts else None)

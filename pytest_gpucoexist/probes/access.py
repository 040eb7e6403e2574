"""What this process may use: `usable`, `granted`, and a reason that a person can act on for each "no"."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_gpucoexist.model.machine import Gpu, Machine, Usable
from pytest_gpucoexist.model.readings import Fact
from pytest_gpucoexist.probes.container import container_evidence
from pytest_gpucoexist.probes.cuda_access import CudaRules
from pytest_gpucoexist.probes.nodes import node_problem
from pytest_gpucoexist.probes.rocm_access import RocmRules

if TYPE_CHECKING:
    from pytest_gpucoexist.host.base import Host

__all__ = ["judge"]


def judge(host: Host, machine: Machine, *, nvml: Fact | None = None) -> Machine:
    """Set `usable` and `granted` of every GPU, with `facts["usable.cuda"]`, `facts["usable.rocm"]`, `facts["granted"]`.

    What came of asking NVML is taken from the facts that it left at each GPU, else from `nvml`. A GPU is not granted
    when its nodes are withheld from this container although sysfs shows it.
    """
    container = container_evidence(host)
    cuda = CudaRules.of(host, container, nvml)
    rocm = RocmRules.of(host, container, machine.gpus)
    return replace(machine, gpus=tuple(_judge(host, gpu, cuda, rocm) for gpu in machine.gpus))


def _judge(host: Host, gpu: Gpu, cuda: CudaRules, rocm: RocmRules) -> Gpu:
    by_cuda = cuda.judge(gpu)
    by_rocm = rocm.judge(gpu)
    granted = _granted(host, gpu, next((verdict.fact for verdict in (by_cuda, by_rocm) if verdict.withheld), None))
    return replace(
        gpu,
        usable=Usable(cuda=by_cuda.usable, rocm=by_rocm.usable),
        granted=granted.status == "ok",
        facts={**gpu.facts, "usable.cuda": by_cuda.fact, "usable.rocm": by_rocm.fact, "granted": granted},
    )


def _granted(host: Host, gpu: Gpu, withheld: Fact | None) -> Fact:
    if withheld is not None:
        return withheld if withheld.status == "denied" else replace(withheld, status="denied")
    if not host.covers("/dev"):
        return Fact(source="device nodes", detail="assumed: the recording has no /dev")
    if gpu.vendor == "intel" and gpu.drm is not None and gpu.drm.render is not None:
        problem = node_problem(host, f"/dev/dri/{gpu.drm.render}")
        if problem is not None and problem.withheld:
            return Fact(source=problem.path, status="denied", detail=f"not granted here: {problem.reason}")
    return Fact(source="device nodes", detail="nothing withholds its nodes")

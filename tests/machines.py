"""Small machines for tests of rules: values, not trees."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.model.machine import Gpu, Machine, Mask, NumaNode, Runtime, Usable
from pytest_gpucoexist.model.readings import Fact

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["amd", "apu", "dual", "intel", "machine", "nvidia", "write_machine"]

GIB = 1024**3


def nvidia(number: int = 0, **changes: Any) -> Gpu:
    """A discrete NVIDIA card that CUDA can use, behind a switch on node 0."""
    gpu = Gpu(
        id=f"nvidia{number}",
        pci_address=f"0000:4{number + 1}:00.0",
        vendor="nvidia",
        kind="discrete",
        name="GA102 [GeForce RTX 3090]",
        uuid=f"GPU-0000000{number}-1111-2222-3333-444444444444",
        numa_node=0,
        driver="nvidia",
        driver_version="535.261.03",
        memory_total_bytes=24 * GIB,
        arch="8.6",
        upstream=("0000:40:00.0", f"0000:40:0{number}.0"),
        features={"p2p": True, "ecc": False},
        usable=Usable(cuda=True),
    )
    return replace(gpu, **changes)


def amd(number: int = 0, **changes: Any) -> Gpu:
    """A discrete AMD card that ROCm can use, on node 1."""
    gpu = Gpu(
        id=f"amd{number}",
        pci_address=f"0000:c{number + 1}:00.0",
        vendor="amd",
        kind="discrete",
        name="Aldebaran/MI200 [Instinct MI210]",
        numa_node=1,
        driver="amdgpu",
        driver_version="6.8.0-51-generic",
        memory_total_bytes=64 * GIB,
        arch="gfx90a",
        upstream=("0000:c0:00.0",),
        features={"p2p": True, "large_bar": True},
        usable=Usable(rocm=True),
    )
    return replace(gpu, **changes)


def apu(number: int = 9, **changes: Any) -> Gpu:
    """An integrated AMD GPU with a KFD node."""
    return replace(amd(number, kind="integrated", arch="gfx1036", pci_address=f"0000:0{number}:00.0"), **changes)


def intel(number: int = 0, **changes: Any) -> Gpu:
    """An integrated Intel GPU."""
    gpu = Gpu(
        id=f"intel{number}", pci_address="0000:00:02.0", vendor="intel", kind="integrated", driver="i915", numa_node=0
    )
    return replace(gpu, **changes)


def machine(*gpus: Gpu, **changes: Any) -> Machine:
    """A machine with two NUMA nodes. `masked="VARIABLE=value"` hides every GPU by that variable."""
    nodes = (NumaNode(id=0, cpulist="0-7"), NumaNode(id=1, cpulist="8-15"))
    return replace(Machine(name="testbox", gpus=gpus, numa_nodes=nodes), **changes)


def dual(**changes: Any) -> Machine:
    """Two NVIDIA cards and one AMD card."""
    return machine(nvidia(0), nvidia(1), amd(0), **changes)


def masked(gpu: Gpu, variable: str, value: str, runtime: str) -> tuple[Gpu, Mask]:
    """A GPU that the caller's mask hides, and the mask."""
    return replace(gpu, visible=False), Mask(variable=variable, value=value, runtime=runtime, devices=())


def unread(gpu: Gpu, field: str, source: str, detail: str) -> Gpu:
    """A GPU of which one fact could not be read."""
    facts = {**gpu.facts, field: Fact(source=source, status="denied", detail=detail)}
    return replace(gpu, **{field: None}, facts=facts)  # type: ignore[arg-type]


def torch(version: str = "2.9.0+cu128", *vendors: str) -> Runtime:
    """A torch that is installed."""
    return Runtime(name="torch", kind="framework", version=version, vendors=vendors)


def write_machine(path: Path, value: Machine) -> Path:
    """Write a machine for `--gpu-machine`."""
    path.write_text(json.dumps(value.to_json()), encoding="utf-8")
    return path

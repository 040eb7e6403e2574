"""What a GPU is described by: its registers, its nodes in DRM and KFD, the processes that use it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Bar", "DrmNodes", "GpuProcess", "KfdCpuNode", "KfdLink", "KfdNode"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A base address register that is in use."""

    index: int
    size_bytes: int
    is_64bit: bool = False
    prefetchable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DrmNodes:
    """DRM minors of a function. They can change at every boot: for display, never a key."""

    card: str | None = None
    render: str | None = None
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KfdLink:
    """A link between two KFD nodes. `type` is the kernel's CRAT number: 2 is PCIe, 11 is XGMI."""

    kind: Literal["io", "p2p"]
    type: int
    node_to: int
    weight: int | None = None
    min_bandwidth_mbps: int | None = None
    max_bandwidth_mbps: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KfdNode:
    """The node of the KFD topology that stands for a GPU or for one of its partitions."""

    node: int
    gpu_id: int | None = None
    gfx_target_version: int | None = None
    simd_count: int | None = None
    num_xcc: int | None = None
    nearest_cpu_node: int | None = None
    render_minor: int | None = None
    unique_id: int | None = None
    links: tuple[KfdLink, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KfdCpuNode:
    """A CPU node of the KFD topology."""

    node: int
    cpu_cores: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process that holds memory of a GPU. `visible` false: its PID is not in this `/proc`, so unknown, not gone."""

    pid: int
    source: str
    memory_bytes: int | None = None
    name: str | None = None
    visible: bool = True

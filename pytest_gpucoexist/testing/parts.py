"""What a machine is built of, as a person states it: immutable descriptions without addresses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_gpucoexist.host.base import HelperReply, Identity, Node
from pytest_gpucoexist.testing.catalogue import GpuModel
from pytest_gpucoexist.testing.vendor_replies import GpuUser, MigInstance

__all__ = ["GpuPart", "MachineParts", "NodePart", "SwitchPart"]

RENDER_GID, VIDEO_GID = 105, 44
_USER = Identity(
    uid=1000, gid=1000, groups=(VIDEO_GID, RENDER_GID, 1000), group_names={"render": RENDER_GID, "video": VIDEO_GID}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePart:
    """A NUMA node."""

    cpus: int
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchPart:
    """A PCIe switch in a slot of its own."""

    name: str
    numa_node: int
    speed_gtps: float
    width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPart:
    """A GPU in its place, and what is wrong with it.

    `driver` None: no driver is bound. `link` overrides the current (GT/s, width). `health` overrides what its vendor's
    library says of its health.
    """

    model: GpuModel
    numa_node: int = 0
    under: str | None = None
    address: str | None = None
    driver: str | None = None
    uuid: str | None = None
    link: tuple[float, int] | None = None
    runtime_status: str = "active"
    boot_vga: bool = False
    memory_used_bytes: int = 0
    instances: tuple[MigInstance, ...] = ()
    processes: tuple[GpuUser, ...] = ()
    health: Mapping[str, Any] = field(default_factory=dict)
    lost: bool = False
    denied: bool = False
    withheld: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineParts:
    """A whole machine. `removed` are paths taken away at the end; `running` adds what processes and the boot show."""

    name: str
    nodes: tuple[NodePart, ...] = (NodePart(cpus=8, memory_bytes=64 * 2**30),)
    distance: int = 21
    switches: tuple[SwitchPart, ...] = ()
    gpus: tuple[GpuPart, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    distributions: tuple[tuple[str, str, tuple[str, ...], Mapping[str, str]], ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    extra_nodes: Mapping[str, Node] = field(default_factory=dict)
    errors: Mapping[str, int] = field(default_factory=dict)
    replies: Mapping[str, HelperReply] = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    identity: Identity = _USER
    nvidia_driver: str = "570.133.07"
    kernel: str = "6.8.0-60-generic"
    running: bool = False

"""The machine as an immutable value: GPUs, NUMA nodes, drivers, runtimes, masks.

Attribute names are those of the JSON that `gpucoexist show --json` prints, so `to_json` needs no table. What could
not be read is None, and `Gpu.facts` says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from pytest_gpucoexist.model.codec import decode, encode
from pytest_gpucoexist.model.identity import Vendor, device_key
from pytest_gpucoexist.model.parts import Bar, DrmNodes, GpuProcess, KfdCpuNode, KfdLink, KfdNode
from pytest_gpucoexist.model.readings import Fact

__all__ = [
    "KINDS",
    "SCHEMA_VERSION",
    "Accelerator",
    "Bar",
    "Bridge",
    "Conflict",
    "Driver",
    "DrmNodes",
    "Gpu",
    "GpuProcess",
    "KfdCpuNode",
    "KfdLink",
    "KfdNode",
    "Kind",
    "Link",
    "Machine",
    "Mask",
    "NumaNode",
    "Runtime",
    "Usable",
]

SCHEMA_VERSION = 1

Kind = Literal["discrete", "integrated", "virtual", "bmc", "unknown"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A PCIe link as one end reports it: transfer rate per lane in GT/s and number of lanes."""

    current_speed_gtps: float | None = None
    current_width: int | None = None
    max_speed_gtps: float | None = None
    max_width: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bridge:
    """A PCI bridge above a GPU."""

    pci_address: str
    driver: str | None = None
    link: Link = Link()


@dataclass(frozen=True, slots=True, kw_only=True)
class Usable:
    """Whether this process can use the GPU through a runtime; the reasons are in `facts["usable.cuda"]` and so on."""

    cuda: bool = False
    rocm: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Gpu:
    """A display or accelerator function, a partition of one, or a GPU without a PCI function.

    `fit` is False when a gate took the device out; `facts["fit"]` has the gate's words.
    """

    id: str
    pci_address: str | None = None
    partition: str | None = None
    vendor: Vendor = "other"
    kind: Kind = "unknown"
    vendor_id: str | None = None
    device_id: str | None = None
    class_id: str | None = None
    subsystem_id: str | None = None
    name: str | None = None
    uuid: str | None = None
    numa_node: int | None = None
    local_cpulist: str | None = None
    driver: str | None = None
    driver_version: str | None = None
    memory_total_bytes: int | None = None
    memory_free_bytes: int | None = None
    arch: str | None = None
    link: Link = Link()
    upstream: tuple[str, ...] | None = None
    upstream_links: tuple[Bridge, ...] = ()
    drm: DrmNodes | None = None
    bars: tuple[Bar, ...] | None = None
    iommu_group: int | None = None
    runtime_status: str | None = None
    boot_vga: bool | None = None
    vbios_version: str | None = None
    hwmon: tuple[str, ...] = ()
    kfd: KfdNode | None = None
    features: Mapping[str, bool] = field(default_factory=dict, hash=False)
    processes: tuple[GpuProcess, ...] | None = None
    usable: Usable = Usable()
    visible: bool = True
    granted: bool = True
    fit: bool = True
    facts: Mapping[str, Fact] = field(default_factory=dict, hash=False)

    def __repr__(self) -> str:
        """Name the device in a line: pytest prints it for every assertion and argument of a test that fails."""
        return f"<Gpu {' '.join(filter(None, (self.id, self.key, self.name)))}>"

    @property
    def key(self) -> str:
        """The text that names this device across boots: PCI address plus partition, or UUID.

        Only a recorded tree without either (one DRM folder, say) gives `drm:card0`, which holds within that tree.
        """
        if self.pci_address is None and self.uuid is None and self.drm is not None and self.drm.card:
            return f"drm:{self.drm.card}"
        return device_key(self.pci_address, self.partition, self.uuid)

    @property
    def is_compute(self) -> bool:
        """Whether a test could ever run on it. A BMC, a virtual VGA or a foreign device is listed, never used."""
        return self.vendor != "other" and self.kind in {"discrete", "integrated", "unknown"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """A processing accelerator that is no GPU (NPU, vector engine), listed for completeness."""

    pci_address: str
    vendor_id: str | None = None
    device_id: str | None = None
    class_id: str | None = None
    subsystem_id: str | None = None
    numa_node: int | None = None
    local_cpulist: str | None = None
    driver: str | None = None
    upstream: tuple[str, ...] | None = None
    link: Link = Link()


@dataclass(frozen=True, slots=True, kw_only=True)
class NumaNode:
    """A NUMA node. `distances` is this node's row of the SLIT, in the order of the nodes."""

    id: int
    cpulist: str | None = None
    memory_bytes: int | None = None
    distances: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """A kernel driver of GPUs that is loaded (or built in), with its version where the kernel tells one."""

    name: str
    version: str | None = None
    flavour: str | None = None
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """A user-space runtime or a framework, found without loading it.

    `kind` is `runtime` (cuda, cudart, tensorrt, rocm, hip, level-zero, opencl, vulkan, egl, nvml, amdsmi) or
    `framework` (torch, cupy, jax, triton, tensorrt, onnxruntime). `vendors` are those that it was built for;
    for a framework without GPU support it is empty.
    """

    name: str
    kind: Literal["runtime", "framework"]
    version: str | None = None
    vendors: tuple[str, ...] = ()
    path: str | None = None
    distribution: str | None = None
    built_for: str | None = None
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """Two sources that disagree, or two packages that own the same name. Both sides are kept."""

    subject: str
    kind: str
    message: str
    claims: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mask:
    """A visibility variable as the caller set it, and what it comes to.

    `devices` are the keys of the GPUs that remain for `runtime`, in that runtime's own order; None when the value
    does not say. `warning` is set when the mask hides another vendor by accident or cannot mean what was intended.
    """

    variable: str
    value: str
    runtime: str
    devices: tuple[str, ...] | None = None
    warning: str | None = None
    translated_from: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Machine:
    """Everything known about one machine at one moment.

    `asked` names the vendor libraries that were called: `()` after a discovery from files alone.
    """

    name: str
    simulated: bool = False
    schema: int = SCHEMA_VERSION
    gpus: tuple[Gpu, ...] = ()
    numa_nodes: tuple[NumaNode, ...] = ()
    drivers: tuple[Driver, ...] = ()
    runtimes: tuple[Runtime, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    masks: tuple[Mask, ...] = ()
    accelerators: tuple[Accelerator, ...] = ()
    kfd_cpu_nodes: tuple[KfdCpuNode, ...] = ()
    pci_functions: int | None = None
    asked: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Name the machine and its GPUs in a line."""
        simulated = " SIMULATED" if self.simulated else ""
        return f"<Machine {self.name}{simulated}: {', '.join(gpu.id for gpu in self.gpus) or 'no GPU'}>"

    def gpu(self, key_or_id: str) -> Gpu | None:
        """Return the GPU with this key (PCI address, UUID) or id (`nvidia0`)."""
        return next((gpu for gpu in self.gpus if key_or_id in {gpu.key, gpu.id, gpu.uuid}), None)

    def to_json(self) -> dict[str, Any]:
        """Return the object that `gpucoexist show --json` prints, of builtin types only."""
        return encode(self)  # type: ignore[no-any-return]

    @classmethod
    def from_json(cls, data: object) -> Machine:
        """Read what `to_json` wrote. Raises DataError, naming the path of what is wrong."""
        return decode(cls, data)

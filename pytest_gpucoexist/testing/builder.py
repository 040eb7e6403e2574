"""Build a machine in code, break it, and use it as a Host.

    host = a_machine().with_gpu("rtx4090").with_gpu("rx7900xtx").without_permission("amd0").host()

Every method returns a new builder. A GPU is named by the id that discovery gives it (vendor and order on the bus:
`nvidia0`, `amd1`) or by its PCI address.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from pytest_gpucoexist.host.base import HelperReply, Identity, Node
from pytest_gpucoexist.host.replay import ReplayHost
from pytest_gpucoexist.testing.assemble import assemble
from pytest_gpucoexist.testing.catalogue import CATALOGUE, GpuModel
from pytest_gpucoexist.testing.driven import drive, find
from pytest_gpucoexist.testing.parts import GpuPart, MachineParts, NodePart, SwitchPart
from pytest_gpucoexist.testing.placing import place
from pytest_gpucoexist.testing.vendor_replies import GpuUser, MigInstance

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["MachineBuilder", "a_machine"]

_DEFAULT: Any = object()
_IMPORTS = {
    "nvidia-ml-py": ("pynvml",),
    "cupy-cuda12x": ("cupy",),
    "cupy-rocm-7-0": ("cupy",),
    "onnxruntime-gpu": ("onnxruntime",),
}


def a_machine(name: str = "workstation") -> MachineBuilder:
    """Start with a machine without GPUs: one NUMA node, 8 CPUs, 64 GiB, a user in the groups video and render."""
    return MachineBuilder(parts=MachineParts(name=name))


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineBuilder:
    """An immutable description of a machine."""

    parts: MachineParts

    def with_numa_nodes(
        self, count: int, *, cpus: int = 8, memory_bytes: int = 64 * 2**30, distance: int = 21
    ) -> MachineBuilder:
        """Give it `count` equal NUMA nodes of `cpus` CPUs each."""
        return self._with(nodes=(NodePart(cpus=cpus, memory_bytes=memory_bytes),) * count, distance=distance)

    def with_switch(
        self, name: str = "switch", *, numa_node: int = 0, speed_gtps: float = 16.0, width: int = 16
    ) -> MachineBuilder:
        """Add a PCIe switch, for GPUs `under` its name."""
        switch = SwitchPart(name=name, numa_node=numa_node, speed_gtps=speed_gtps, width=width)
        return self._with(switches=(*self.parts.switches, switch))

    def with_gpu(
        self,
        model: str | GpuModel = "rtx4090",
        *,
        numa_node: int = 0,
        under: str | None = None,
        address: str | None = None,
        driver: str | None = _DEFAULT,
        uuid: str | None = None,
        memory_bytes: int | None = None,
        memory_used_bytes: int = 0,
        arch: str | None = None,
        name: str | None = None,
        vendor_id: str | None = None,
        device_id: str | None = None,
        class_id: str | None = None,
        link: tuple[float, int] | None = None,
        runtime_status: str = "active",
        boot_vga: bool = False,
    ) -> MachineBuilder:
        """Add a GPU of the catalogue (`rtx4090`, `mi210`, …) or a `GpuModel` of your own.

        `driver` is the model's own by default; None binds none. `link` is the current (GT/s, width). A GPU `under` a
        switch stands on the switch's NUMA node. Raises ValueError for a model that is not in the catalogue.
        """
        if isinstance(model, str):
            if model not in CATALOGUE:
                raise ValueError(f"no GPU model {model!r}; there are: {', '.join(sorted(CATALOGUE))}")
            model = CATALOGUE[model]
        changes: dict[str, Any] = {
            "memory_bytes": memory_bytes,
            "arch": arch,
            "name": name,
            "vendor_id": vendor_id,
            "device_id": device_id,
            "class_id": class_id,
        }
        model = replace(model, **{key: value for key, value in changes.items() if value is not None})
        numa_node = next((each.numa_node for each in self.parts.switches if each.name == under), numa_node)
        part = GpuPart(
            model=model,
            numa_node=numa_node,
            under=under,
            address=address,
            driver=model.driver if driver is _DEFAULT else driver,
            uuid=uuid,
            link=link,
            runtime_status=runtime_status,
            boot_vga=boot_vga,
            memory_used_bytes=memory_used_bytes,
        )
        return self._with(gpus=(*self.parts.gpus, part))

    def with_running_system(self) -> MachineBuilder:
        """Let it run: a process with its limits and maps, memory, control groups, other processes, a kernel's log."""
        return self._with(running=True)

    def with_environ(self, variables: Mapping[str, str] | None = None, **more: str) -> MachineBuilder:
        """Set environment variables of the process that looks at the machine."""
        return self._with(environ={**self.parts.environ, **(variables or {}), **more})

    def with_mig(self, gpu: str, *instances: MigInstance) -> MachineBuilder:
        """Split a GPU into MIG instances, as NVML tells them; no instance: MIG is off."""
        return self._change(gpu, instances=instances)

    def with_process(
        self, gpu: str, pid: int, memory_bytes: int | None = None, kind: Literal["compute", "graphics"] = "compute"
    ) -> MachineBuilder:
        """Let a process use the GPU, as NVML or AMD SMI tells it. It has no `/proc` folder here."""
        part = self._find(gpu)
        user = GpuUser(pid=pid, memory_bytes=memory_bytes, kind=kind)
        return self._change(gpu, processes=(*part.processes, user))

    def with_health(self, gpu: str, **values: Any) -> MachineBuilder:
        """Let NVML or AMD SMI say something else about a board's health, by the names in `helpers/*_health.py`.

        A value that is None is one that the board does not have; `{"status", "detail"}` one that could not be read.
        """
        return self._change(gpu, health={**self._find(gpu).health, **values})

    def with_identity(self, identity: Identity) -> MachineBuilder:
        """Let another user look at the machine."""
        return self._with(identity=identity)

    def without_group(self, name: str) -> MachineBuilder:
        """Take the user out of a group such as `render`; the group's name stays known."""
        me = self.parts.identity
        gid = me.group_names[name]
        return self.with_identity(replace(me, groups=tuple(each for each in me.groups if each != gid)))

    def with_distribution(
        self, name: str, version: str, *, imports: tuple[str, ...] | None = None, files: Mapping[str, str] | None = None
    ) -> MachineBuilder:
        """Install a Python distribution; `files` are texts relative to site-packages."""
        imports = imports or _IMPORTS.get(name, (name.replace("-", "_"),))
        entry = (name, version, imports, dict(files or {}))
        return self._with(distributions=(*self.parts.distributions, entry))

    def with_file(self, path: str, content: str | bytes) -> MachineBuilder:
        """Put a file, over one that is there."""
        data = content.encode() if isinstance(content, str) else content
        return self._with(files={**self.parts.files, path: data})

    def with_link(self, path: str, target: str) -> MachineBuilder:
        """Put a symbolic link."""
        return self._with(links={**self.parts.links, path: target})

    def with_node(self, path: str, node: Node) -> MachineBuilder:
        """Put a device node, over one that is there."""
        return self._with(extra_nodes={**self.parts.extra_nodes, path: node})

    def with_error(self, path: str, code: int) -> MachineBuilder:
        """Let reading or listing a path fail with an errno."""
        return self._with(errors={**self.parts.errors, path: code})

    def with_reply(self, helper: str, reply: HelperReply) -> MachineBuilder:
        """Let a helper (`nvml`, `amdsmi`) answer this."""
        return self._with(replies={**self.parts.replies, helper: reply})

    def with_nvidia_driver(self, version: str) -> MachineBuilder:
        """Use another release of the NVIDIA driver."""
        return self._with(nvidia_driver=version)

    def without(self, path: str) -> MachineBuilder:
        """Take a path away, with everything below it."""
        return self._with(removed=(*self.parts.removed, path))

    def without_permission(self, gpu: str) -> MachineBuilder:
        """Break: the nodes of this GPU belong to root alone."""
        return self._change(gpu, denied=True)

    def without_nodes(self, gpu: str) -> MachineBuilder:
        """Break: the GPU was not granted to this container. sysfs shows it, `/dev` does not."""
        return self._change(gpu, withheld=True)

    def with_wrong_driver(self, gpu: str, driver: str | None) -> MachineBuilder:
        """Break: another driver holds the GPU (`nouveau`, `vfio-pci`), or none."""
        return self._change(gpu, driver=driver)

    def lose(self, gpu: str) -> MachineBuilder:
        """Break: the GPU fell off the bus. Its folder stays, reads of its registers give all ones."""
        return self._change(gpu, lost=True)

    def train_link_down(self, gpu: str, speed_gtps: float = 2.5, width: int = 4) -> MachineBuilder:
        """Break: the link between slot and card came up slower and narrower than both could."""
        return self._change(gpu, link=(speed_gtps, width))

    def sleep(self, gpu: str) -> MachineBuilder:
        """Let the GPU be suspended by runtime power management."""
        return self._change(gpu, runtime_status="suspended")

    def hang(self, helper: str, *, left_behind: int | None = None) -> MachineBuilder:
        """Break: a vendor's library does not answer before the deadline."""
        detail = "no answer within 5 s"
        if left_behind is not None:
            detail += f"; process {left_behind} cannot be killed (blocked in the kernel?) and is left behind"
        return self.with_reply(
            helper, HelperReply(status="broken", detail=detail, left_behind=left_behind, duration_s=5.0)
        )

    def host(self) -> ReplayHost:
        """Return the machine as a Host, in memory."""
        built = assemble(self.parts)
        return ReplayHost(built.tree, built.manifest, name=self.parts.name)

    def write_tree(self, path: str) -> str:
        """Write it as a folder that replays, and that lspci and lstopo read too. Returns the path."""
        from pytest_gpucoexist.host.writing import write_folder

        built = assemble(self.parts)
        write_folder(built.tree, built.manifest, path)
        return path

    def write_archive(self, path: str) -> str:
        """Write it as a record: `.tar.gz`, `.tar.xz` or `.tar.bz2`. Returns the path."""
        from pytest_gpucoexist.host.writing import write_archive

        built = assemble(self.parts)
        write_archive(built.tree, built.manifest, path)
        return path

    def _with(self, **changes: Any) -> MachineBuilder:
        return MachineBuilder(parts=replace(self.parts, **changes))

    def _change(self, wanted: str, **changes: Any) -> MachineBuilder:
        broken = self._find(wanted)
        return self._with(gpus=tuple(replace(part, **changes) if part is broken else part for part in self.parts.gpus))

    def _find(self, wanted: str) -> GpuPart:
        return find(drive(place(self.parts), len(self.parts.nodes)), wanted).part

"""The one way from a Host to a Machine.

The order of the probes is the order of trust in `merge`: PCI sysfs and DRM, what each vendor's kernel driver writes in
sysfs and procfs, platforms without PCI, KFD, the vendors' libraries, and the names of `pci.ids`. Each probe runs behind
the same guard: one that breaks costs what it would have told, and the machine says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from pytest_gpucoexist.host.base import Host
from pytest_gpucoexist.model.machine import Conflict, Driver, Machine
from pytest_gpucoexist.model.readings import Fact, Observation
from pytest_gpucoexist.model.visibility import apply_masks
from pytest_gpucoexist.probes import access, amd, drm, intel, kfd, names, numa, nvidia, pci, platform, usage, vendor
from pytest_gpucoexist.probes.counts import counts_that_differ, unknown_to_pci
from pytest_gpucoexist.probes.merge import merge
from pytest_gpucoexist.probes.runtimes import find_runtimes

if TYPE_CHECKING:
    from collections.abc import Collection

    from pytest_gpucoexist.model.machine import Gpu

__all__ = ["discover"]

P = ParamSpec("P")
T = TypeVar("T")


def discover(
    host: Host,
    *,
    ask: Collection[str] = (),
    deadline_s: float = 5.0,
    extra: Mapping[str, Callable[[Host], Sequence[Observation]]] | None = None,
) -> Machine:
    """Look at the machine behind `host`. Never raises.

    `ask` names the vendors (`nvidia`, `amd`) whose management libraries are called, in processes of their own, at the
    same time, for at most `deadline_s` seconds. Without it only files are read, and nobody's processes are looked at.
    `extra` are probes of others, by name: trusted least, and where one breaks, that is a conflict.
    """
    asked = tuple(sorted(set(ask)))
    machine = Machine(name=host.name, simulated=host.simulated, asked=asked)
    if host.platform != "linux":
        return replace(machine, notes=(f"platform {host.platform}: GPUs are looked for on Linux only",))
    return _Survey(host=host, extra=extra or {}).machine(machine, asked, deadline_s)


@dataclass(slots=True)
class _Survey:
    """What the probes have told so far."""

    host: Host
    extra: Mapping[str, Callable[[Host], Sequence[Observation]]]
    observations: list[Observation] = field(default_factory=list)
    conflicts: list[Conflict] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def machine(self, machine: Machine, asked: tuple[str, ...], deadline_s: float) -> Machine:
        """Run every probe and merge what they say."""
        host = self.host
        scan = self.guard("PCI", pci.scan, host) or pci.PciScan()
        cards, shown = self.guard("DRM", drm.cards_only, host, scan.explained) or ([], [])
        nodes, numa_notes = self.guard("NUMA", numa.nodes, host) or ((), ())
        self.notes += [*scan.notes, *numa_notes]
        functions = (*scan.functions, *cards)
        self.observations += [*scan.observations, *shown]
        self.observations += self.guard("DRM nodes", drm.observe, host, scan.functions) or ()
        self.observations += self.guard("the NVIDIA driver", nvidia.observe, host) or ()
        self.observations += self.guard("amdgpu", amd.observe, host, functions) or ()
        self.observations += self.guard("i915 and xe", intel.observe, host, functions) or ()
        self.observations += self.guard("platforms without PCI", platform.observe, host) or ()
        addresses = [function.address for function in functions if function.address is not None]
        topology = self.guard("KFD", kfd.observe, host, addresses) or kfd.Kfd()
        self.notes += topology.notes
        self.observations += topology.observations
        self.conflicts += unknown_to_pci(topology.observations, addresses) if scan.count else ()
        told = self.guard("vendor libraries", vendor.vendor_observations, host, asked, deadline_s) or ([], [], [])
        self.observations += told[0]
        self.conflicts += told[1]
        self.observations += self.guard("pci.ids", names.observe, host, functions) or ()
        self.conflicts += self.guard("NVIDIA versions", nvidia.conflicts, host) or ()
        cpu_nodes = {node.node for node in topology.cpu_nodes}
        gpus, disagreements = self.merged(cpu_nodes)
        self.conflicts += [*disagreements, *counts_that_differ(told[0], gpus)]
        machine = replace(
            machine,
            gpus=gpus,
            numa_nodes=nodes,
            drivers=self.drivers(),
            runtimes=tuple(told[2]),
            accelerators=scan.accelerators,
            kfd_cpu_nodes=topology.cpu_nodes,
            pci_functions=scan.count,
        )
        return self.finished(machine, _nvml(asked, told[0]))

    def finished(self, machine: Machine, nvml: Fact | None) -> Machine:
        """Add what needs the merged GPUs: who may use them, who does, with which runtimes, behind which masks."""
        host = self.host
        machine = self.guard("access", partial(access.judge, host, machine, nvml=nvml)) or machine
        if machine.asked:
            machine = self.guard("processes", usage.processes, host, machine) or machine
        runtimes, conflicts = self.guard("runtimes", find_runtimes, host) or ((), ())
        self.conflicts += conflicts
        machine = replace(machine, runtimes=(*machine.runtimes, *runtimes))
        machine = self.guard("masks", apply_masks, host.environ, machine) or machine
        return replace(machine, conflicts=tuple(self.conflicts), notes=tuple(self.notes))

    def merged(self, cpu_nodes: Collection[int]) -> tuple[tuple[Gpu, ...], tuple[Conflict, ...]]:
        """Merge what was observed; what others observed may break the merge and then counts for nothing."""
        foreign = [
            observation
            for name, probe in self.extra.items()
            for observation in self.guard(name, _observed, probe, self.host) or ()
        ]
        if foreign:
            together = self.guard("other plugins", merge, [*self.observations, *foreign], cpu_nodes)
            if together is not None:
                return together
        return self.guard("merge", merge, self.observations, cpu_nodes) or ((), ())

    def guard(self, name: str, probe: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Run one probe; when it breaks, say so and go on without what it would have told."""
        try:
            return probe(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - whatever a tree holds, what the other probes told must survive
            what = f"{type(error).__name__}: {error}"
            message = f"the probe of {name} broke, and what it would have told is missing: {what}"
            self.conflicts.append(Conflict(subject=name, kind="probe", message=message, claims={"error": what}))
            return None

    def drivers(self) -> tuple[Driver, ...]:
        """List the kernel drivers of all vendors that are loaded."""
        found: list[Driver] = []
        for module in (nvidia, amd, intel):
            found += self.guard(f"drivers ({module.__name__.rpartition('.')[2]})", module.drivers, self.host) or ()
        return tuple(found)


def _observed(probe: Callable[[Host], Sequence[Observation]], host: Host) -> list[Observation]:
    """Call a probe that is not ours. Raises TypeError when it returns anything but observations."""
    told = list(probe(host))
    for observation in told:
        if not isinstance(observation, Observation):
            raise TypeError(f"{observation!r} is no Observation")
    return told


def _nvml(asked: tuple[str, ...], told: list[Observation]) -> Fact | None:
    """Say what came of asking NVML; None when it was not asked."""
    if "nvidia" not in asked:
        return None
    for observation in told:
        if observation.probe == "nvml":
            return Fact(source="nvml")
        if observation.probe == "nvml-failure" and observation.readings:
            return observation.readings[0].fact
    return Fact(source="nvml", status="absent", detail="NVML lists no GPU")

"""Whose a line of the log is: a GPU granted here, one of the ports above it, or somebody else's device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucoexist.model.machine import Gpu

if TYPE_CHECKING:
    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.kernellog.classify import LogFinding

__all__ = ["Owners", "owners_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Owners:
    """Devices of the machine by what a line may name: the function, its slot (audio and USB functions), a port above.

    Only granted compute devices are owners; `known` holds the slots of all others, which are nobody's business here.
    """

    slots: Mapping[str, tuple[Gpu, ...]]
    ports: Mapping[str, tuple[Gpu, ...]]
    known: frozenset[str]
    sole: Mapping[str, tuple[Gpu, ...]]

    def at(self, address: str) -> tuple[Gpu, ...]:
        """Return the GPUs that a PCI address concerns; a partitioned card has several."""
        return self.slots.get(slot_of(address)) or self.ports.get(address) or ()

    def of(self, line: LogFinding, *vendors: str) -> tuple[Gpu, ...] | None:
        """Return the GPUs that a line concerns; None when it is about somebody else's device.

        An empty tuple: about this vendor, but the line does not say which device, and there are several.
        """
        if line.pci_address is not None:
            gpus = self.at(line.pci_address)
        elif vendors and line.vendor not in {*vendors, "any"}:
            return None
        else:
            gpus = self.sole.get(line.vendor, ())
            if not gpus:
                return ()
        wanted = tuple(gpu for gpu in gpus if not vendors or gpu.vendor in vendors)
        return wanted or None


def owners_of(subject: Subject) -> Owners:
    """Return the owners, made once for all gates."""
    return subject.shared(("kernel_log", "owners"), lambda: _owners(subject))


def slot_of(address: str) -> str:
    """Return an address without its function, in lower case."""
    return address.lower().partition(".")[0]


def _owners(subject: Subject) -> Owners:
    slots: dict[str, list[Gpu]] = defaultdict(list)
    ports: dict[str, list[Gpu]] = defaultdict(list)
    functions: dict[str, set[str]] = defaultdict(set)
    mine: dict[str, list[Gpu]] = defaultdict(list)
    for gpu in subject.machine.gpus:
        if gpu.pci_address is not None:
            functions[gpu.vendor].add(gpu.pci_address)
    for gpu in subject.gpus():
        mine[gpu.vendor].append(gpu)
        if gpu.pci_address is None:
            continue
        slots[slot_of(gpu.pci_address)].append(gpu)
        for port in gpu.upstream or ():
            ports[port].append(gpu)
    return Owners(
        slots={slot: tuple(gpus) for slot, gpus in slots.items()},
        ports={port: tuple(gpus) for port, gpus in ports.items()},
        known=frozenset(slot_of(address) for addresses in functions.values() for address in addresses),
        sole={vendor: tuple(gpus) for vendor, gpus in mine.items() if len(functions[vendor]) <= 1},
    )

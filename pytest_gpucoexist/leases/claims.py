"""What has to be locked for a device: the whole of it, or some MiB of its memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pytest_gpucoexist.leases.layout import MIB
from pytest_gpucoexist.leases.lease import Share

if TYPE_CHECKING:
    from pytest_gpucoexist.leases.token import Inherited
    from pytest_gpucoexist.model.machine import Gpu
    from pytest_gpucoexist.model.requirement import Requirement

__all__ = ["Claim", "claim_for", "claim_within"]


@dataclass(frozen=True, slots=True)
class Claim:
    """One device of a request.

    `name` and `parent` are what is locked (a prefix keeps machines apart), `key` is the device's. `memory_mib` of
    `capacity_mib` is a share; None is the whole device. `function` is the address of its PCI function on this machine.
    What is `inherited` is another process's, for those who may use its lease: `heir_of` says which, `lent_in` is the
    folder of its table, and `heirloom` what is locked there.
    """

    key: str
    name: str
    parent: str | None = None
    memory_mib: int | None = None
    capacity_mib: int = 0
    function: str | None = None
    inherited: bool = False
    heir_of: str = ""
    lent_in: str = ""
    heirloom: tuple[str, ...] = ()

    @property
    def real(self) -> tuple[str, ...]:
        """What is locked for the device, and for the card that it is part of, by whoever does not inherit it."""
        if self.heirloom:
            return self.heirloom
        return (self.name,) if self.parent is None else (self.name, self.parent)

    @property
    def memory_bytes(self) -> int | None:
        """Bytes of a share; None for the whole device."""
        return None if self.memory_mib is None else self.memory_mib * MIB

    @property
    def share(self) -> Share | None:
        """The part of the device that is held, where it is not the whole."""
        return None if self.memory_mib is None else Share(key=self.key, memory_bytes=self.memory_mib * MIB)


def claim_for(
    gpu: Gpu, requirement: Requirement, *, default_memory_bytes: int | None = None, prefix: str = ""
) -> Claim:
    """Say what a requirement claims of a device.

    A share, in MiB and rounded up, where it names its memory (or `default_memory_bytes` stands in) and is not
    exclusive. The whole device where it does not, where the device's memory is not known, and where it needs all of it.
    """
    parent = None if gpu.partition is None or gpu.pci_address is None else f"{prefix}{gpu.pci_address}"
    function = None if prefix else gpu.pci_address
    wanted = requirement.memory_bytes or default_memory_bytes
    capacity = (gpu.memory_total_bytes or 0) // MIB
    if wanted is None or requirement.exclusive or -(-wanted // MIB) >= capacity:
        return Claim(gpu.key, prefix + gpu.key, parent, function=function)
    return Claim(gpu.key, prefix + gpu.key, parent, -(-wanted // MIB), capacity, function)


def claim_within(
    inherited: Inherited, gpu: Gpu, requirement: Requirement, *, default_memory_bytes: int | None = None
) -> Claim | None:
    """Say what it claims of a device that was inherited; None when that is too little.

    Those who inherit one lease exclude each other in a slot of their own; nobody else is asked.
    """
    name = f"{inherited.space}:{gpu.key}"
    prefix = f"{inherited.machine}:" if inherited.machine else ""
    heir = partial(
        Claim,
        gpu.key,
        name,
        inherited=True,
        heir_of=inherited.space,
        lent_in=inherited.folder,
        heirloom=claim_for(gpu, requirement, prefix=prefix).real,
    )
    share = inherited.devices[gpu.key]
    wanted = requirement.memory_bytes or default_memory_bytes
    if share is not None and (requirement.exclusive or (wanted or 0) > share):
        return None
    capacity = (gpu.memory_total_bytes or 0 if share is None else share) // MIB
    if wanted is None or requirement.exclusive or -(-wanted // MIB) >= capacity:
        return heir()
    return heir(memory_mib=-(-wanted // MIB), capacity_mib=capacity)

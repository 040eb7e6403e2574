"""Mark the devices that gates took out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_gpucoexist.model.readings import Fact

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucoexist.model.machine import Gpu, Machine

__all__ = ["quarantined"]


def quarantined(machine: Machine, unfit: Mapping[str, str]) -> Machine:
    """Return the machine with `fit` False for the devices in `unfit` (words by `Gpu.key`).

    MIG instances and partitions share the fate of their card: what is wrong with one is wrong with its neighbours.
    Those that the caller hid stay hidden, and no more.
    """
    if not unfit:
        return machine
    by_card = {gpu.pci_address: unfit[gpu.key] for gpu in machine.gpus if gpu.pci_address and gpu.key in unfit}

    def judged(gpu: Gpu) -> Gpu:
        card = gpu.pci_address or ""
        words = unfit.get(gpu.key) or ((by_card.get(card) or unfit.get(card)) if gpu.visible else None)
        if words is None:
            return gpu
        fact = Fact(source="gates", status="broken", detail=words)
        return replace(gpu, fit=False, facts={**gpu.facts, "fit": fact})

    return replace(machine, gpus=tuple(judged(gpu) for gpu in machine.gpus))

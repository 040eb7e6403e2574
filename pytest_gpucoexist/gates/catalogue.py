"""All gates of this package, by the module that has them. A module is imported when its level is asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.registry import GROUPS, Gate
from pytest_gpucoexist.model.verdicts import LEVELS, Level

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["MODULES", "all_gates", "gates_of_level"]

MODULES: dict[Level, tuple[str, ...]] = {
    "quick": (
        "baseline.compare",
        "container.cdi",
        "container.libraries",
        "container.lost",
        "container.memory",
        "container.nodes",
        "container.processors",
        "device_node.amd",
        "device_node.limits",
        "device_node.names",
        "device_node.nvidia",
        "driver.bound",
        "driver.crash",
        "driver.inventory",
        "driver.nvidia_build",
        "driver.partition",
        "driver.versions",
        "environment.masks",
        "environment.order",
        "environment.switches",
        "environment.tools",
        "kernel_log.amd",
        "kernel_log.bus",
        "kernel_log.hostlines",
        "kernel_log.intel",
        "kernel_log.modules",
        "kernel_log.nvidia",
        "kernel_log.previous",
        "kernel_log.races",
        "kernel_log.source",
        "kernel_module.amd_origin",
        "kernel_module.built_for",
        "kernel_module.conflict",
        "kernel_module.dkms",
        "kernel_module.intel",
        "kernel_module.kernel_config",
        "kernel_module.loaded",
        "kernel_module.params",
        "kernel_module.taint",
        "libraries.environment",
        "libraries.gfx",
        "libraries.icds",
        "libraries.mapped",
        "libraries.packages",
        "mapping.bars",
        "mapping.host_memory",
        "mapping.iommu",
        "mapping.peers",
        "mapping.resizable",
        "numa.desktop",
        "numa.pairs",
        "numa.places",
        "occupancy.blocked",
        "occupancy.leases",
        "occupancy.programs",
        "occupancy.users",
        "pcie.answers",
        "pcie.errors",
        "pcie.latched",
        "pcie.ports",
        "pcie.saving",
        "pcie.width",
        "power.states",
        "ras.amd",
        "ras.host",
    ),
    "standard": (
        "driver_l1.answers",
        "driver_l1.counts",
        "driver_l1.errors",
        "driver_l1.intel",
        "driver_l1.modes",
        "driver_l1.versions",
        "kernel_module.initramfs",
        "mapping.nvidia",
        "occupancy_l1.amd",
        "occupancy_l1.nvidia",
        "pcie.replay",
        "power.limits",
        "power.temperature",
        "power.throttle",
        "ras.intel",
        "ras.links",
        "ras.nvidia_ecc",
        "ras.nvidia_repair",
        "ras.rasdaemon",
        "runtimes_l1.nvidia",
        "runtimes_l1.others",
        "symbols.duplicates",
        "symbols.exports",
    ),
    "transfer": (
        "transfer.alone",
        "transfer.data",
        "transfer.host",
        "transfer.links",
        "transfer.pair_rates",
        "transfer.pairs",
        "transfer.rates",
    ),
    "full": (),
}
"""Modules under `pytest_gpucoexist.gates`, by the lowest level of the gates in them."""


def gates_of_level(level: Level) -> list[Gate]:
    """Return the gates that a level asks: its own and those of the levels before it, by group and id."""
    wanted = LEVELS[: LEVELS.index(level) + 1]
    found = [gate for each in wanted for name in MODULES[each] for gate in _gates_in(name) if gate.level in wanted]
    return sorted(found, key=lambda gate: (GROUPS.index(gate.group), gate.id))


def all_gates() -> list[Gate]:
    """Return every gate, those of later levels too."""
    return gates_of_level("full")


def _gates_in(name: str) -> Iterator[Gate]:
    module = importlib.import_module(f"pytest_gpucoexist.gates.{name}")
    for value in vars(module).values():
        if isinstance(value, Gate):
            yield value

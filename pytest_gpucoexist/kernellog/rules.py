"""All rules, in the order in which they are tried: the first that matches a line has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.kernellog import (
    rules_amd,
    rules_amd_health,
    rules_further,
    rules_host,
    rules_intel,
    rules_nvidia,
    rules_pci,
)

if TYPE_CHECKING:
    from pytest_gpucoexist.kernellog.rule import Rule

__all__ = ["RULES"]

RULES: tuple[Rule, ...] = (
    *rules_nvidia.RULES,
    *rules_amd.RULES,
    *rules_amd_health.RULES,
    *rules_intel.RULES,
    *rules_pci.RULES,
    *rules_host.RULES,
    *rules_further.RULES,
)

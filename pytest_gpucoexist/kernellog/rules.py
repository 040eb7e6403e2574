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

__all__ = ["RULES", "rule_named"]

RULES: tuple[Rule, ...] = (
    *rules_nvidia.RULES,
    *rules_amd.RULES,
    *rules_amd_health.RULES,
    *rules_intel.RULES,
    *rules_pci.RULES,
    *rules_host.RULES,
    *rules_further.RULES,
)

_BY_ID = {rule.id: rule for rule in RULES}


def rule_named(rule_id: str) -> Rule | None:
    """Return the rule of an id such as `nv.xid`, or None."""
    return _BY_ID.get(rule_id)

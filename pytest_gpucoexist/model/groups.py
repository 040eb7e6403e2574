"""A requirement with the devices that would do for it."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_gpucoexist.model.requirement import Requirement

__all__ = ["Group"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """`requirement.count` of the `candidates` (keys of GPUs, preferred first) satisfy the requirement."""

    requirement: Requirement
    candidates: tuple[str, ...]

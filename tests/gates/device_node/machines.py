"""Machines whose nodes are awkward, and a host that answers about access and programs as a kernel would."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.host.manifest import ProgramRun
from pytest_gpucoexist.host.replay import ReplayHost
from pytest_gpucoexist.testing.assemble import assemble

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucoexist.testing.builder import MachineBuilder

__all__ = ["AMD", "INTEL", "NVIDIA", "answering", "opening"]

NVIDIA: dict[str, Any] = {"promised": {"cuda": 1}}
AMD: dict[str, Any] = {"promised": {"rocm": 1}}
INTEL: dict[str, Any] = {"promised": {"intel": 1}}
"""The vendor is promised: somebody expects its GPUs to work."""


def opening(path: str, refusal: str | None = None) -> ProgramRun:
    """What `head -c 0` of GNU coreutils prints when a node opens, or does not."""
    argv = ("env", "LC_ALL=C", "head", "-c", "0", path)
    if refusal is None:
        return ProgramRun(argv=argv, returncode=0)
    return ProgramRun(argv=argv, returncode=1, stderr=f"head: cannot open '{path}' for reading: {refusal}\n")


def answering(
    machine: MachineBuilder, *, refused: Mapping[str, int] | None = None, programs: tuple[ProgramRun, ...] = ()
) -> ReplayHost:
    """Build a machine on which opening these paths is refused with an errno, whatever their modes."""
    built = assemble(machine.parts)
    access = {path: {"read": code, "write": code} for path, code in (refused or {}).items()}
    manifest = replace(built.manifest, may_open=access, programs=programs)
    return ReplayHost(built.tree, manifest, name=machine.parts.name)

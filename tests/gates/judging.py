"""Ask single gates about a machine, and keep what they said, for the proofs that tests claim."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.gates.catalogue import all_gates
from pytest_gpucoexist.gates.runner import judge
from pytest_gpucoexist.gates.subject import Subject
from pytest_gpucoexist.probes import discover
from pytest_gpucoexist.testing.builder import MachineBuilder

if TYPE_CHECKING:
    from pytest_gpucoexist.host.base import Host
    from pytest_gpucoexist.model.verdicts import Judgement, Verdict

__all__ = ["SAID", "judged", "subject_of", "verdict", "verdicts"]

SAID: list[Verdict] = []
"""What gates said in the running test."""


def subject_of(machine: MachineBuilder | Host, **subject: Any) -> Subject:
    """Discover a machine from its files and make it a subject of level `standard`, unless told otherwise."""
    host = machine.host() if isinstance(machine, MachineBuilder) else machine
    return Subject(host=host, machine=discover(host), **{"level": "standard", **subject})


def judged(machine: MachineBuilder | Host, *ids: str, **subject: Any) -> Judgement:
    """Judge a machine by the gates with these ids or globs; at least one must exist."""
    gates = [gate for gate in all_gates() if any(fnmatchcase(gate.id, each) for each in ids)]
    assert gates, f"no gate is called {ids}"
    judgement = judge(subject_of(machine, **subject), gates=gates)
    SAID.extend(judgement.verdicts)
    return judgement


def verdicts(machine: MachineBuilder | Host, gate_id: str, **subject: Any) -> tuple[Verdict, ...]:
    """Return what one gate says."""
    return judged(machine, gate_id, **subject).verdicts


def verdict(machine: MachineBuilder | Host, gate_id: str, **subject: Any) -> Verdict:
    """Return what one gate says, where it says one thing."""
    (only,) = verdicts(machine, gate_id, **subject)
    return only

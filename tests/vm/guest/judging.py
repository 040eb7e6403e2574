"""Ask gates about the running kernel, and keep what they said."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.gates.catalogue import gates_of_level
from pytest_gpucoexist.gates.runner import judge
from pytest_gpucoexist.gates.subject import Subject
from pytest_gpucoexist.host import local_host
from pytest_gpucoexist.model.verdicts import worst
from pytest_gpucoexist.probes import discover

if TYPE_CHECKING:
    from pytest_gpucoexist.model.machine import Machine
    from pytest_gpucoexist.model.verdicts import Judgement, Verdict

__all__ = ["SAID", "judged", "machine", "said_of", "verdicts"]

_PATIENCE_S = 120.0
"""An emulated processor needs a hundred times as long as a real one."""

SAID: list[Verdict] = []
"""What gates said in the running test."""


def machine() -> Machine:
    """Discover the guest."""
    return discover(local_host())


def judged(*ids: str, **subject: Any) -> Judgement:
    """Judge the guest as it is now by the quick gates with these ids or globs, with a GPU of both vendors promised."""
    gates = [gate for gate in gates_of_level("quick") if any(fnmatchcase(gate.id, each) for each in ids)]
    assert gates, f"no gate is called {ids}"
    host = local_host()
    settings = {"promised": {"nvidia": 1, "amd": 1}, "deadline_s": _PATIENCE_S, **subject}
    seen = settings.pop("machine", None) or discover(host)
    judgement = judge(Subject(host=host, machine=seen, **settings), gates=gates)
    SAID.extend(judgement.verdicts)
    return judgement


def verdicts(gate_id: str, **subject: Any) -> tuple[Verdict, ...]:
    """Return all that one gate says."""
    return judged(gate_id, **subject).verdicts


def said_of(gate_id: str, pci_address: str, **subject: Any) -> Verdict:
    """Return the gravest verdict of a gate about a device: it may speak of earlier troubles in another one."""
    found = [each for each in verdicts(gate_id, **subject) if any(pci_address in key for key in each.devices)]
    assert found, f"{gate_id} says nothing about {pci_address}"
    gravest = worst(tuple(each.status for each in found))
    return next(each for each in found if each.status == gravest)

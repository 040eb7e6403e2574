"""A workload: a machine, and tests that each hold devices for a known time. Read from `workloads/NAME.json`.

A test is one line, `{"seconds": 0.31, "nvidia": 2, "memory_gib": 6}`: how long it sleeps, how many devices of which
vendor it needs (`any` for whichever), and how much of each device's memory; without `memory_gib` it needs them whole.
Tests of a module with `setup_seconds` use a model that is loaded in that time, once for the module, onto one device,
which is held whole from then until the last test of the module on that worker.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

__all__ = ["ANY", "NAMES", "Case", "Module", "Workload", "load", "smaller"]

ANY = "any"

_FOLDER = Path(__file__).parent / "workloads"
_VENDORS = ("nvidia", "amd", ANY)
_QUICK_TESTS = 100

NAMES = ("short", "mixed", "long", "pairs", "modules")
"""In the order of the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One test. `needs` is (vendor, number of devices) for each vendor; `memory_gib` None means whole devices."""

    nodeid: str
    seconds: float
    needs: tuple[tuple[str, int], ...]
    memory_gib: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """Tests of one file. `setup_seconds` is how long its model is loaded; 0: it has none."""

    name: str
    setup_seconds: float
    cases: tuple[Case, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """`devices` are names of the catalogue in `pytest_gpucoexist.testing`, in the order of their PCI addresses."""

    name: str
    says: str
    devices: tuple[str, ...]
    modules: tuple[Module, ...]

    @property
    def cases(self) -> tuple[Case, ...]:
        """All tests, in the order in which a serial run has them."""
        return tuple(case for module in self.modules for case in module.cases)


def load(name: str) -> Workload:
    """Read a workload. Raises ValueError for a test that says something unknown."""
    read = json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    modules = []
    for module in read["modules"]:
        cases = tuple(_case(module["name"], number, line) for number, line in enumerate(module["tests"]))
        modules.append(Module(name=module["name"], setup_seconds=module.get("setup_seconds", 0.0), cases=cases))
    return Workload(name=name, says=read["says"], devices=tuple(read["devices"]), modules=tuple(modules))


def _case(module: str, number: int, line: dict[str, float]) -> Case:
    if unknown := line.keys() - {"seconds", "memory_gib", *_VENDORS}:
        raise ValueError(f"{module}, test {number}: unknown {', '.join(sorted(unknown))}")
    needs = tuple((vendor, int(line[vendor])) for vendor in _VENDORS if vendor in line)
    if not needs:
        raise ValueError(f"{module}, test {number}: needs no device")
    nodeid = f"{module}.py::test_it[{number:03}]"
    return Case(nodeid=nodeid, seconds=line["seconds"], needs=needs, memory_gib=line.get("memory_gib"))


def smaller(workload: Workload) -> Workload:
    """Return one that is over in a fifth of the time or less: at most 100 tests, of a fifth of their length."""
    modules = []
    left = _QUICK_TESTS
    for module in workload.modules:
        cases = tuple(replace(case, seconds=max(case.seconds / 5, 0.01)) for case in module.cases[:left])
        left -= len(cases)
        if cases:
            modules.append(replace(module, setup_seconds=module.setup_seconds / 5, cases=cases))
    return replace(workload, modules=tuple(modules))

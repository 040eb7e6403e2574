"""The registry is whole: every check of the catalogue has its place, and every gate is proven."""

from __future__ import annotations

import csv
import importlib
import pkgutil
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import pytest

import pytest_gpucoexist.gates as package
from pytest_gpucoexist.gates.catalogue import MODULES, all_gates, gates_of_level
from pytest_gpucoexist.gates.describe import unbuilt
from pytest_gpucoexist.gates.registry import GROUPS, VENDORS, Gate
from pytest_gpucoexist.model.verdicts import LEVELS
from tests.gates.proofs import GROUNDS, collect_proofs

if TYPE_CHECKING:
    from pathlib import Path

GATES = all_gates()
BUILT = [gate for gate in GATES if gate.check is not None]

NAMES = {"amdgpu", "i915", "xe", "nvidia", "nouveau", "libcuda", "uvm"}
"""What is written in small letters wherever it stands."""


def test_ids_are_unique() -> None:
    assert [name for name, count in Counter(gate.id for gate in GATES).items() if count > 1] == []


def test_every_module_with_gates_is_in_the_catalogue() -> None:
    listed = {f"pytest_gpucoexist.gates.{name}" for names in MODULES.values() for name in names}
    found = {
        module.name
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        if any(isinstance(value, Gate) for value in vars(importlib.import_module(module.name)).values())
    }
    assert found == listed


@pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.id)
def test_a_description_is_complete_and_plain(gate: Gate) -> None:
    assert gate.group in GROUPS
    assert set(gate.vendors) <= set(VENDORS)
    assert gate.title[0].isupper() or gate.title.split()[0].strip(",'s") in NAMES, (
        "a title begins with a capital letter"
    )
    assert not gate.title.endswith(".")
    assert len(gate.title) <= 70
    for text in (gate.reads, gate.criterion, gate.why, gate.action, gate.source):
        assert text == text.strip()
        assert "\n" not in text


def test_a_level_holds_those_before_it() -> None:
    sizes = [len(gates_of_level(level)) for level in LEVELS]
    assert sizes == sorted(sizes)
    assert all(gate.level == "quick" for gate in gates_of_level("quick"))


def test_a_few_gates_block() -> None:
    assert 15 <= sum(gate.blocking for gate in BUILT) <= 35


def test_every_check_of_the_catalogue_has_its_place(shared: Path) -> None:
    with open(shared / "facts/checks.csv", newline="", encoding="utf-8") as file:
        rows = {row["id"]: row for row in csv.DictReader(file)}
    gates = {gate.id: gate for gate in GATES}
    reasons = unbuilt()
    assert sorted(rows.keys() - gates.keys() - reasons.keys()) == []
    assert sorted(reasons.keys() & gates.keys()) == [], "built and not built"
    assert all(len(reason) > 20 for reason in reasons.values())
    early = {name for name, row in rows.items() if row["level"] in {"L0", "L1"}}
    assert sorted(name for name in early & gates.keys() if gates[name].check is None) == []


def test_every_gate_is_shown_to_pass_and_to_fail() -> None:
    shown: dict[str, set[str]] = defaultdict(set)
    for gate, status, ground in collect_proofs():
        assert ground in GROUNDS
        shown[gate].add(status)
    assert sorted(shown.keys() - {gate.id for gate in GATES}) == [], "proofs of gates that do not exist"
    assert sorted(gate.id for gate in BUILT if "PASS" not in shown[gate.id]) == []
    unmade = {"bw.missing_data"}  # speaks of measurements, not of devices: ERROR, and never a failure
    assert sorted(gate.id for gate in BUILT if not shown[gate.id] & {"FAIL", "WARN"}) == sorted(unmade)
    assert all("ERROR" in shown[name] for name in unmade)
    assert sorted(gate.id for gate in BUILT if gate.blocking and "FAIL" not in shown[gate.id]) == []

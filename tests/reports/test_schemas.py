"""The JSON Schemas describe what is really written, all of it and nothing else."""

from __future__ import annotations

import copy
import types
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from jsonschema import Draft202012Validator

from pytest_gpucoexist.probes import discover
from pytest_gpucoexist.reports.jsonfile import load_schema
from pytest_gpucoexist.reports.merge import merge_reports
from tests.reports import machines, sessions
from tests.reports.schemas import DOCUMENTS, Name, problems

if TYPE_CHECKING:
    from pytest_gpucoexist.model.machine import Machine


@pytest.mark.parametrize("name", DOCUMENTS)
def test_it_is_a_schema_of_the_draft_that_it_names(name: Name) -> None:
    schema = load_schema(name)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("machine", [machines.workstation(), machines.partitioned(), machines.unplaced()], ids=str)
def test_machines_made_by_hand_are_valid(machine: Machine) -> None:
    assert problems("machine", machine.to_json()) == []


def test_reports_are_valid() -> None:
    report = sessions.workstation_session()
    assert problems("report", report.to_json()) == []
    assert problems("report", sessions.session(machine=None).to_json()) == []
    assert problems("merged", merge_reports([("a.json", report)]).to_json()) == []


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"gpus": [{}]}, "is a required property"),
        ({"simulated": "yes"}, "is not of type 'boolean'"),
        ({"surprise": 1}, "Additional properties are not allowed"),
        ({"schema": 2}, "1 was expected"),
    ],
)
def test_what_is_wrong_is_refused(change: dict[str, object], found: str) -> None:
    document = machines.workstation().to_json() | change
    assert any(found in problem for problem in problems("machine", document))


def test_an_address_that_sysfs_would_not_write_is_refused() -> None:
    document = copy.deepcopy(machines.workstation().to_json())
    document["gpus"][0]["pci_address"] = "43:00.0"
    assert any("does not match" in problem for problem in problems("machine", document))


def test_the_demo_gives_a_valid_machine() -> None:
    from pytest_gpucoexist.testing.demo import demo_host

    machine = discover(demo_host(), ask=("nvidia", "amd"))
    assert machine.gpus
    assert problems("machine", machine.to_json()) == []


def dataclasses_in(kind: Any) -> Iterator[type]:
    """Every dataclass that an annotation names, at any depth."""
    if isinstance(kind, type) and is_dataclass(kind):
        yield kind
        for hint in get_type_hints(kind).values():
            yield from dataclasses_in(hint)
    else:
        for argument in get_args(kind):
            yield from dataclasses_in(argument)


def described(cls: type) -> dict[str, Any]:
    """The object of a schema that describes a dataclass."""
    for name, top in DOCUMENTS.items():
        if cls is top:
            return load_schema(name)
    found = [
        schema["$defs"][cls.__name__] for name in DOCUMENTS if cls.__name__ in (schema := load_schema(name))["$defs"]
    ]
    assert found, f"{cls.__name__} is in no schema"
    assert all(each == found[0] for each in found), f"{cls.__name__} differs between schemas"
    return dict(found[0])


def json_types(kind: Any) -> set[str]:
    origin = get_origin(kind)
    if origin in {Union, types.UnionType}:
        return {name for member in get_args(kind) for name in json_types(member)}
    if origin is Literal:
        return {"string"}
    if origin is tuple:
        return {"array"}
    if origin is Mapping or (isinstance(kind, type) and is_dataclass(kind)):
        return {"object"}
    return {{str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}[kind]}


def schema_types(part: dict[str, Any]) -> set[str]:
    if "anyOf" in part:
        return {name for each in part["anyOf"] for name in schema_types(each)}
    if "$ref" in part:
        return {"object"}
    values = part.get("enum", [part["const"]] if "const" in part else None)
    if values is not None:
        names = {str: "string", int: "integer", type(None): "null"}
        return {names[type(value)] for value in values}
    kind = part["type"]
    return set(kind) if isinstance(kind, list) else {kind}


EVERY = sorted({cls for top in DOCUMENTS.values() for cls in dataclasses_in(top)}, key=lambda cls: cls.__name__)


@pytest.mark.parametrize("cls", EVERY, ids=lambda cls: cls.__name__)
def test_schema_and_dataclass_do_not_drift(cls: type) -> None:
    schema = described(cls)
    names = [item.name for item in fields(cls)]
    assert list(schema["properties"]) == names
    assert schema["required"] == names
    assert schema["description"].endswith(".")
    for name, hint in get_type_hints(cls).items():
        if name not in names:
            continue
        part = schema["properties"][name]
        assert part["description"], f"{cls.__name__}.{name} is not described"
        assert schema_types(part) == json_types(hint), f"{cls.__name__}.{name}"


@pytest.mark.parametrize("cls", EVERY, ids=lambda cls: cls.__name__)
def test_choices_do_not_drift(cls: type) -> None:
    schema = described(cls)
    for name, hint in get_type_hints(cls).items():
        choices = [value for kind in (hint, *get_args(hint)) if get_origin(kind) is Literal for value in get_args(kind)]
        if choices:
            part = schema["properties"][name]
            assert [value for value in part["enum"] if value is not None] == choices, f"{cls.__name__}.{name}"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_no_schema_describes_what_is_gone(name: Name) -> None:
    assert set(load_schema(name)["$defs"]) <= {cls.__name__ for cls in EVERY}

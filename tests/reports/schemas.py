"""Validate documents against the schemas of the package, closed: a property that no schema names is a mistake."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from pytest_gpucoexist.leases.board import Board
from pytest_gpucoexist.model.machine import Machine
from pytest_gpucoexist.model.verdicts import Judgement
from pytest_gpucoexist.reports.jsonfile import load_schema
from pytest_gpucoexist.reports.merge import MergedReport
from pytest_gpucoexist.reports.model import SessionReport

__all__ = ["DOCUMENTS", "Name", "problems"]

Name = Literal["machine", "judgement", "report", "merged", "leases"]
DOCUMENTS: dict[Name, type] = {
    "machine": Machine,
    "judgement": Judgement,
    "report": SessionReport,
    "merged": MergedReport,
    "leases": Board,
}


def strict(schema: Any) -> Any:
    """The same schema, in which an object with properties has no others."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: strict(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and "required" in schema:
        closed["additionalProperties"] = False
    return closed


@cache
def validator(name: Name) -> Draft202012Validator:
    resources = [
        (f"{each}.json", Resource.from_contents(strict(load_schema(each)), default_specification=DRAFT202012))
        for each in DOCUMENTS
    ]
    registry: Registry[Any] = Registry().with_resources(resources)
    return Draft202012Validator(strict(load_schema(name)), registry=registry)


def problems(name: Name, document: object) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in validator(name).iter_errors(document)]

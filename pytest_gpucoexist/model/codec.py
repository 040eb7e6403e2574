"""Dataclasses to JSON and back, by their annotations.

What crosses to an xdist worker must be exact builtins (execnet refuses subclasses), so `encode` makes plain dicts
and lists. `decode` is strict about types and says where in the document it stumbled; it ignores unknown keys, so
that an older release reads a newer record.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pytest_gpucoexist.errors import DataError

__all__ = ["decode", "encode"]

T = TypeVar("T")


def encode(value: Any) -> Any:
    """Turn dataclasses, mappings and tuples into dicts and lists of builtins."""
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {name: encode(getattr(value, name)) for name in _names(type(value))}
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [encode(item) for item in value]
    raise TypeError(f"cannot encode {type(value).__name__}")


def decode(cls: type[T], data: object, where: str = "$") -> T:
    """Build a `cls` from JSON data. Raises DataError with the path of the first thing that does not fit."""
    result: T = _decode(cls, data, where)
    return result


@functools.cache
def _names(cls: type) -> tuple[str, ...]:
    return tuple(item.name for item in fields(cls))


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def _decode(kind: Any, data: object, where: str) -> Any:
    if kind is Any or kind is object:
        return data
    origin = get_origin(kind)
    if origin is Literal:
        if data in get_args(kind):
            return data
        raise DataError(f"{where}: expected one of {', '.join(map(repr, get_args(kind)))}, found {data!r}")
    if origin is Union or origin is types.UnionType:
        members = get_args(kind)
        if data is None and type(None) in members:
            return None
        return _decode(next(member for member in members if member is not type(None)), data, where)
    if origin is tuple:
        if not isinstance(data, list):
            raise DataError(f"{where}: expected a list, found {type(data).__name__}")
        (item, *_rest) = get_args(kind)
        return tuple(_decode(item, each, f"{where}[{index}]") for index, each in enumerate(data))
    if origin in {Mapping, dict}:
        if not isinstance(data, dict):
            raise DataError(f"{where}: expected an object, found {type(data).__name__}")
        _key, item = get_args(kind)
        return {str(key): _decode(item, each, f"{where}.{key}") for key, each in data.items()}
    if isinstance(kind, type) and is_dataclass(kind):
        return _decode_dataclass(kind, data, where)
    return _decode_scalar(kind, data, where)


def _decode_dataclass(cls: type, data: object, where: str) -> Any:
    if not isinstance(data, dict):
        raise DataError(f"{where}: expected an object for {cls.__name__}, found {type(data).__name__}")
    hints = _hints(cls)
    values: dict[str, Any] = {}
    for item in fields(cls):
        if item.name in data:
            values[item.name] = _decode(hints[item.name], data[item.name], f"{where}.{item.name}")
        elif item.default is MISSING and item.default_factory is MISSING:
            raise DataError(f"{where}: {cls.__name__} needs {item.name!r}")
    return cls(**values)


def _decode_scalar(kind: Any, data: object, where: str) -> Any:
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if isinstance(data, kind) and not (kind is int and isinstance(data, bool)):
        return data
    raise DataError(f"{where}: expected {kind.__name__}, found {data!r}")

"""NumPy arrays as a header of builtins and their bytes as they lie in memory.

Types are described by their parts (byte order, fields with offsets, titles, item size), because the descriptions that
NumPy writes itself lose alignment and differ between versions. NumPy is never imported to look at a value.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ARRAY", "SCALAR", "Described", "array_of", "describe_array", "fill_array"]

ARRAY, SCALAR = b"a", b"g"

_PLAIN = "?bhilqpBHILQPefdgFDGSUVMm"
"""The characters of types whose bytes are their values (numpy.dtype.char)."""


class Described:
    """An array: a header of builtins, its bytes, and what had to be changed."""

    def __init__(self, code: bytes, header: tuple[Any, ...], data: Any, size_bytes: int, notes: list[str]) -> None:
        self.code = code
        self.header = header
        self.data = data
        self.size_bytes = size_bytes
        self.notes = notes


def describe_array(value: Any, name: str) -> Described | None:
    """Describe an array or a scalar of NumPy; None for anything else. Raises ValueError for one that cannot travel."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, (numpy.ndarray, numpy.generic)):
        return None
    notes: list[str] = []
    code = ARRAY
    if isinstance(value, numpy.generic):
        code, value = SCALAR, numpy.asarray(value)
    elif type(value) is not numpy.ndarray:
        kind = type(value)
        raise ValueError(
            f"{name} is a {kind.__module__}.{kind.__qualname__}, which is more than an array (a mask, a file, names): "
            "pass numpy.asarray(…) of what shall arrive"
        )
    description = _describe_type(value.dtype, name)
    order = "C"
    if not value.flags.c_contiguous:
        if value.flags.f_contiguous:
            order = "F"
        else:
            notes.append(f"{name} was made contiguous (shape {value.shape}, strides {value.strides})")
            value = numpy.ascontiguousarray(value)
    header = (description, tuple(int(length) for length in value.shape), order)
    return Described(code, header, _bytes_of(numpy, value, order), int(value.nbytes), notes)


def array_of(header: tuple[Any, ...], size_bytes: int) -> Any:
    """Return an array as described, not yet filled. Raises ImportError, ValueError and TypeError."""
    import numpy as np

    description, shape, order = header
    dtype = _type_of(np, description)
    array = np.empty(shape, dtype, order)
    if array.nbytes != size_bytes:
        raise ValueError(f"{size_bytes} bytes for an array of {array.nbytes}")
    return array


def fill_array(array: Any, fill: Callable[[Any], None]) -> None:
    """Let `fill` write the bytes of a new array."""
    import numpy as np

    if array.nbytes:
        fill(_bytes_of(np, array, "C" if array.flags.c_contiguous else "F"))


def _bytes_of(numpy: Any, array: Any, order: str) -> Any:
    """Return the memory of a contiguous array as flat bytes, without a copy."""
    if not array.nbytes:
        return b""
    return memoryview(array.reshape(-1, order=order).view(numpy.uint8))


def _describe_type(dtype: Any, name: str) -> tuple[Any, ...]:
    numpy = sys.modules["numpy"]
    if dtype.hasobject:
        raise ValueError(
            f"{name} is an array of Python objects ({dtype}), which cannot travel between processes: give it a type of "
            "its own (.astype(float), a fixed-width text such as 'U20'), or pass a list"
        )
    description = _parts(dtype)
    if description is None or _type_of(numpy, description) != dtype:
        raise ValueError(
            f"{name} is an array of {dtype}, which another interpreter may not know: pass .view() of an unsigned "
            f"integer of {dtype.itemsize} bytes and view it back there"
        )
    return description


def _parts(dtype: Any) -> tuple[Any, ...] | None:
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        inner = _parts(base)
        return None if inner is None else ("array", inner, tuple(int(length) for length in shape))
    if dtype.names is None:
        return ("plain", dtype.str) if dtype.char in _PLAIN else None
    fields = [dtype.fields[each] for each in dtype.names]
    formats = [_parts(field[0]) for field in fields]
    titles = [field[2] if len(field) > 2 else None for field in fields]
    if None in formats or any(title is not None and type(title) is not str for title in titles):
        return None
    offsets = [int(field[1]) for field in fields]
    return ("fields", list(dtype.names), formats, offsets, titles, int(dtype.itemsize), bool(dtype.isalignedstruct))


def _type_of(numpy: Any, description: tuple[Any, ...]) -> Any:
    kind = description[0]
    if kind == "plain":
        return numpy.dtype(description[1])
    if kind == "array":
        return numpy.dtype((_type_of(numpy, description[1]), description[2]))
    _, names, formats, offsets, titles, size, aligned = description
    fields = {
        "names": names,
        "formats": [_type_of(numpy, each) for each in formats],
        "offsets": offsets,
        "itemsize": size,
    }
    if any(title is not None for title in titles):
        fields["titles"] = titles
    return numpy.dtype(fields, align=aligned)

"""Values as bytes: builtins of exactly these types, nested, and NumPy arrays; what comes out equals what went in.

No pickle: two interpreters with different versions of Python and NumPy must agree, and nothing that arrives may run
code. Long texts, bytes and arrays are kept apart as blobs, so that they can be written and read without another copy.
Two references to one list become two lists.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from .arrays import ARRAY, SCALAR, array_of, describe_array, fill_array

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Encoded", "PayloadError", "decode", "encode"]

ALIGNMENT = 64
"""Blobs begin at multiples of a cache line."""
_INLINE = 1024
"""Texts and bytes up to this length stay in the structure."""

_LENGTH = struct.Struct("<Q")
_PAIR = struct.Struct("<QQ")
_FLOAT = struct.Struct("<d")
_COMPLEX = struct.Struct("<dd")

_DEPTH = 200

_CONTAINERS: dict[type, bytes] = {list: b"l", tuple: b"t", set: b"e", frozenset: b"z"}
_KINDS = {code: kind for kind, code in _CONTAINERS.items()}
_SINGLE: dict[Any, bytes] = {None: b"N", True: b"T", False: b"F", Ellipsis: b"E"}
_BACK = {code: value for value, code in _SINGLE.items()}


class PayloadError(Exception):
    """A value that cannot travel; the message says which part of it, and what to do."""


class Encoded:
    """A value as bytes: `structure`, then the blobs, each aligned. `notes` say what was changed on the way."""

    def __init__(self, structure: bytes, blobs: list[tuple[int, Any]], size_bytes: int, notes: list[str]) -> None:
        self.structure = structure
        self.blobs = blobs
        self.size_bytes = size_bytes
        self.notes = notes

    def parts(self) -> list[tuple[int, Any]]:
        """Return what lies where: offset and bytes-like, blobs counted from the end of the structure."""
        start = _aligned(len(self.structure))
        return [(0, self.structure), *((start + offset, data) for offset, data in self.blobs)]


def encode(value: object, name: str = "value") -> Encoded:
    """Encode a value. `name` is what messages call it. Raises PayloadError."""
    writer = _Writer()
    writer.write(value, name, 0)
    structure = bytes(writer.out)
    size = _aligned(len(structure)) + writer.offset if writer.blobs else len(structure)
    return Encoded(structure, writer.blobs, size, writer.notes)


def decode(structure: bytes, fetch: Callable[[int, Any], None]) -> Any:
    """Rebuild a value. `fetch(offset, view)` fills a writable buffer from an offset of the whole message.

    Raises PayloadError for bytes that are no value, and for an array where there is no NumPy.
    """
    reader = _Reader(structure, fetch)
    try:
        value = reader.read()
    except (struct.error, IndexError, KeyError, UnicodeDecodeError, ValueError, TypeError, RecursionError) as error:
        raise PayloadError(f"what arrived is no value: {type(error).__name__}: {error}") from error
    if reader.at != len(structure):
        raise PayloadError(f"what arrived is no value: {len(structure) - reader.at} bytes too many")
    return value


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


class _Writer:
    def __init__(self) -> None:
        self.out = bytearray()
        self.blobs: list[tuple[int, Any]] = []
        self.offset = 0
        self.notes: list[str] = []

    def write(self, value: Any, name: str, depth: int) -> None:
        if depth > _DEPTH:
            raise PayloadError(f"{name[:_DEPTH]} is nested more than {_DEPTH} deep, or contains itself")
        kind = type(value)
        if value is None or kind is bool or value is Ellipsis:
            self.out += _SINGLE[value]
        elif kind is int:
            data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
            self.out += b"i" + _LENGTH.pack(len(data)) + data
        elif kind is float:
            self.out += b"f" + _FLOAT.pack(value)
        elif kind is complex:
            self.out += b"c" + _COMPLEX.pack(value.real, value.imag)
        elif kind is str:
            self._bytes(b"s", value.encode("utf-8", "surrogatepass"))
        elif kind is bytes or kind is bytearray:
            self._bytes(b"b" if kind is bytes else b"y", value)
        elif kind in _CONTAINERS:
            self.out += _CONTAINERS[kind] + _LENGTH.pack(len(value))
            for index, item in enumerate(value):
                self.write(item, f"{name}[{index}]" if kind in {list, tuple} else f"an item of {name}", depth + 1)
        elif kind is dict:
            self.out += b"d" + _LENGTH.pack(len(value))
            for key, item in value.items():
                self.write(key, f"a key of {name}", depth + 1)
                self.write(item, f"{name}[{key!r:.40}]", depth + 1)
        elif kind is range or kind is slice:
            self.out += b"r" if kind is range else b"x"
            for part in (value.start, value.stop, value.step):
                self.write(part, f"an end of {name}", depth + 1)
        else:
            self._array(value, name)

    def _bytes(self, code: bytes, data: bytes | bytearray) -> None:
        if len(data) <= _INLINE:
            self.out += code + _LENGTH.pack(len(data)) + data
        else:
            self.out += code.upper()
            self._blob(data, len(data))

    def _blob(self, data: Any, size: int) -> None:
        self.out += _PAIR.pack(self.offset, size)
        self.blobs.append((self.offset, data))
        self.offset = _aligned(self.offset + size)

    def _array(self, value: Any, name: str) -> None:
        try:
            found = describe_array(value, name)
        except ValueError as error:
            raise PayloadError(str(error)) from None
        if found is None:
            raise PayloadError(_refusal(value, name))
        self.notes += found.notes
        self.out += found.code
        self.write(found.header, f"the type of {name}", 0)
        self._blob(found.data, found.size_bytes)


def _refusal(value: object, name: str) -> str:
    kind = type(value)
    text = f"{name} is a {kind.__module__}.{kind.__qualname__}, which cannot travel between processes: "
    bases = [
        base.__name__ for base in (int, float, complex, str, bytes, list, tuple, dict, set) if isinstance(value, base)
    ]
    if bases:
        return f"{text}only exact builtins do, so pass {bases[0]}(…)"
    if hasattr(value, "__cuda_array_interface__") or hasattr(value, "__dlpack__"):
        return f"{text}bring it to the host as a NumPy array first (torch: .cpu().numpy(), CuPy: cupy.asnumpy)"
    if hasattr(value, "__await__") or hasattr(value, "__next__"):
        return f"{text}the function has to run to its end; make a list, or run the coroutine inside it"
    return (
        f"{text}builtins (None, bool, int, float, complex, str, bytes, list, tuple, dict, set, …) and NumPy arrays can"
    )


class _Reader:
    def __init__(self, structure: bytes, fetch: Callable[[int, Any], None]) -> None:
        self.data = structure
        self.at = 0
        self._fetch = fetch
        self._blobs_at = _aligned(len(structure))

    def read(self) -> Any:
        code = self._take(1)
        if code in _BACK:
            return _BACK[code]
        if code == b"i":
            return int.from_bytes(self._take(self._length()), "little", signed=True)
        if code == b"f":
            return _FLOAT.unpack(self._take(8))[0]
        if code == b"c":
            return complex(*_COMPLEX.unpack(self._take(16)))
        if code in b"sbySBY":
            return self._bytes(code)
        if code == b"d":
            return {self.read(): self.read() for _ in range(self._length())}
        if code in b"rx":
            return {b"r": range, b"x": slice}[code](self.read(), self.read(), self.read())
        if code in {ARRAY, SCALAR}:
            return self._array(code)
        return _KINDS[code]([self.read() for _ in range(self._length())])

    def _bytes(self, code: bytes) -> Any:
        if code.islower():
            data: Any = self._take(self._length())
        else:
            offset, size = _PAIR.unpack(self._take(16))
            data = bytearray(size)
            self._fetch(self._blobs_at + offset, data)
        if code in b"sS":
            return data.decode("utf-8", "surrogatepass")
        return bytes(data) if code in b"bB" else bytearray(data)

    def _array(self, code: bytes) -> Any:
        header = self.read()
        offset, size = _PAIR.unpack(self._take(16))
        try:
            array = array_of(header, size)
        except ImportError as error:
            raise PayloadError(f"an array arrived, and NumPy cannot be imported here: {error}") from None
        fill_array(array, lambda view: self._fetch(self._blobs_at + offset, view))
        return array[()] if code == SCALAR else array

    def _length(self) -> int:
        return int(_LENGTH.unpack(self._take(8))[0])

    def _take(self, count: int) -> bytes:
        part = self.data[self.at : self.at + count]
        if len(part) != count:
            raise ValueError("it is cut off")
        self.at += count
        return part

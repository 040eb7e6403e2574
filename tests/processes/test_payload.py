"""What goes over comes out the same, or is refused with a reason."""

from __future__ import annotations

import contextlib
import enum
import math
import socket
import struct
from collections import OrderedDict, namedtuple
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, strategies as st

from pytest_gpucoexist.processes.child.carrier import INLINE_BYTES, receive_value, send_value
from pytest_gpucoexist.processes.child.payload import PayloadError, decode, encode

if TYPE_CHECKING:
    from collections.abc import Iterator

Point = namedtuple("Point", "x y")  # noqa: PYI024 - the untyped kind is refused like any other


class Colour(enum.IntEnum):
    RED = 1


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def over(value: Any, ends: tuple[socket.socket, socket.socket]) -> Any:
    return receive_value(send_value(value, "value", ends[0]), ends[1])


def at_once(value: Any) -> Any:
    encoded = encode(value)
    whole = bytearray(encoded.size_bytes)
    for offset, data in encoded.parts():
        whole[offset : offset + len(data)] = data

    def fetch(offset: int, into: Any) -> None:
        memoryview(into)[:] = whole[offset : offset + len(into)]

    return decode(encoded.structure, fetch)


def equal(first: Any, second: Any) -> bool:
    """Whether two values are the same, types, signs and NaNs included."""
    if type(first) is not type(second):
        return False
    if type(first) is float:
        return struct.pack("<d", first) == struct.pack("<d", second)
    if type(first) is complex:
        return equal(first.real, second.real) and equal(first.imag, second.imag)
    if type(first) in {list, tuple}:
        return len(first) == len(second) and all(map(equal, first, second))
    if type(first) is dict:
        return equal(list(first.items()), list(second.items()))
    if type(first) is slice:
        return equal((first.start, first.stop, first.step), (second.start, second.stop, second.step))
    return bool(first == second)


BUILTINS: list[Any] = [
    None,
    True,
    False,
    ...,
    0,
    -1,
    255,
    -256,
    2**31,
    -(2**31) - 1,
    2**63,
    -(2**200),
    10**5000,
    0.0,
    -0.0,
    math.inf,
    5e-324,
    struct.unpack("<d", b"\x01\x02\x03\x04\x05\x06\xf8\x7f")[0],
    struct.unpack("<d", b"\x01\x02\x03\x04\x05\x06\xf8\xff")[0],
    complex(-0.0, math.nan),
    "",
    "grün \x00 \U0001f600",
    "\udc80 lone \ud800",
    b"",
    b"\x00\xff",
    bytearray(b"changing"),
    [],
    (),
    {},
    set(),
    frozenset(),
    [1, (2, [3, {"four": (5, None)}])],
    {1: "int", "1": "str", (1, 2): [3], None: {}, 1.5: b"", frozenset({1}): set()},
    {1, 2.5, "three", None, (4,)},
    range(3, 30, 7),
    slice(None, 5, -1),
    "x" * 5000,
    b"y" * 5000,
    bytearray(b"z" * 5000),
    ["\udc80" * 3000, b"\x00" * 3000],
]


@pytest.mark.parametrize("value", BUILTINS, ids=lambda value: f"{type(value).__name__}")
def test_builtins_come_out_the_same(value: Any, ends: tuple[socket.socket, socket.socket]) -> None:
    assert equal(over(value, ends), value)
    assert equal(over([value] * 3, ends), [value] * 3)


def test_everything_at_once_travels_in_one_memfd(ends: tuple[socket.socket, socket.socket]) -> None:
    value = [BUILTINS, "large" * 20000]
    about = send_value(value, "value", ends[0])
    assert about["inline"] is None
    assert about["size"] > INLINE_BYTES
    assert equal(receive_value(about, ends[1]), value)


def test_what_is_small_goes_with_the_message(ends: tuple[socket.socket, socket.socket]) -> None:
    about = send_value(b"x" * (INLINE_BYTES - 200), "value", ends[0])
    assert len(about["inline"]) <= INLINE_BYTES
    assert equal(receive_value(about, ends[1]), b"x" * (INLINE_BYTES - 200))
    ends[1].setblocking(False)
    with pytest.raises(BlockingIOError):
        ends[1].recv(1)  # no descriptor was sent for it


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=True)
    | st.complex_numbers(allow_nan=False)
    | st.text(st.characters(), max_size=2000)
    | st.binary(max_size=2000),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(values)
def test_any_nesting_comes_out_the_same(value: Any) -> None:
    assert equal(at_once(value), value)


@given(st.binary(max_size=200))
def test_bytes_that_are_no_value_are_refused_and_nothing_else_is_raised(data: bytes) -> None:
    with contextlib.suppress(PayloadError, MemoryError, OverflowError):
        decode(data, lambda offset, into: None)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (Colour.RED, ["value is a", "Colour", "int(…)"]),
        ([1, {"point": Point(1, 2)}], ["value[1]['point'] is a", "Point", "tuple(…)"]),
        ({"a": OrderedDict()}, ["value['a']", "OrderedDict", "dict(…)"]),
        ((1, object()), ["value[1]", "builtins.object", "NumPy arrays"]),
        ({(1, object()): 2}, ["a key of value[1]"]),
        (iter([1]), ["list_iterator", "make a list"]),
        (math.sqrt, ["builtin_function_or_method"]),
        (memoryview(b"x"), ["memoryview"]),
    ],
    ids=["enum", "namedtuple", "ordered", "object", "key", "iterator", "function", "view"],
)
def test_what_cannot_travel_is_named(value: Any, words: list[str]) -> None:
    with pytest.raises(PayloadError) as caught:
        encode(value)
    for word in words:
        assert word in str(caught.value)


def test_a_value_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(PayloadError, match="contains itself"):
        encode(value)


def test_what_is_cut_off_is_refused(ends: tuple[socket.socket, socket.socket]) -> None:
    about = send_value("x" * 100_000, "value", ends[0])
    with pytest.raises(PayloadError, match="arrived in a memfd of"):
        receive_value({**about, "size": about["size"] + 1}, ends[1])
    small = send_value(["a", "b"], "value", ends[0])
    with pytest.raises(PayloadError, match="cut off"):
        receive_value({**small, "inline": small["inline"][:-1], "structure": small["structure"] - 1}, ends[1])
    with pytest.raises(PayloadError, match="too many"):
        receive_value({**small, "inline": small["inline"] + b"N", "structure": small["structure"] + 1}, ends[1])


def test_nobody_at_the_other_end(ends: tuple[socket.socket, socket.socket]) -> None:
    about = send_value("x" * 100_000, "value", ends[0])
    receive_value(about, ends[1])
    ends[0].close()
    with pytest.raises(OSError, match="other side is gone"):
        receive_value(about, ends[1])

"""NumPy arrays come out as they went in: type, shape, order and every bit."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.processes.child.carrier import receive_value, send_value
from pytest_gpucoexist.processes.child.payload import PayloadError, encode

np = pytest.importorskip("numpy", reason="needs NumPy")

if TYPE_CHECKING:
    from collections.abc import Iterator

Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def over(value: Any, ends: Ends) -> Any:
    return receive_value(send_value(value, "value", ends[0]), ends[1])


def nested_type() -> Any:
    inner = np.dtype([("x", ">i2"), ("when", "M8[ms]")])
    return np.dtype(
        {
            "names": ["a", "b", "c"],
            "formats": [inner, ("<f8", (2, 3)), "U3"],
            "offsets": [2, 16, 80],
            "titles": ["first", None, "third"],
            "itemsize": 100,
        }
    )


TYPES = [
    *("?", "i1", "<u2", ">u2", "<i4", ">i8", "<u8", "<f2", ">f4", "<f8", "<c8", ">c16", "g", "G"),
    *("S5", "S0", "U4", ">U4", "U0", "V7", "M8[ns]", "M8[25s]", "m8[D]", "m8"),
    np.dtype([("a", "<i4"), ("b", ">f8")]),
    np.dtype([("a", "i1"), ("b", "f8")], align=True),
    nested_type(),
]
SHAPES = [(), (0,), (1,), (7,), (3, 4), (2, 0, 5), (2, 3, 4), (1, 1, 1, 1)]


def bits(array: Any) -> bytes:
    """Return every byte of an array in its own order, padding of structures included."""
    data: bytes = array.tobytes(order="A")
    return data


def filled(dtype: Any, shape: tuple[int, ...], order: str = "C") -> Any:
    dtype = np.dtype(dtype)
    count = int(np.prod(shape)) * dtype.itemsize
    if dtype.kind == "U":
        array = np.array([chr(65 + i % 26) * i for i in range(int(np.prod(shape)))] or [""], dtype=dtype)
        return np.array(array[: int(np.prod(shape))].reshape(shape), order=order)
    raw = (np.arange(count, dtype=np.int64) * 37 % 251).astype(np.uint8)
    if dtype.kind == "b":
        raw %= 2
    array = np.zeros(shape, dtype) if not count else raw.view(dtype).reshape(shape)
    return np.array(array, order=order)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", TYPES, ids=lambda each: str(np.dtype(each))[:30])
def test_every_type_and_shape(dtype: Any, shape: tuple[int, ...], ends: Ends) -> None:
    if np.dtype(dtype).names is not None and "c" in np.dtype(dtype).names:
        array = np.zeros(shape, dtype)
        array["b"] = 7.5
        array["c"] = "xyz"
    else:
        array = filled(dtype, shape)
    came = over([array], ends)[0]
    assert type(came) is np.ndarray
    assert came.dtype == array.dtype
    assert came.dtype.isalignedstruct == array.dtype.isalignedstruct
    assert came.dtype.fields == array.dtype.fields
    assert came.shape == array.shape
    if np.dtype(dtype).names is None:
        assert bits(came) == bits(array)
    else:
        assert all((came[name] == array[name]).all() for name in array.dtype.names)
    assert came.flags.writeable
    assert came.flags.owndata


@pytest.mark.parametrize("order", ["C", "F"])
def test_the_order_in_memory_stays(order: str, ends: Ends) -> None:
    array = filled("<i4", (5, 6, 7), order)
    about = send_value(array, "value", ends[0])
    came = receive_value(about, ends[1])
    assert came.flags[f"{order}_CONTIGUOUS"]
    assert bits(came) == bits(array)
    assert (came == array).all()
    assert about["notes"] == []


@pytest.mark.parametrize(
    "array",
    [
        np.arange(40)[::2],
        np.arange(40)[::-1],
        np.arange(24).reshape(4, 6)[:, 1:3],
        np.arange(24).reshape(2, 3, 4).transpose(1, 0, 2),
        np.broadcast_to(np.arange(3.0), (4, 3)),
        np.zeros(5, [("a", "i4"), ("b", "f8")])["b"],
    ],
    ids=["step", "backwards", "columns", "transposed", "broadcast", "field"],
)
def test_what_is_not_contiguous_is_made_so_and_that_is_said(array: Any, ends: Ends) -> None:
    about = send_value((1, array), "the arguments", ends[0])
    came = receive_value(about, ends[1])[1]
    assert came.dtype == array.dtype
    assert (came == array).all()
    assert came.flags.c_contiguous
    assert len(about["notes"]) == 1
    assert about["notes"][0].startswith("the arguments[1] was made contiguous")


def test_every_bit_of_a_float_stays(ends: Ends) -> None:
    words = np.array([0x7FF8000000000001, 0xFFF8DEADBEEF0001, 0x7FF0000000000001, 0x8000000000000000], np.uint64)
    came = over(words.view(np.float64), ends)
    assert (came.view(np.uint64) == words).all()


@pytest.mark.parametrize(
    "scalar",
    [
        *(np.float64(-0.0), np.float32(1.5), np.int8(-3), np.bool_(True), np.complex64(1j), np.longdouble(1) / 3),
        *(np.str_("text"), np.bytes_(b"x"), np.datetime64("2020-02-29T12:00"), np.timedelta64(5, "us")),
    ],
    ids=lambda scalar: type(scalar).__name__,
)
def test_scalars_keep_their_type(scalar: Any, ends: Ends) -> None:
    came = over({"k": [scalar]}, ends)["k"][0]
    assert type(came) is type(scalar)
    assert came.dtype == scalar.dtype
    if came.dtype.char != "g":  # of whose 16 bytes 6 are nobody's
        assert came.tobytes() == scalar.tobytes()
    assert came == scalar


def test_an_item_of_a_structured_array(ends: Ends) -> None:
    item = np.array([(1, 2.5)], [("a", "i4"), ("b", "f8")])[0]
    came = over(item, ends)
    assert type(came) is np.void
    assert came == item
    assert came.dtype == item.dtype


def test_ten_mebibytes_of_several_arrays(ends: Ends) -> None:
    arrays = [np.arange(1_000_001, dtype="<u4"), np.asfortranarray(np.ones((500, 700))), np.zeros((0, 9))]
    came = over(arrays, ends)
    for one, other in zip(came, arrays, strict=True):
        assert one.dtype == other.dtype
        assert bits(one) == bits(other)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.array([1, "two", None], dtype=object), "Python objects"),
        (np.zeros(2, [("a", "i4"), ("b", "O")]), "Python objects"),
        (np.ma.masked_array([1, 2], [True, False]), "MaskedArray"),
        (np.zeros(2, [("a", "i4")]).view(np.recarray), "recarray"),
    ],
    ids=["objects", "field", "masked", "records"],
)
def test_what_is_more_or_less_than_numbers_is_refused(value: Any, words: str) -> None:
    with pytest.raises(PayloadError, match=words) as caught:
        encode({"here": value}, "the result")
    assert "the result['here']" in str(caught.value)


def test_a_type_that_numpy_does_not_know_is_refused() -> None:
    types = pytest.importorskip("ml_dtypes", reason="needs ml_dtypes: types of others")
    with pytest.raises(PayloadError, match="another interpreter may not know"):
        encode(np.zeros(3, types.bfloat16))


def test_variable_length_text_is_refused() -> None:
    if not hasattr(np.dtypes, "StringDType"):
        pytest.skip("needs NumPy 2: text of variable length")
    with pytest.raises(PayloadError):
        encode(np.array(["a", "bcd"], np.dtypes.StringDType()))

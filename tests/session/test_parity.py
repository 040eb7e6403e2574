"""Results of two vendors are compared wherever they are nested, and the largest difference is named."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.session.parity import differences

if TYPE_CHECKING:
    from collections.abc import Callable

NAMES = ("nvidia (nvidia0)", "amd (amd0)")


def said(first: Any, second: Any, rtol: float = 1e-5, atol: float = 1e-8) -> list[str]:
    return [each.describe(NAMES) for each in differences(first, second, rtol=rtol, atol=atol)]


@pytest.mark.parametrize(
    "value",
    [1, 1.5, "text", None, True, b"x", [1, [2.0]], {"a": (1, 2)}, math.nan, math.inf, {"a": [math.nan, {"b": 1j}]}],
)
def test_alike(value: Any) -> None:
    assert said(value, value) == []


def test_within_the_tolerance() -> None:
    assert said(1.0, 1.00001, rtol=1e-4) == []
    assert said(0.0, 1e-9) == []
    assert said({"a": 2}, {"a": 2}) == []
    assert said({"a": 1, "b": 2}, {"b": 2, "a": 1}) == []


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (1.0, 1.5, "result differs by 0.5: nvidia (nvidia0) has 1.0, amd (amd0) has 1.5"),
        (
            {"loss": [0.0, 3]},
            {"loss": [0.0, 4]},
            "result['loss'][1] differs by 1: nvidia (nvidia0) has 3, amd (amd0) has 4",
        ),
        ([1], [1, 2], "result has another length: nvidia (nvidia0) has 1, amd (amd0) has 2"),
        (
            {"a": 1},
            {"b": 1},
            "result has other keys (those it alone has): nvidia (nvidia0) has ['a'], amd (amd0) has ['b']",
        ),
        (1, 1.0, "result has another type: nvidia (nvidia0) has 1, amd (amd0) has 1.0"),
        (math.nan, 1.0, "result differs: nvidia (nvidia0) has nan, amd (amd0) has 1.0"),
        (math.inf, -math.inf, "result differs by inf: nvidia (nvidia0) has inf, amd (amd0) has -inf"),
        ((1,), [1], "result has another type: nvidia (nvidia0) has (1,), amd (amd0) has [1]"),
    ],
)
def test_different(first: Any, second: Any, words: str) -> None:
    assert said(first, second) == [words]


def test_arrays() -> None:
    np = pytest.importorskip("numpy", reason="needs NumPy")
    one = np.arange(12, dtype=np.float32).reshape(3, 4)
    other = one.copy()
    assert said({"x": one}, {"x": other}) == []
    other[1, 2] += 1
    other[2, 0] -= 5
    assert said({"x": one}, {"x": other}) == [
        "result['x'][2, 0] differs by 5: nvidia (nvidia0) has 8.0, amd (amd0) has 3.0; 2 of 12 items differ"
    ]
    other[0, 1] = np.nan
    assert "[0, 1] differs: nvidia (nvidia0) has 1.0, amd (amd0) has nan; 3 of 12" in said(one, other)[0]
    assert said(one, one.astype(np.float64)) == [
        "result has another type: nvidia (nvidia0) has 'float32', amd (amd0) has 'float64'"
    ]
    assert said(one, one[:2]) == ["result has another shape: nvidia (nvidia0) has (3, 4), amd (amd0) has (2, 4)"]
    whole = np.array([2**62, 2**62 + 1])
    assert said(whole, whole + 1, rtol=1.0) == [
        f"result[0] differs by 1: nvidia (nvidia0) has {2**62}, amd (amd0) has {2**62 + 1}; 2 of 2 items differ"
    ]
    assert said(np.array([True, False]), np.array([True, True])) == [
        "result[1] differs: nvidia (nvidia0) has False, amd (amd0) has True; 1 of 2 items differ"
    ]
    assert said(np.float32(1), np.float32(2)) == ["result differs by 1: nvidia (nvidia0) has 1.0, amd (amd0) has 2.0"]
    assert said(np.array([np.nan, np.inf]), np.array([np.nan, np.inf])) == []
    assert said(one, one.tolist()) == ["result has another type: nvidia (nvidia0) has 'ndarray', amd (amd0) has 'list'"]
    never = np.array(["NaT", "2020-01-01"], "M8[s]")
    assert said(never, never) == []
    assert said(never, never[::-1]) != []


def test_arrays_at_the_ends_of_their_types(recwarn: pytest.WarningsRecorder) -> None:
    np = pytest.importorskip("numpy", reason="needs NumPy")
    large = np.array([np.finfo(np.float32).max], dtype=np.float32)
    assert "differs by 6.80565e+38" in said(large, -large)[0]
    half = np.array([1.0], dtype=np.float16)
    assert said(half, np.nextafter(half, np.float16(2)), rtol=9e-4) != []
    assert said(half, np.nextafter(half, np.float16(2)), rtol=1e-3) == []
    assert "differs by 255" in said(np.array([255], np.uint8), np.array([0], np.uint8))[0]
    assert "differs by inf" in said(1e308 * (1 + 1j), -1e308 * (1 + 1j))[0]
    assert not recwarn.list


def test_what_is_long_is_shown_where_it_differs() -> None:
    assert said(10**400, 0)[0].startswith("result differs by about 2**1329: ")
    one = "a" * 1000
    (line,) = said(one, f"{one[:500]}b{one[501:]}")
    assert line.startswith("result[480:] differs: ")
    assert f"'{'a' * 20}b" in line
    assert len(line) < 300
    assert said(10**5000, 0)[0].startswith("result differs by about 2**16610: ")
    assert said(b"same", b"sane") == ["result differs: nvidia (nvidia0) has b'same', amd (amd0) has b'sane'"]


SOURCE = """
    import functions, pytest

    def test_alike(gpu_parity):
        assert gpu_parity(functions.count, 3) == [0, 1, 2]

    def test_different(gpu_parity):
        gpu_parity(functions.of_the_vendor)

    def test_largest_first(gpu_parity):
        gpu_parity(functions.many)

    def test_again(gpu_parity):
        numbers = [gpu_parity(functions.calls) for _ in range(2)]
        assert numbers == [1, 2]

    def test_one_vendor(cuda_gpu, gpu_process):
        from pytest_gpucoexist.session.parity import GpuParity
        GpuParity([cuda_gpu], gpu_process)(functions.count, 3)
"""

FUNCTIONS = """
    import os

    def count(number):
        return list(range(number))

    called = []

    def calls():
        called.append(1)
        return len(called)

    def many():
        amd = os.environ["CUDA_VISIBLE_DEVICES"] == "-1"
        return [float(at + at * amd) for at in range(100)]

    def of_the_vendor():
        return {"mean": 1.0 if os.environ["CUDA_VISIBLE_DEVICES"] == "-1" else 2.0}
"""


def test_in_a_session(pytester: pytest.Pytester, session: Callable[..., pytest.RunResult]) -> None:
    pytest.importorskip("execnet", reason="needs execnet")
    pytester.makepyfile(functions=FUNCTIONS, test_it=SOURCE)
    result = session("--gpu-simulate", "--gpu-gates=off")
    result.assert_outcomes(passed=2, failed=3)
    result.stdout.fnmatch_lines(
        [
            "functions.of_the_vendor differs (rtol=1e-05, atol=1e-08):",
            "  result?'mean'? differs by 1: nvidia (nvidia0) has 2.0, amd (amd0) has 1.0",
            "functions.many differs (rtol=1e-05, atol=1e-08):",
            "  result?99? differs by 99: nvidia (nvidia0) has 99.0, amd (amd0) has 198.0",
            "  and 91 more places",
            "*gpu_parity compares vendors: the test needs devices of two*",
        ]
    )

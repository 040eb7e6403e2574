"""The fixture `gpu_parity`: the same function on a device of each vendor, and where the results differ most."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pytest_gpucoexist.model.machine import Gpu
    from pytest_gpucoexist.session.vendor_processes import GpuProcess, GpuProcesses

__all__ = ["Difference", "GpuParity", "differences"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One place where two results differ: `where` is a path (`["loss"][3]`), `count` how many items differ there.

    `first` and `second` are the values with the largest difference, `size` that difference; None for what has none.
    """

    where: str
    first: Any
    second: Any
    size: float | None = None
    count: int = 1
    of: int = 1
    reason: str = "differs"

    def describe(self, names: tuple[str, str]) -> str:
        """Say it for a person."""
        place = f"result{self.where}"
        many = f"; {self.count} of {self.of} items differ" if self.of > 1 else ""
        size = "" if self.size is None else f" by {_number(self.size)}"
        values = f"{names[0]} has {_short(self.first)}, {names[1]} has {_short(self.second)}"
        return f"{place} {self.reason}{size}: {values}{many}"


class GpuParity:
    """What the fixture gives: `gpu_parity(function, *args, rtol=…, atol=…)`."""

    def __init__(self, gpus: Sequence[Gpu], processes: GpuProcesses) -> None:
        """`gpus` are those of the test: the first of each vendor is used."""
        first: dict[str, Gpu] = {}
        for gpu in gpus:
            first.setdefault(gpu.vendor, gpu)
        self.devices = tuple(first.values())
        self._processes = processes
        self._running: dict[str, GpuProcess] = {}

    def __call__(
        self,
        function: Callable[..., Any],
        *args: Any,
        rtol: float = 1e-5,
        atol: float = 1e-8,
        deadline_s: float = 60.0,
    ) -> Any:
        """Run a module-level function in a process of each vendor and fail where the results differ; return the first.

        The processes serve all calls of a test. The largest differences are shown first.

        Numbers are alike within `atol + rtol * |first|`, as in numpy.isclose, whole numbers, texts and shapes only when
        they are equal; NaN is like NaN. Lists, tuples and dicts are compared item by item.
        """
        __tracebackhide__ = True
        if len(self.devices) < 2:
            raise UserError(
                "gpu_parity compares vendors: the test needs devices of two, as @pytest.mark.cross_vendor gives"
            )
        results = []
        for gpu in self.devices:
            results.append(self._process(gpu).run(function, *args, deadline_s=deadline_s))
        for gpu, other in zip(self.devices[1:], results[1:], strict=True):
            found = sorted(differences(results[0], other, rtol=rtol, atol=atol), key=_rank, reverse=True)
            if found:
                names = f"{self.devices[0].vendor} ({self.devices[0].id})", f"{gpu.vendor} ({gpu.id})"
                shown = [each.describe(names) for each in found[:_SHOWN]]
                more = [f"and {len(found) - _SHOWN} more places"] if len(found) > _SHOWN else []
                title = f"{function.__module__}.{function.__qualname__} differs (rtol={rtol:g}, atol={atol:g}):"
                pytest.fail("\n".join([title, *(f"  {line}" for line in (*shown, *more))]), pytrace=False)
        return results[0]

    def _process(self, gpu: Gpu) -> GpuProcess:
        """Return the process of a device: the one before, unless it has ended."""
        process = self._running.get(gpu.key)
        if process is None or process.opened.process.is_ending:
            process = self._running[gpu.key] = self._processes(gpu)
        return process


_SHOWN = 8
_CHARACTERS = 200
"""Of a value that is shown."""
_BEFORE = 20
"""How much of a long text is shown before the place where it differs."""


def differences(first: Any, second: Any, *, rtol: float, atol: float, where: str = "") -> Iterator[Difference]:
    """Yield where two results differ."""
    if type(first).__module__ == "numpy" or type(second).__module__ == "numpy":
        yield from _arrays(first, second, rtol, atol, where)
    elif isinstance(first, dict) and isinstance(second, dict):
        if list(first) != list(second) and set(first) != set(second):
            alone = [[key for key in one if key not in other] for one, other in ((first, second), (second, first))]
            yield Difference(where=where, first=alone[0], second=alone[1], reason="has other keys (those it alone has)")
            return
        for key in first:
            yield from differences(first[key], second[key], rtol=rtol, atol=atol, where=f"{where}[{key!r}]")
    elif isinstance(first, (list, tuple)) and type(first) is type(second):
        if len(first) != len(second):
            yield Difference(where=where, first=len(first), second=len(second), reason="has another length")
            return
        for index, (one, other) in enumerate(zip(first, second, strict=True)):
            yield from differences(one, other, rtol=rtol, atol=atol, where=f"{where}[{index}]")
    elif isinstance(first, (float, complex)) and isinstance(second, (float, complex)):
        if not _close(first, second, rtol, atol):
            yield Difference(where=where, first=first, second=second, size=_distance(first, second))
    elif type(first) is not type(second):
        yield Difference(where=where, first=first, second=second, reason="has another type")
    elif isinstance(first, (str, bytes, bytearray)) and first != second:
        yield _texts(first, second, where)
    elif first != second:
        size = abs(second - first) if isinstance(first, int) and not isinstance(first, bool) else None
        yield Difference(where=where, first=first, second=second, size=size)


def _close(first: complex, second: complex, rtol: float, atol: float) -> bool:
    if first == second or (first != first and second != second):  # noqa: PLR0124 - NaN is like NaN
        return True
    finite = all(math.isfinite(each) for one in (first, second) for each in (complex(one).real, complex(one).imag))
    return finite and math.hypot(*_parts(second - first)) <= atol + rtol * math.hypot(*_parts(first))


def _parts(number: complex) -> tuple[float, float]:
    return complex(number).real, complex(number).imag


def _distance(first: complex, second: complex) -> float | None:
    """Return how far two numbers are apart; None where one is NaN."""
    size = math.hypot(*_parts(second - first))  # abs() of a complex raises where this is infinite
    return math.inf if math.isnan(size) and first == first and second == second else _known(size)  # noqa: PLR0124


def _known(size: float) -> float | None:
    return None if math.isnan(size) else size


def _rank(difference: Difference) -> tuple[bool, float]:
    """Order by size; what has none is another kind of thing, or NaN, and comes first."""
    return difference.size is None, difference.size or 0


def _texts(first: Any, second: Any, where: str) -> Difference:
    """Return where two texts part, and what is there."""
    at = next((at for at, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]), None)
    begin = max(0, (min(len(first), len(second)) if at is None else at) - _BEFORE)
    if max(len(first), len(second)) <= _CHARACTERS // 2:
        return Difference(where=where, first=first, second=second)
    end = begin + _CHARACTERS // 2
    return Difference(where=f"{where}[{begin}:]", first=first[begin:end], second=second[begin:end])


def _short(value: Any) -> str:
    try:
        shown = repr(value)
    except ValueError:  # a whole number of more digits than Python writes (sys.set_int_max_str_digits)
        shown = f"{type(value).__name__} too long to show"
    return shown if len(shown) <= _CHARACTERS else f"{shown[:_CHARACTERS]}..."


def _number(size: float) -> str:
    try:
        return f"{size:.6g}"
    except OverflowError:  # a whole number beyond any float
        return f"about 2**{int(size).bit_length()}"


def _arrays(first: Any, second: Any, rtol: float, atol: float, where: str) -> Iterator[Difference]:
    import numpy as np

    if type(first).__module__ != type(second).__module__:
        names = type(first).__name__, type(second).__name__
        yield Difference(where=where, first=names[0], second=names[1], reason="has another type")
        return
    one, other = np.asarray(first), np.asarray(second)
    if one.shape != other.shape:
        yield Difference(where=where, first=one.shape, second=other.shape, reason="has another shape")
        return
    if one.dtype != other.dtype:
        yield Difference(where=where, first=one.dtype.name, second=other.dtype.name, reason="has another type")
        return
    kind = one.dtype.kind
    with np.errstate(all="ignore"):
        # In the array's own type a tolerance of float16 would round to nothing, and a difference could overflow.
        wide = np.result_type(one.dtype, np.float64) if kind in "fciu" else one.dtype
        if kind in "fc":
            wrong = ~np.isclose(other.astype(wide), one.astype(wide), rtol=rtol, atol=atol, equal_nan=True)
        else:
            wrong = np.asarray(one != other)
            if kind in "mM":
                wrong &= ~(np.isnat(one) & np.isnat(other))
        count = int(wrong.sum())
        if not count:
            return
        sizes = wrong.astype(np.float64)
        if kind in "fciu":
            # A whole number that differs by less than a float can tell still differs.
            sizes = np.where(wrong, np.abs(other.astype(wide) - one.astype(wide)), -1.0)
            sizes = np.where(np.isnan(sizes), np.inf, sizes)
    at = np.unravel_index(int(np.argmax(sizes)), one.shape)
    values = one[at].item(), other[at].item()
    if kind in "iu":
        size: float | None = abs(values[1] - values[0])
    else:
        size = _distance(*values) if kind in "fc" else None
    index = "" if one.ndim == 0 else f"[{', '.join(str(int(each)) for each in at)}]"
    yield Difference(where=f"{where}{index}", first=values[0], second=values[1], size=size, count=count, of=one.size)

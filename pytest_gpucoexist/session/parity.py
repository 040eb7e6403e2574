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
    from pytest_gpucoexist.session.vendor_processes import GpuProcesses

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
        size = "" if self.size is None else f" by {self.size:.6g}"
        return f"{place} {self.reason}{size}: {names[0]} has {self.first!r}, {names[1]} has {self.second!r}{many}"


class GpuParity:
    """What the fixture gives: `gpu_parity(function, *args, rtol=…, atol=…)`."""

    def __init__(self, gpus: Sequence[Gpu], processes: GpuProcesses) -> None:
        """`gpus` are those of the test: the first of each vendor is used."""
        first: dict[str, Gpu] = {}
        for gpu in gpus:
            first.setdefault(gpu.vendor, gpu)
        self.devices = tuple(first.values())
        self._processes = processes

    def __call__(
        self,
        function: Callable[..., Any],
        *args: Any,
        rtol: float = 1e-5,
        atol: float = 1e-8,
        deadline_s: float = 60.0,
    ) -> Any:
        """Run a module-level function in a process of each vendor and fail where the results differ; return the first.

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
            process = self._processes(gpu)
            results.append(process.run(function, *args, deadline_s=deadline_s))
        for gpu, other in zip(self.devices[1:], results[1:], strict=True):
            found = list(differences(results[0], other, rtol=rtol, atol=atol))
            if found:
                names = f"{self.devices[0].vendor} ({self.devices[0].id})", f"{gpu.vendor} ({gpu.id})"
                shown = [each.describe(names) for each in found[:_SHOWN]]
                more = [f"and {len(found) - _SHOWN} more places"] if len(found) > _SHOWN else []
                title = f"{function.__module__}.{function.__qualname__} differs (rtol={rtol:g}, atol={atol:g}):"
                pytest.fail("\n".join([title, *(f"  {line}" for line in (*shown, *more))]), pytrace=False)
        return results[0]


_SHOWN = 8


def differences(first: Any, second: Any, *, rtol: float, atol: float, where: str = "") -> Iterator[Difference]:
    """Yield where two results differ."""
    if type(first).__module__ == "numpy" or type(second).__module__ == "numpy":
        yield from _arrays(first, second, rtol, atol, where)
    elif isinstance(first, dict) and isinstance(second, dict):
        if list(first) != list(second) and set(first) != set(second):
            yield Difference(
                where=where, first=sorted(map(repr, first)), second=sorted(map(repr, second)), reason="has other keys"
            )
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
            yield Difference(where=where, first=first, second=second, size=abs(second - first))
    elif type(first) is not type(second):
        yield Difference(where=where, first=first, second=second, reason="has another type")
    elif first != second:
        size = abs(second - first) if isinstance(first, int) and not isinstance(first, bool) else None
        yield Difference(where=where, first=first, second=second, size=size)


def _close(first: complex, second: complex, rtol: float, atol: float) -> bool:
    if first == second or (first != first and second != second):  # noqa: PLR0124 - NaN is like NaN
        return True
    finite = all(math.isfinite(each) for one in (first, second) for each in (complex(one).real, complex(one).imag))
    return finite and abs(second - first) <= atol + rtol * abs(first)


def _arrays(first: Any, second: Any, rtol: float, atol: float, where: str) -> Iterator[Difference]:
    import numpy as np

    one, other = np.asarray(first), np.asarray(second)
    if one.shape != other.shape:
        yield Difference(where=where, first=one.shape, second=other.shape, reason="has another shape")
        return
    if one.dtype != other.dtype:
        yield Difference(where=where, first=one.dtype.name, second=other.dtype.name, reason="has another type")
        return
    numeric = one.dtype.kind in "fc"
    wrong = ~np.isclose(other, one, rtol=rtol, atol=atol, equal_nan=True) if numeric else np.asarray(one != other)
    count = int(wrong.sum())
    if not count:
        return
    with np.errstate(all="ignore"):
        if one.dtype.kind in "fciu":
            wide = one.astype(np.complex128 if one.dtype.kind == "c" else np.float64)
            sizes = np.where(wrong, np.abs(other.astype(wide.dtype) - wide), -1.0)
            sizes = np.where(np.isnan(sizes), np.inf, sizes)
            at = np.unravel_index(int(np.argmax(sizes)), one.shape)
            size: float | None = float(sizes[at])
        else:
            at = np.unravel_index(int(np.argmax(wrong)), one.shape)
            size = None
    index = "" if one.ndim == 0 else f"[{', '.join(str(int(each)) for each in at)}]"
    yield Difference(
        where=f"{where}{index}",
        first=one[at].item(),
        second=other[at].item(),
        size=size,
        count=count,
        of=one.size,
    )

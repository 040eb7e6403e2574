"""`ZE_AFFINITY_MASK` as NEO reads it, and `ONEAPI_DEVICE_SELECTOR` as SYCL does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.model.visibility.tokens import Selection, whole_integer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucoexist.model.machine import Gpu

__all__ = ["select_level_zero", "select_sycl"]

_BACKENDS = frozenset({"level_zero", "opencl", "cuda", "hip", "native_cpu", "*"})
_UINT32 = 1 << 32


def select_level_zero(value: str, gpus: Sequence[Gpu], *, flat: bool = False) -> Selection:
    """Apply the mask to the Intel GPUs in NEO's order. Empty or `default` is all.

    An index out of range is skipped and does not end the list; what is no number throws. The order of the list
    counts only where the hierarchy is FLAT; a tile (`0.1`) counts as its GPU.
    """
    if value in {"", "default"}:
        return Selection(devices=tuple(gpu.key for gpu in gpus))
    chosen: list[int] = []
    skipped: list[str] = []
    for entry in value.split(","):
        parsed = whole_integer(entry.split(".")[0])
        if parsed is None:
            return Selection(remark=f"{entry!r} is no number and makes Level Zero throw", throws=True)
        # stoul accepts a sign and wraps; the result is cut to 32 bits.
        index = parsed[0] % _UINT32
        if index >= len(gpus):
            skipped.append(entry)
        elif index not in chosen:
            chosen.append(index)
    order = chosen if flat else sorted(chosen)
    remark = f"{', '.join(skipped)} is out of range and skipped" if skipped else None
    return Selection(devices=tuple(gpus[index].key for index in order), remark=remark)


def select_sycl(value: str, gpus: Sequence[Gpu]) -> Selection | None:
    """Apply the selector to the Intel GPUs that Level Zero shows.

    Terms are `backend:filter,filter`, separated by `;`, discarding with `!` in front. None when the value does not
    say which GPUs it leaves: OpenCL's numbers count devices that are not known here.
    """
    accepted: set[int] = set()
    discarded: set[int] = set()
    only_discards = True
    for term in value.split(";"):
        discards = term.startswith("!")
        backend, colon, filters = term.removeprefix("!").partition(":")
        if not colon or not filters or ":" in filters or backend.lower() not in _BACKENDS:
            return Selection(remark=f"{term!r} is malformed and makes SYCL abort", throws=True)
        only_discards = only_discards and discards
        if backend.lower() not in {"level_zero", "opencl", "*"}:
            continue
        chosen: set[int] = set()
        for text in filters.lower().split(","):
            if backend.lower() == "opencl" and text.split(".")[0].isdecimal():
                return None
            found = _filtered(text, len(gpus))
            if found is None:
                return Selection(remark=f"{text!r} is malformed and makes SYCL abort", throws=True)
            chosen |= found
        (discarded if discards else accepted).update(chosen)
    if only_discards:
        accepted = set(range(len(gpus)))
    return Selection(devices=tuple(gpus[index].key for index in sorted(accepted - discarded)))


def _filtered(text: str, count: int) -> set[int] | None:
    if text in {"gpu", "*"} or text.startswith("*."):
        return set(range(count))
    if text in {"cpu", "fpga"}:
        return set()
    number = text.split(".", maxsplit=1)[0]
    if not (number.isdecimal() and number.isascii()):
        return None
    return {int(number)} & set(range(count))

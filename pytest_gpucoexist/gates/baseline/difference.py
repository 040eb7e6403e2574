"""Compare a machine with its baseline: what is known on both sides, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pytest_gpucoexist.gates.baseline.order import sorted_by_card
from pytest_gpucoexist.gates.baseline.record import baseline_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.baseline.record import Baseline, BaselineGpu
    from pytest_gpucoexist.host.base import Host
    from pytest_gpucoexist.model.machine import Machine

__all__ = ["Difference", "diff", "differences"]

_SMALLER = 0.99
"""Drivers keep a little more or less of the memory from release to release."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that is not as it was. `key` is None for the machine as a whole.

    `missing`: a GPU is not there; `worse`: it got less; `changed`: it is another; `better`: more than before.
    """

    kind: Literal["missing", "worse", "changed", "better"]
    field: str
    words: str
    key: str | None = None
    before: str = ""
    after: str = ""


def diff(baseline: Baseline, host: Host, machine: Machine) -> list[Difference]:
    """Say what has changed since the baseline."""
    return differences(baseline, baseline_of(host, machine, baseline.machine_id))


def differences(before: Baseline, after: Baseline) -> list[Difference]:
    """Compare two baselines."""
    old, new = ({gpu.key: gpu for gpu in each.gpus} for each in (before, after))
    moved = {gpu.uuid: gpu.key for gpu in after.gpus if gpu.uuid}
    found: list[Difference] = []
    for key, gpu in old.items():
        if key not in new:
            found.append(_missing(gpu, moved.get(gpu.uuid or "")))
        else:
            found += _compare(gpu, new[key])
    came = {each.after for each in found if each.field == "address"}
    found += [
        Difference(kind="changed", field="gpu", key=key, words=f"{_name(gpu)} is new", after=_name(gpu))
        for key, gpu in new.items()
        if key not in old and key not in came and gpu.compute
    ]
    found += _order(before, after)
    found += _text("bios_version", None, "the firmware (BIOS)", before.bios_version, after.bios_version)
    return found


def _missing(gpu: BaselineGpu, now_at: str | None) -> Difference:
    if now_at is not None:
        words = f"{_name(gpu)} has moved to {now_at}"
        return Difference(kind="changed", field="address", key=gpu.key, words=words, before=gpu.key, after=now_at)
    kind: Literal["missing", "changed"] = "missing" if gpu.compute else "changed"
    return Difference(kind=kind, field="gpu", key=gpu.key, words=f"{_name(gpu)} is missing", before=_name(gpu))


def _compare(old: BaselineGpu, new: BaselineGpu) -> Iterator[Difference]:
    ids = [(each.vendor_id, each.device_id) for each in (old, new)]
    if all(None not in pair for pair in ids) and ids[0] != ids[1]:
        before, after = (f"{vendor}:{device}" for vendor, device in ids)
        words = f"another card: {_name(new)}, where {_name(old)} was"
        yield Difference(kind="changed", field="device_id", key=old.key, words=words, before=before, after=after)
        return
    uuids = _same_source(old, new, "uuid")
    if uuids is not None and uuids[0] != uuids[1]:
        words = f"{_name(new)}: another card of the same model"
        yield Difference(kind="changed", field="uuid", key=old.key, words=words, before=uuids[0], after=uuids[1])
    yield from _text("driver", old, f"{_name(new)}: the driver", old.driver, new.driver or "none")
    for field, what in (("driver_version", "driver's version"), ("vbios_version", "VBIOS")):
        values = _same_source(old, new, field)
        if values is not None:
            yield from _text(field, old, f"{_name(new)}: the {what}", *values)
    nodes = [None if each.numa_node is None else str(each.numa_node) for each in (old, new)]
    yield from _text("numa_node", old, f"{_name(new)}: the NUMA node", *nodes)
    yield from _amounts(old, new)


def _same_source(old: BaselineGpu, new: BaselineGpu, field: str) -> tuple[str, str] | None:
    """Return what one and the same source said then and says now; None where no source told both times.

    Files come first: their words do not change with the release of a library.
    """
    before, after = old.seen.get(field, {}), new.seen.get(field, {})
    return next(((before[source], after[source]) for source in after if source in before), None)


def _amounts(old: BaselineGpu, new: BaselineGpu) -> Iterator[Difference]:
    for field, what, unit in (
        ("max_width", "the narrowest link on its path", "lanes"),
        ("max_speed_gtps", "the slowest link on its path", "GT/s"),
        ("width", "its link", "lanes"),
    ):
        before, after = getattr(old, field), getattr(new, field)
        if before and after and before != after:
            words = f"{_name(new)}: {what} had {before:g} {unit}, now {after:g}"
            yield _amount(field, old, words, (before, after), f"{before:g} {unit}", f"{after:g} {unit}")
    sizes = [int(text) for text in _same_source(old, new, "memory_total_bytes") or () if text.isdecimal()]
    if len(sizes) == 2 and all(sizes) and not _SMALLER <= sizes[1] / sizes[0] <= 1 / _SMALLER:
        shown = [f"{size / 2**30:.1f} GiB" for size in sizes]
        words = f"{_name(new)}: memory was {shown[0]}, now {shown[1]}"
        yield _amount("memory", old, words, (sizes[0], sizes[1]), *shown)


def _amount(
    field: str, gpu: BaselineGpu, words: str, values: tuple[float, float], before: str, after: str
) -> Difference:
    kind: Literal["worse", "better"] = "worse" if values[1] < values[0] else "better"
    return Difference(kind=kind, field=field, key=gpu.key, words=words, before=before, after=after)


def _text(field: str, gpu: BaselineGpu | None, what: str, before: str | None, after: str | None) -> list[Difference]:
    if before is None or after is None or before == after:
        return []
    words = f"{what} was {before}, now {after}"
    key = gpu.key if gpu is not None else None
    return [Difference(kind="changed", field=field, key=key, words=words, before=before, after=after)]


def _order(before: Baseline, after: Baseline) -> list[Difference]:
    orders = [sorted_by_card((gpu.key, gpu.card) for gpu in each.gpus) for each in (before, after)]
    common = set(orders[0]) & set(orders[1])
    old, new = ([key for key in order if key in common] for order in orders)
    if old == new:
        return []
    words = f"DRM numbers the GPUs in another order: it was {', '.join(old)}, now {', '.join(new)}"
    return [
        Difference(kind="changed", field="card_order", words=words, before=", ".join(old), after=", ".join(new)),
    ]


def _name(gpu: BaselineGpu) -> str:
    return f"{gpu.key} ({gpu.name})" if gpu.name else f"{gpu.key} ({gpu.vendor_id or gpu.vendor})"

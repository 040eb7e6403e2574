"""Words about a wait: who holds what, since when. Pure functions over values."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpucoexist.leases.lease import Holder, Waiting
    from pytest_gpucoexist.model.groups import Group
    from pytest_gpucoexist.model.machine import Machine

__all__ = ["gave_up_words", "holder_words", "span", "waiting_words"]


def span(seconds: float) -> str:
    """Write a time as people say it.

    >>> span(0.4), span(42), span(610), span(7300)
    ('0 s', '42 s', '10 min', '2 h 1 min')
    """
    if seconds < 120:
        return f"{int(seconds)} s"
    minutes = int(seconds // 60)
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if minutes % 60 else f"{minutes // 60} h"


def waiting_words(owner: str, waiting: Waiting, groups: Sequence[Group], machine: Machine, now_s: float) -> str:
    """Say that a test waits, for what, and who has it."""
    wanted = _wanted(groups, machine)
    return f"{owner} has waited {span(waiting.waited_s)} for {wanted}{_whom(waiting, machine, now_s, wanted)}"


def gave_up_words(waiting: Waiting, groups: Sequence[Group], machine: Machine, now_s: float, wait_s: float) -> str:
    """Say that a test has waited long enough."""
    wanted = _wanted(groups, machine)
    return (
        f"{wanted} did not become free within {wait_s:g} s (--gpu-wait){_whom(waiting, machine, now_s, wanted)}; "
        "`gpucoexist leases` shows who has what"
    )


def holder_words(holder: Holder, now_s: float) -> str:
    """Describe who has a device: `alice's pytest (PID 4711, gw1, test_a.py::test_x), for 12 min, 8 GiB`."""
    from pytest_gpucoexist.model.arguments import format_bytes

    whose = holder.user or (None if holder.uid is None else f"uid {holder.uid}")
    program = holder.program or {"lease": "a test session", "unknown": "somebody"}.get(holder.kind, "a process")
    details = [f"PID {holder.pid}"] if holder.pid is not None else []
    details += [each for each in (holder.worker, holder.test) if each]
    text = program
    if whose:
        text = f"{whose}'s {program}" if holder.program else f"{program} of {whose}"
    text += f" ({', '.join(details)})" if details else ""
    if holder.since_s is not None:
        text += f", for {span(max(0.0, now_s - holder.since_s))}"
    if holder.memory_bytes is not None:
        text += f", {format_bytes(holder.memory_bytes)}"
    return text


_VERBS = {
    "lease": "held by",
    "elsewhere": "used without a lease by",
    "leftover": "waiting for memory that a holder left behind:",
    "unknown": "held by",
}


def _each(holders: Iterable[Holder], machine: Machine, now_s: float, wanted: str) -> list[str]:
    """Name each holder once, with all that it has, unless that is just what is `wanted`."""
    ids = {gpu.key: gpu.id for gpu in machine.gpus}
    devices: dict[str, list[str]] = {}
    for holder in holders:
        has = f"{_VERBS[holder.kind]} {holder_words(holder, now_s)}"
        devices.setdefault(has, []).append(ids.get(holder.key, holder.key))
    if len(devices) == 1 and wanted in {" and ".join(names) for names in devices.values()}:
        return list(devices)
    return [f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} {has}" for has, names in devices.items()]


def _whom(waiting: Waiting, machine: Machine, now_s: float, wanted: str) -> str:
    parts = _each(waiting.holders, machine, now_s, wanted)
    if waiting.ahead:
        parts.append(f"{waiting.ahead} before it in the queue")
    return f": {'; '.join(parts)}" if parts else ""


def _wanted(groups: Sequence[Group], machine: Machine) -> str:
    ids = {gpu.key: gpu.id for gpu in machine.gpus}
    texts = []
    for group in groups:
        names = [ids.get(key, key) for key in group.candidates]
        count = group.requirement.count
        few = count >= len(names) or (count == 1 and len(names) < 4)
        texts.append((" and " if count > 1 else " or ").join(names) if few else f"{count} of {', '.join(names)}")
    return " and ".join(dict.fromkeys(texts))

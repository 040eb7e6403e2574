"""Judge what was verified: which device a wrong byte is laid to, and the words for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.findings import Finding, failed, passed
from pytest_gpucoexist.gates.transfer.looking import arrow, gpus_of, nothing, tried_vendors, untried_of
from pytest_gpucoexist.model.trials import HOST
from pytest_gpucoexist.model.verdicts import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import Gpu
    from pytest_gpucoexist.model.trials import Integrity, Wrong

__all__ = ["evidence_of", "integrity_of", "is_empty", "judge_integrity", "right", "wrong_finding"]

_HOPS = {
    "loading": "while the source was loaded",
    "first": "on the way from the source",
    "second": "on the way to the target",
    "reading": "while the target was read back",
}
_NOTHING_ARRIVED = {"zeros", "untouched", "truncated", "stale"}
_SHOWN = 4


def judge_integrity(subject: Subject, kind: str, *vendors: str) -> Iterator[Finding]:
    """Judge every way of a kind. A wrong byte takes out the device that it is laid to."""
    some = False
    for each in integrity_of(subject, kind, *vendors):
        some = True
        if each.wrong:
            yield from _by_blame(subject, each)
        else:
            yield right(subject, each)
    for finding in untried_of(subject, ("open", kind), *vendors):
        some = True
        yield finding
    if not some:
        yield nothing(subject.trials)


def integrity_of(subject: Subject, kind: str, *vendors: str) -> list[Integrity]:
    """Return what was verified of a kind, where one end is of these vendors (all: none named)."""
    found = subject.trials.integrity if subject.trials is not None else ()
    return [
        each for each in found if each.kind == kind and (not vendors or tried_vendors(subject, each) & set(vendors))
    ]


def is_empty(one: Integrity) -> bool:
    """Whether a copy between peers reported success and moved nothing: all that is wrong is that nothing arrived."""
    return bool(one.wrong) and all(each.kind in _NOTHING_ARRIVED for each in one.wrong)


def wrong_finding(one: Integrity, wrong: tuple[Wrong, ...], gpus: list[Gpu]) -> Finding:
    """Say what was wrong with one way."""
    first = wrong[0]
    where = f" {_HOPS[first.hop]}" if first.hop is not None else ""
    words = f"{arrow(one.source, one.target)} ({one.route}): {first.kind}{where}: {first.sentence}"
    return failed(words, *evidence_of(one, wrong), on=gpus)


def evidence_of(one: Integrity, wrong: tuple[Wrong, ...]) -> list[Evidence]:
    """Give what was found wrong, the first few."""
    way = arrow(one.source, one.target)
    return [
        Evidence(
            source=f"{way}, {_size(each)}, seed {one.seed}",
            found=f"{each.kind}: {each.sentence}",
            expected="every byte as it was sent",
        )
        for each in wrong[:_SHOWN]
    ]


def _size(wrong: Wrong) -> str:
    return "size not told" if wrong.size_bytes is None else f"{wrong.size_bytes:,} bytes"


def right(subject: Subject, one: Integrity, words: str = "everything arrived as it was sent") -> Finding:
    """Say that one way is right."""
    evidence = Evidence(
        source=arrow(one.source, one.target),
        found=f"{len(one.sizes)} sizes up to {max(one.sizes, default=0):,} bytes, by way of {one.route}",
        expected="every byte as it was sent",
    )
    return passed(words, evidence, on=gpus_of(subject, one.source, one.target))


def _by_blame(subject: Subject, one: Integrity) -> Iterator[Finding]:
    """Give a finding for each end that is to blame: by the hop, and both where that cannot be told."""
    groups: dict[tuple[str, ...], list[Wrong]] = {}
    for each in one.wrong:
        groups.setdefault(_blamed(one, each), []).append(each)
    for keys, wrong in groups.items():
        yield wrong_finding(one, tuple(wrong), gpus_of(subject, *keys))


def _blamed(one: Integrity, wrong: Wrong) -> tuple[str, ...]:
    ends = tuple(key for key in dict.fromkeys((one.source, one.target)) if key != HOST)
    if wrong.hop is None or len(ends) == 1:
        return ends
    return (one.source,) if wrong.hop in {"loading", "first"} else (one.target,)

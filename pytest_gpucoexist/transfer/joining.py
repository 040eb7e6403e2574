"""Runs of an area put together again: across the blocks and pieces in which they were read, to a bounded number."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_gpucoexist.transfer.content import NEAR
from pytest_gpucoexist.transfer.labels import FLIPPED
from pytest_gpucoexist.transfer.words import STREAM_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucoexist.transfer.content import Content, Run
    from pytest_gpucoexist.transfer.finding import Kind
    from pytest_gpucoexist.transfer.frame import Area
    from pytest_gpucoexist.transfer.words import Words

__all__ = ["MOST", "together"]

MOST = 16
"""Beyond so many runs of an area those alike are one, with a count, in the range of all; then those of one kind."""


def together(words: Words, area: Area, runs: list[Run], kind: Callable[[Run], Kind]) -> list[Run]:
    """Join what is one, and keep the number small: `MOST`, or one of each kind."""
    runs = _touching(_absorbed(words, area, sorted(runs, key=lambda run: run.first)))
    for key in (_key, kind):
        if len(runs) > MOST:
            runs = _grouped(runs, key)
    return runs


def _absorbed(words: Words, area: Area, runs: list[Run]) -> list[Run]:
    """Give a run of a few bytes at the edge of a block to its neighbour in the next, if that predicts these bytes."""
    kept: list[Run] = []
    for at, run in enumerate(runs):
        beside = [*kept[-1:], *runs[at + 1 : at + 2]] if run.bytes_found and run.content is None else []
        for other in beside:
            touches = other.content is not None and other.low <= run.end and run.first <= other.high
            if touches and _predicts(words, area, other.content, run):
                run = replace(run, label=other.label, content=other.content, within=None, bits=0)  # noqa: PLW2901
                break
        kept.append(run)
    return kept


def _predicts(words: Words, area: Area, content: Content | None, run: Run) -> bool:
    if content is None:
        return False
    if content.byte is not None:
        return set(run.bytes_found) == {content.byte}
    place = area.start + run.first + content.shift
    return (
        0 <= place < STREAM_BYTES - NEAR
        and words.read(content.epoch, place, len(run.bytes_found)).tobytes() == run.bytes_found
    )


def _touching(runs: list[Run]) -> list[Run]:
    """Join alike runs that touch, or nearly, and those that were already many places each."""
    joined: list[Run] = []
    for run in runs:
        for at in range(len(joined) - 1, max(-1, len(joined) - 4), -1):
            other = joined[at]
            near = run.low <= other.high + NEAR
            if other.key == run.key and (near or max(run.places, other.places) > MOST):
                joined[at] = _join(other, run, apart=not near or run.label == FLIPPED)
                break
        else:
            joined.append(run)
    return joined


def _grouped(runs: list[Run], key: Callable[[Run], object]) -> list[Run]:
    first: dict[object, Run] = {}
    for run in runs:
        one = first.get(key(run))
        first[key(run)] = run if one is None else _join(one, run, apart=True)
    return list(first.values())


def _join(one: Run, other: Run, *, apart: bool) -> Run:
    """Make one run of two, the first of which begins first; `apart` when right bytes are between."""
    return replace(
        one,
        end=max(one.end, other.end),
        high=max(one.high, other.high),
        bits=one.bits + other.bits,
        places=one.places + other.places - (not apart),
        bytes_found=b"",
    )


def _key(run: Run) -> object:
    return run.key

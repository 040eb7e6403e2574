"""Faults that can be ordered of drivers without hardware, and what a verified copy must say of each.

A fault strikes in one phase of a verified copy: when the source is loaded, at the first or the second hop, or when the
target is read back. Kinds are those of `transfer.finding`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pytest_gpucoexist.transfer.ring import chunk_for

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["SILENT", "THOROUGH", "Phase", "Silent", "chunks", "key_and_place", "misnamed"]

THOROUGH = int(os.environ.get("GPUCOEXIST_FAULTS", "0")) >= 200
"""Whether every case runs, or those that others do not stand for."""

Phase = Literal["loading", "first", "second", "reading", "local", "peer"]

SLOT_BYTES = 4 << 20
_BYTES_PER_S = 8e9  # with which `staging.verified` chooses its chunks


@dataclass(frozen=True, slots=True, kw_only=True)
class Silent:
    """A fault that no call reports. One of `must` is named, and nothing that is not in `must` or `may`.

    `may` are other ends of the same fault: what was not overwritten, or noise that looks like flipped bits.
    """

    must: frozenset[str]
    may: frozenset[str] = frozenset()


def _silent(must: str, may: str = "") -> Silent:
    return Silent(must=frozenset(must.split()), may=frozenset(may.split()))


SILENT: dict[str, Silent] = {
    "flip": _silent("flipped"),
    "drop": _silent("untouched"),
    # The words of an earlier copy: its data, or what lay under them; torn where the last bytes are right by chance.
    "stale": _silent("stale foreign torn"),
    "torn": _silent("torn truncated"),
    "shift": _silent("shifted shifted_bytes", "torn truncated misplaced"),
    "zeros": _silent("zeros"),
    "noise": _silent("garbage", "flipped"),
}
"""By the first word of an action."""

_ZONES = frozenset({"underrun", "overrun"})
# Loading and reading are copies of everything, the red zones too; what is under the reading has a name of its own.
_UNREAD = {"drop": frozenset({"unread"}), "torn": frozenset({"unread", "flipped"}), "shift": frozenset({"unread"})}


def chunks(size: int) -> int:
    """Return in how many chunks a verified copy of this size goes through the ring."""
    return -(-size // chunk_for(size, _BYTES_PER_S, SLOT_BYTES))


def key_and_place(phase: Phase, source: str, target: str, chunk: int = 0) -> tuple[str, int]:
    """Return the copy engine of a phase and at the how manieth of its copies, when `chunk` shall be struck."""
    return {
        "loading": (f"{source}.copy.h2d", 1),
        "first": (f"{source}.copy.d2h", 1 + chunk),
        "second": (f"{target}.copy.h2d", 2 + chunk),  # the first one wrote what lies under the destination
        "reading": (f"{target}.copy.d2h", 1),
        "local": (f"{source}.copy.d2d", 1),
        "peer": (f"{source}.copy.peer.{target.rpartition('.')[2]}", 1),
    }[phase]


def misnamed(phase: Phase, action: str, found: Collection[tuple[str, str | None]]) -> str | None:
    """Say what is not right in the kinds and hops that were found after a fault has struck; None when all is."""
    word = action.partition(" ")[0]
    must, may = SILENT[word].must, SILENT[word].may
    if phase == "reading":
        must |= _UNREAD.get(word, frozenset())
        may |= _ZONES | {"garbage", "misplaced"}
    kinds = {kind for kind, _ in found}
    if not kinds & must or kinds - must - may:
        return f"{action} at {phase} was called {sorted(kinds)}, not {sorted(must)}"
    hops = {hop for _, hop in found}
    # Stale words wait for a copy that they fit, so that the phase is not known before.
    wanted = {None} if phase in {"local", "peer"} else {phase}
    if word != "stale" and hops != wanted:
        return f"{action} at {phase} was seen at {sorted(map(str, hops))}"
    return None

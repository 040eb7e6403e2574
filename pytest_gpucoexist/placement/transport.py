"""What crosses between a worker and the controller about the tests of a suite: a table of all of them in a few objects.

execnet takes builtin types only, and takes long for lists: codes travel as bytes (0.9 ms for 20,000 tests, against
45 ms as a list of integers). Needs, units and machines stand in the table once, as text.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pytest_gpucoexist.model.codec import decode, encode
from pytest_gpucoexist.model.requirement import Need

__all__ = [
    "AWAITED",
    "CANCEL",
    "ENDING",
    "OPEN",
    "OVER",
    "RAN",
    "REFUSED",
    "RIDER",
    "RUN",
    "TABLE",
    "UNRUN",
    "Over",
    "Table",
    "TableUnit",
    "code_bytes",
]

TABLE = "tests"
"""Worker → controller, before xdist's own list of ids: the table of what this worker collected."""

OVER = "over"
"""Worker → controller: a position of its queue is over, see `Over`."""

RIDER = "_gpucoexist_over"
"""Attribute of a test's last report that says the same, where nobody waits for it: a message less."""

ENDING = "ending"
"""Worker → controller: the test at this position has passed and is torn down next; its devices are free in a moment.

Told only of a test that is awaited: each message costs the worker a tenth of a millisecond while it holds the devices.
"""

AWAITED = "awaited"
"""Controller → worker: another worker has been assigned what the test at this position holds."""

RUN = "run"
"""Controller → worker: a position may run: [position, keys per group, waits, refusals, soon, awaited].

`waits`: the worker waits for the lease itself; `soon`: a teardown frees these devices in a moment; `awaited`: as above.
`refusals` counts what the worker had refused by then: it does not begin on a word that crossed its refusal.
"""

CANCEL = "cancel"
"""Controller → worker: this position was a prediction that did not come true: [position, whether everything ends].

With the latter, the worker tears down and gives back what its scopes keep: it has nothing to do, and others may wait.
"""

OPEN = "open"
"""Controller → worker: nothing is planned in this run; every position runs, as without a plan."""

RAN, UNRUN, REFUSED = "ran", "unrun", "refused"
"""How a position ended: its test ran; it was cancelled; other processes of the machine hold its devices."""


Over = tuple[int, str, float, float, float, float, bool, "list[str]"]
"""Position, how it ended, seconds held, of which waited, of set-up, of all phases, whether it passed, devices' keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableUnit:
    """Tests of a worker's collection that stay together. `need` is what the worker holds between them, if anything."""

    name: str
    need: int | None = None
    divisible: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """What a worker collected, in the order of its ids: 0 stands for none, n for the n-th of `needs` and of `units`.

    `machine` is the JSON of the worker's machine where that is not the controller's.
    """

    needs: tuple[Need, ...]
    need_codes: Sequence[int]
    units: tuple[TableUnit, ...] = ()
    unit_codes: Sequence[int] = ()
    machine: str | None = None

    def pack(self) -> list[Any]:
        """Return the same in builtin types that execnet takes."""
        return [
            json.dumps([encode(need) for need in self.needs]),
            code_bytes(self.need_codes),
            json.dumps([[unit.name, unit.need, unit.divisible] for unit in self.units]),
            code_bytes(self.unit_codes),
            self.machine,
        ]

    @classmethod
    def unpack(cls, packed: Sequence[Any]) -> Table:
        """Read what `pack` wrote, on either end of the wire."""
        needs, need_codes, units, unit_codes, machine = packed
        return cls(
            needs=tuple(decode(Need, need) for need in json.loads(needs)),
            need_codes=_codes(need_codes),
            units=tuple(
                TableUnit(name=name, need=need, divisible=divisible) for name, need, divisible in json.loads(units)
            ),
            unit_codes=_codes(unit_codes),
            machine=machine,
        )


def code_bytes(codes: Sequence[int]) -> bytes:
    """Write codes as four bytes each, the lowest first: workers may run on another kind of processor."""
    numbers = codes if isinstance(codes, array) else array("I", codes)
    if _SWAPPED:  # pragma: no cover - a processor that writes the highest byte first
        numbers = array("I", numbers)
        numbers.byteswap()
    return numbers.tobytes()


def _codes(data: bytes) -> Sequence[int]:
    numbers = array("I")
    numbers.frombytes(data)
    if _SWAPPED:  # pragma: no cover - a processor that writes the highest byte first
        numbers.byteswap()
    return numbers


_SWAPPED = array("I", [1]).tobytes() != b"\1\0\0\0"

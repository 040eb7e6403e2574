"""A log of any size: what a rule matches is kept with the lines around it, and the rest is let go, block by block."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from pytest_gpucoexist.kernellog.anchors import Anchors
from pytest_gpucoexist.kernellog.parse import parse_log
from pytest_gpucoexist.kernellog.places import address_in
from pytest_gpucoexist.kernellog.records import Record
from pytest_gpucoexist.kernellog.rules import RULES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import BinaryIO

__all__ = ["Sifted", "blocks_of", "sifted"]

_BLOCK = 4 << 20

# What `Context` looks at: a few lines on both sides, a firmware's record down, and whether something came right later.
_BEFORE, _AFTER = 8, 40
_LATER = re.compile(
    r": ready \d+ms after|BAR \d+.*assigned|\bInitialized \w+ .* for |GPU at (?:PCI:)?[\da-fA-F:.]+: GPU-"
)
_GAP = [Record(0, "")] * _BEFORE

_MOST_OF_A_KIND = 10_000
"""Lines of one rule, device and Xid; a link that repairs errors all night prints millions."""

_ANCHORS = Anchors(RULES)


class Sifted(NamedTuple):
    """The records that matter, and how many like them were let go."""

    records: tuple[Record, ...]
    left_out: int


def blocks_of(file: BinaryIO, rest: bytes = b"") -> Iterator[str]:
    """Read `rest` and a file in blocks of whole lines; a message's indented further lines stay with it."""
    while data := file.read(_BLOCK):
        data = rest + data
        cut = data.rfind(b"\n") + 1
        while 0 < cut < len(data) and data[cut : cut + 1] in b" \t":
            cut = data.rfind(b"\n", 0, cut - 1) + 1
        if cut == 0 and len(data) < 2 * _BLOCK:
            rest = data
            continue
        cut = cut or len(data)
        yield data[:cut].decode("utf-8", "replace")
        rest = data[cut:]
    if rest:
        yield rest.decode("utf-8", "replace")


def sifted(blocks: Iterable[str]) -> Sifted:
    """Return of all records those that a rule matches and those that such a line may need, numbered as in the whole."""
    kept: list[Record] = []
    kinds: Counter[tuple[int, str | None, str | None]] = Counter()
    lines = 0
    for block in blocks:
        records = parse_log(block)
        before = -1
        for index in sorted(_wanted(records, kinds)):
            if index > before + 1:
                kept += _GAP
            kept.append(records[index]._replace(number=records[index].number + lines))
            before = index
        lines += block.count("\n")
    return Sifted(tuple(kept), sum(count - _MOST_OF_A_KIND for count in kinds.values() if count > _MOST_OF_A_KIND))


def _wanted(records: Sequence[Record], kinds: Counter[tuple[int, str | None, str | None]]) -> set[int]:
    messages = [record.message for record in records]
    wanted = {*range(min(_AFTER, len(records))), *range(max(0, len(records) - _AFTER), len(records))}
    for index, message in enumerate(messages):
        if (" ready " in message or "assigned" in message or "itialized " in message or "GPU at " in message) and (
            _LATER.search(message)
        ):
            wanted.add(index)
    let_go = set()
    for index, positions in _ANCHORS.candidates(messages).items():
        for position in positions:
            match = RULES[position].search(messages[index])
            if match is None:
                continue
            groups = match.groupdict()
            kind = position, address_in(messages[index], groups), groups.get("xid")
            kinds[kind] += 1
            if kinds[kind] > _MOST_OF_A_KIND:
                let_go.add(index)
            else:
                wanted.update(range(max(0, index - _BEFORE), min(len(records), index + _AFTER + 1)))
            break
    return wanted - let_go

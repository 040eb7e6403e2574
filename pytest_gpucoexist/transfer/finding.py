"""A finding: what is wrong with one range of a region after a transfer, as a value and as a sentence."""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields
from typing import Any, Literal, get_args

from pytest_gpucoexist.transfer.frame import Part, Region

__all__ = ["KINDS", "Finding", "Kind"]

Kind = Literal[
    "flipped",  # a few bits of a word
    "untouched",  # nothing arrived: the prefill of this very place, all of it or whole slots
    "truncated",  # the prefill from some byte to the end
    "torn",  # part new, part old, with a boundary inside
    "stale",  # data of an earlier transfer
    "stale_slot",  # data of this transfer, from a turn of the ring before
    "unwritten_slot",  # the prefill of the ring: what should have been written to a slot was not
    "unread",  # the prefill of the host buffer into which the region was read back
    "shifted_bytes",  # data of this transfer, displaced by a number of bytes that is no multiple of 8
    "shifted",  # data of this transfer, displaced by words or pages
    "misplaced",  # data of another place of this transfer, or of another region
    "foreign",  # what belongs to another transfer and is not its data, or to a later one
    "zeros",
    "constant",  # one byte over and over; 0xFF is what a device that is gone reads as
    "overrun",  # written in the red zone behind
    "underrun",  # written in the red zone in front
    "garbage",  # none of these
]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One kind of fault in one range. All fields are builtins: `values()` travels over execnet.

    `offset_bytes` counts from the first byte of the part: of the payload, of the red zone, in a ring of the slot;
    `region_offset_bytes` is the same place counted from the first byte of the region.
    `expected` and `found` are the first wrong word, little-endian, which begins at byte `word_offset_bytes` and is
    filled up with right bytes where the part begins or ends inside it. `found_epoch` and `found_byte` say of which
    stream the first wrong byte is, and where there; `displaced_bytes` is that place less the right one where the stream
    is the right one. `bits` is how many bits are flipped, `byte` the byte that is repeated, `places` in how many ranges
    within this one the same was found. `text` is one sentence for people.
    """

    kind: Kind
    region: Region
    part: Part
    slot: int | None
    offset_bytes: int
    region_offset_bytes: int
    size_bytes: int
    word_offset_bytes: int
    expected: int
    found: int
    found_epoch: int | None
    found_byte: int | None
    displaced_bytes: int | None
    bits: int
    byte: int | None
    places: int
    text: str

    def __str__(self) -> str:
        """Return the sentence."""
        return self.text

    @property
    def end_bytes(self) -> int:
        """Where the range ends, counted as `offset_bytes` is."""
        return self.offset_bytes + self.size_bytes

    def values(self) -> tuple[Any, ...]:
        """Return the finding as a tuple of builtins."""
        return astuple(self)

    @classmethod
    def of(cls, values: tuple[Any, ...]) -> Finding:
        """Make the finding whose `values()` came from another process."""
        return cls(**dict(zip((field.name for field in fields(cls)), values, strict=True)))

"""What is found where something else should be: a content, and the run of bytes that hold it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["NEAR", "Content", "Run"]

NEAR = 24
"""Bytes: a run is followed so far beyond its words, and what is so near and alike is one run: three words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """One byte over and over, or the stream of an epoch: its byte p + `shift` where p of the expected one belongs."""

    epoch: int = -1
    shift: int = 0
    byte: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Wrong bytes of an area, from `first` to `end`, and what is there: a `Content`, flipped bits or unknown.

    The content predicts what is there from `low` to `high`: bytes that are right by it and by what is expected may be
    either's. `within` is the content whose bits are flipped where that is not the expected one. `word_at` is where in
    the area the first wrong word begins, `expected` and `found` are that word; `bytes_found` are those of a short run.
    """

    first: int
    end: int
    low: int
    high: int
    label: int
    content: Content | None = None
    within: Content | None = None
    bits: int = 0
    places: int = 1
    word_at: int = 0
    expected: int = 0
    found: int = 0
    bytes_found: bytes = b""

    @property
    def key(self) -> tuple[object, ...]:
        """What two runs have in common that are one."""
        return (self.label, self.content, self.within)

"""Both sides of a staged copy, each in a process of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_gpucoexist.transfer.ring import Pace
from tests.transfer.remote import PATIENCE_S, Remote

if TYPE_CHECKING:
    from pytest_gpucoexist.transfer.ring import Passed
    from pytest_gpucoexist.transfer.segment import Segment

CALM = Pace(copy_s=PATIENCE_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The device of a side, and what its process needs to find it."""

    runtime: str = "host"
    pci_address: str | None = None
    environ: dict[str, str] = field(default_factory=dict)
    options: dict[str, int] = field(default_factory=dict)


class Pair:
    """Two processes, each with an engine and the segment; `rate` limits both when the copy begins."""

    def __init__(
        self,
        segment: Segment,
        rate: float | None = None,
        sender: End | None = None,
        receiver: End | None = None,
        events: tuple[int, int] | None = None,
    ) -> None:
        ends = [sender or End(), receiver or End()]
        self.sender, self.receiver = (Remote(end.environ, events or ()) for end in ends)
        self._rate = rate
        self._empty = {}
        self._target = (0, 0, 0)
        for side, end in zip((self.sender, self.receiver), ends, strict=True):
            self._empty[side] = side.ask("left")
            side.ask("open", end.runtime, end.pci_address, **end.options)
            side.ask("attach", segment.place, 0)
            if events is not None:
                side.ask("use_events", *events)

    def __enter__(self) -> Pair:  # noqa: PYI034 - typing has Self from 3.11 on
        return self

    def __exit__(self, *_: object) -> None:
        self.sender.end()
        self.receiver.end()

    def begin(self, size: int, seed: int = 1, pace: Pace = CALM, receiving: Pace | None = None) -> None:
        source, target = self.sender.ask("prepare", 0, size, seed), self.receiver.ask("prepare", 0, size, None)
        self._target = (target, size, seed)
        for side in (self.sender, self.receiver):
            if self._rate is not None:
                side.ask("limit", 0, self._rate)
        self.sender.tell("send", 0, source, size, pace)
        self.receiver.tell("receive", 0, target, size, receiving or pace)

    def arrived(self) -> tuple[Passed, Passed]:
        """Wait for both, look at every byte, and say how it went on both sides."""
        passed = self.sender.answer(), self.receiver.answer()
        assert self.receiver.ask("arrived", 0, *self._target) is True
        return passed

    def clean(self, side: Remote) -> None:
        """Close what the side has: it must then be what it was before it had anything."""
        side.ask("close")
        assert side.ask("left") == self._empty[side]

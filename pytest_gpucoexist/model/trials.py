"""What was tried with the devices themselves: copies that were verified, or timed, and what happened beside.

Written by those who try, judged by the gates, printed as a matrix, saved as a baseline; nothing here judges. Ends of a
copy are `Gpu.key`s, or `HOST`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median, stdev
from typing import Any, Literal

from pytest_gpucoexist.model.codec import decode, encode

__all__ = ["HOST", "SIMULATED", "Integrity", "LinkReading", "Sample", "Trials", "Untried", "Wrong"]

HOST = "host"
SIMULATED = "simulated: memory of the host stands for the device"
"""Note of a sample whose rate says nothing about any link."""
Route = Literal["host", "local", "peer", "staged", "copied"]
"""From or to host memory; within one device; straight to a peer; through pinned host memory that both runtimes share;
the same, with a copy by the processor between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkReading:
    """The slowest hop of a device's path to the host, at one moment: GT/s, lanes, and the bytes per second they allow.

    `hop` is the PCI address of the hop's lower end. `at` is seconds since the copies began; negative before them.
    """

    at: float
    hop: str
    speed_gts: float
    width: int
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One way of copying, timed several times. `kind` is what was tried ("h2d", "pageable", "staged", "serial", …).

    `seconds` are of one repetition each, which moved `size_bytes`; by the device's events (`clock`), or the host's.
    `concurrent` are the other copies that ran meanwhile, as "source->target". `node` is the host memory's NUMA node.
    """

    kind: str
    source: str
    target: str
    route: Route
    size_bytes: int
    seconds: tuple[float, ...]
    clock: Literal["events", "host"] = "host"
    pinned: bool = True
    node: int | None = None
    node_is_local: bool | None = None
    concurrent: tuple[str, ...] = ()
    links: tuple[LinkReading, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def rates(self) -> tuple[float, ...]:
        """Bytes per second of each repetition."""
        return tuple(self.size_bytes / each for each in self.seconds if each > 0)

    @property
    def bytes_per_s(self) -> float | None:
        """The median rate; None without a repetition."""
        return median(self.rates) if self.rates else None

    @property
    def variation(self) -> float | None:
        """The coefficient of variation of the rates; None below three of them."""
        return stdev(self.rates) / (sum(self.rates) / len(self.rates)) if len(self.rates) > 2 else None

    @property
    def allowed_bytes_per_s(self) -> float | None:
        """What the slowest hop allowed while the copies ran: the most that was seen, since an idle link may be slow."""
        return max((each.bytes_per_s for each in self.links if each.at >= 0), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """One thing that was wrong in what arrived. `kind` is one of `transfer.kinds`, or "failed" when a call failed.

    `hop` is where: loading the source from the host, the source to the memory between, from there to the target, or
    reading the target back; None where that cannot be told.
    """

    kind: str
    sentence: str
    size_bytes: int | None = None
    hop: Literal["loading", "first", "second", "reading"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Integrity:
    """One way of copying, verified. `kind` is as in a gate's id: roundtrip, bitwalk, p2p, staged and others.

    Without `wrong`, every one of `sizes` arrived as it was sent, and nothing beside it was touched.
    """

    kind: str
    source: str
    target: str
    route: Route
    sizes: tuple[int, ...]
    wrong: tuple[Wrong, ...] = ()
    seed: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Untried:
    """What should have been tried and was not, and why. `status` as a gate would say it: SKIP for what cannot apply."""

    kind: str
    source: str | None
    target: str | None
    reason: str
    status: Literal["SKIP", "UNKNOWN", "ERROR"] = "UNKNOWN"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """Everything of one run. `facts` are single figures by gate id: {"numa.host_buffer_node": {"pages": 64, …}}."""

    level: Literal["transfer", "full"]
    integrity: tuple[Integrity, ...] = ()
    samples: tuple[Sample, ...] = ()
    untried: tuple[Untried, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict, hash=False)
    duration_s: float = 0.0
    seed: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return builtins only."""
        return encode(self)  # type: ignore[no-any-return]

    @classmethod
    def from_json(cls, data: object) -> Trials:
        """Read what `to_json` wrote. Raises DataError."""
        return decode(cls, data)

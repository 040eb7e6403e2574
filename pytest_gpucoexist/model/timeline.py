"""What a run did with the devices of a machine, second by second. Values only; times are seconds from its beginning."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DeviceTime", "Held", "Timeline", "Waited"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A test that had a device, whole or (`memory_bytes`) a share of its memory."""

    nodeid: str
    worker: str
    start_s: float
    end_s: float
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTime:
    """A device: who had it when. `busy_s`: seconds in which at least one test had it."""

    key: str
    busy_s: float
    held: tuple[Held, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Waited:
    """A test that was next and had to wait; `holders` are the tests that had what it could use."""

    nodeid: str
    since_s: float
    until_s: float
    holders: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """How long it waited."""
        return self.until_s - self.since_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A run under a plan: `length_s` is the time from the first device given to the last one given back."""

    length_s: float
    workers: int
    devices: tuple[DeviceTime, ...] = ()
    waits: tuple[Waited, ...] = ()

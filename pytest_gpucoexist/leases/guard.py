"""Looks at devices that have just been locked, before they are given: nobody may be on them who has no lease.

`occupancy` is asked who is. After a holder's death it has to look again, and to say what is left of the dead; a device
is kept back until nothing is. An answer that keeps a device back is asked for again after a while, longer each time.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Protocol

from pytest_gpucoexist.leases.reading import sweep

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from pytest_gpucoexist.leases.hold import Hold
    from pytest_gpucoexist.leases.lease import Holder

__all__ = ["Guard", "Occupancy", "Watchman"]

_FIRST_S = {"leftover": 0.05, "elsewhere": 0.5}
_LONGEST_S = {"leftover": 0.5, "elsewhere": 2.0}


class Occupancy(Protocol):
    """Tells who uses devices without a lease (`occupied.py`). Asked by one thread at a time."""

    def busy(self, keys: Collection[str], fresh: bool = False) -> Mapping[str, tuple[Holder, ...]]:
        """Return what keeps each device from being given; devices that may be given are left out. Never raises.

        It answers from a cache that costs microseconds; `fresh`, after a holder's death, it looks again.
        """
        ...

    def prepare(self, keys: Collection[str]) -> None:
        """Get ready to look again soon. Returns at once."""
        ...

    def close(self) -> None:
        """End what `prepare` began."""
        ...


class Watchman:
    """Asks the occupancy for all requests of a process, one at a time; it is kept ready while any of them waits."""

    def __init__(self, occupancy: Occupancy | None) -> None:
        self._occupancy = occupancy
        self._lock = threading.Lock()
        self._waiting = 0

    @property
    def sees(self) -> bool:
        """Whether there is anybody to ask."""
        return self._occupancy is not None

    def busy(self, keys: Collection[str], *, fresh: bool) -> Mapping[str, tuple[Holder, ...]]:
        """Ask who keeps these devices."""
        if self._occupancy is None or not keys:
            return {}
        with self._lock:
            return self._occupancy.busy(keys, fresh=fresh)

    def prepare(self, keys: Collection[str]) -> None:
        """Be ready to look again, until as many `done` were said."""
        if self._occupancy is not None:
            with self._lock:
                self._waiting += 1
                self._occupancy.prepare(keys)

    def done(self) -> None:
        """End one wait."""
        if self._occupancy is not None:
            with self._lock:
                self._waiting -= 1
                if not self._waiting:
                    self._occupancy.close()


class Guard:
    """What one request knows about devices that must not be given now."""

    def __init__(self, watchman: Watchman, folder: str | None, *, ignores_foreign: bool = False) -> None:
        """`ignores_foreign`: devices are given beside processes without a lease."""
        self._watchman = watchman
        self._folder = folder
        self._ignores_foreign = ignores_foreign
        self._barred: dict[str, tuple[float, float, tuple[Holder, ...]]] = {}
        self._doubted: set[str] = set()

    @property
    def barred(self) -> Mapping[str, tuple[Holder, ...]]:
        """Who keeps which device back, as far as this request has found out."""
        return {key: holders for key, (_, _, holders) in self._barred.items()}

    def elsewhere(self) -> set[str]:
        """Return the devices that processes without a lease keep back."""
        return {key for key, holders in self.barred.items() if any(each.kind == "elsewhere" for each in holders)}

    def may_ask(self, key: str) -> bool:
        """Whether it is worth while to try a device again."""
        return key not in self._barred or time.monotonic() >= self._barred[key][0]

    def doubt(self, keys: Iterable[str]) -> None:
        """Look afresh before these devices are given: nobody can know how their holder ended."""
        self._doubted.update(keys)

    def check(self, hold: Hold) -> bool:
        """Whether all devices of a hold may be given. Those that may not are barred for a while."""
        claims = [claim for claim in hold.claims.values() if not claim.inherited]
        died = hold.board.died_with([claim.name for claim in claims]) if hold.board is not None else ()
        if not died and not self._watchman.sees:
            return True
        suspect = {claim.key for claim in claims if claim.name in died or claim.key in {*self._barred, *self._doubted}}
        found = dict(self._watchman.busy(suspect, fresh=True))
        cached = self._watchman.busy({claim.key for claim in claims} - suspect, fresh=False)
        found.update(self._watchman.busy(tuple(cached), fresh=True))  # it may be over by now
        if self._ignores_foreign:
            found = {key: tuple(each for each in who if each.kind != "elsewhere") for key, who in found.items()}
        for claim in claims:
            holders = found.get(claim.key)
            if holders:
                self._bar(claim.key, holders)
                continue
            self._barred.pop(claim.key, None)
            self._doubted.discard(claim.key)
            if claim.name in died and hold.board is not None:
                hold.board.forget(claim.name)
                if self._folder is not None:
                    sweep(self._folder, hold.board.is_named)
        return not any(found.values())

    def _bar(self, key: str, holders: tuple[Holder, ...]) -> None:
        kind = "leftover" if any(each.kind == "leftover" for each in holders) else "elsewhere"
        pause = self._barred[key][1] * 1.5 if key in self._barred else _FIRST_S[kind]
        pause = min(pause, _LONGEST_S[kind])
        self._barred[key] = (time.monotonic() + pause, pause, holders)

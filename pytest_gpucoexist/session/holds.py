"""What this process holds beyond a test: devices of wider fixtures, and those that `--gpu-lease` keeps.

A process that holds devices never waits for more, so that no two of them wait for each other. What the scope of a wider
fixture will need is therefore taken at its first test; what only `--gpu-lease` keeps is given back before the process
asks for other devices.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.errors import DeviceBusyError
from pytest_gpucoexist.leases.forks import generation
from pytest_gpucoexist.leases.lease import Lease
from pytest_gpucoexist.model.matching import choose
from pytest_gpucoexist.session.choices import choices_of, scope_id

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from pytest_gpucoexist.model.groups import Group
    from pytest_gpucoexist.session.asking import Asked
    from pytest_gpucoexist.session.state import GpuSession

__all__ = ["Holds", "holds_of"]

_SCOPE_FIXTURES = {"class": "class_gpu", "module": "module_gpu", "session": "session_gpu", "worker": "session_gpu"}


class Holds:
    """The leases of this process that tests take their devices from. Safe to use from several threads of a test."""

    def __init__(self, session: GpuSession) -> None:
        """Nothing is held yet."""
        self._session = session
        self._forget()
        self.waited_s = 0.0
        """Seconds that the last lease was waited for."""

    def _forget(self) -> None:
        self._generation = generation()
        self._lock = threading.RLock()
        self._held: list[Lease] = []
        self._lent: list[Lease] = []
        self._scope: str | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """Devices that tests can take from here."""
        return tuple(key for lease in self._held for key in lease.keys)

    @property
    def lease(self) -> Lease | None:
        """The lease that tests take their devices from; of several, the one of the widest scope."""
        return self._held[0] if self._held else None

    def take(self, item: pytest.Item, asked: Asked, wanted: Callable[[], Sequence[Group]]) -> Lease:
        """Return what a test asked for out of what is held, or of a new lease over `wanted()`, which waits.

        Raises DeviceBusyError, also where a wider fixture keeps the process from waiting, and GpuCoexistError.
        """
        self._in_child()
        preferred = tuple(choice.key for choice in choices_of(item.config).alive.values())
        self.waited_s = 0.0
        with self._lock:
            chosen = self._chosen(asked, self.keys, preferred)
            if chosen is None and self._held and not self._pinned:
                self.release()
            if chosen is None and self._held:
                self._add_at_once(item, asked)
                chosen = self._chosen(asked, self.keys, preferred)
        if chosen is None:
            lease = self._planned(item, wanted(), closest_pair=asked.closest_pair)
            with self._lock:
                self._held.append(lease)
                self._scope = self._scope_of(item)
                chosen = self._chosen(asked, self.keys, preferred)
        if chosen is None:  # the lease serves `wanted()`, which serves the test: a defect must not hand out less
            raise DeviceBusyError(f"{item.nodeid}: was given {', '.join(self.keys)}, which is not what it asked for")
        return self._view(item.nodeid, chosen)

    def lend(self, groups: Sequence[Group], owner: str, used: Collection[str], *, closest_pair: bool = False) -> Lease:
        """Return devices for what a running test asks for only now: of those held and not `used`, else new ones.

        A process that holds anything does not wait for new ones. Raises DeviceBusyError, and GpuCoexistError.
        """
        from pytest_gpucoexist.session.asking import Asked

        self._in_child()
        with self._lock:
            asked = Asked(groups=tuple(groups), closest_pair=closest_pair)
            lent = {key for lease in self._lent for key in lease.keys}
            chosen = self._chosen(asked, [key for key in self.keys if key not in lent and key not in used], ())
            if chosen is not None:
                view = self._view(owner, chosen)
                self._lent.append(view)
                return view
            if self._held and not used and not self._pinned:
                self.release()
        return self._wait(groups, owner, closest_pair=closest_pair)

    def give_back(self, lease: Lease) -> None:
        """End what `lend` gave."""
        with self._lock:
            if any(each is lease for each in self._lent):
                self._lent = [each for each in self._lent if each is not lease]
                return
        self._session.leaser.release(lease)

    def settle(self, nextitem: pytest.Item | None) -> None:
        """After a test: release what no scope keeps that lives on."""
        with self._lock:
            goes_on = self._scope is not None and nextitem is not None and self._scope == self._scope_of(nextitem)
            if self._held and not self._pinned and not goes_on:
                self.release()

    def drop(self, keys: Collection[str]) -> None:
        """Release single devices, which are gone."""
        with self._lock:
            for index, lease in enumerate(self._held):
                if lost := [key for key in lease.keys if key in keys]:
                    self._session.leaser.release(lease, lost)
                    left = tuple(tuple(key for key in group if key not in keys) for group in lease.devices)
                    shares = tuple(share for share in lease.shares if share.key not in keys)
                    self._held[index] = replace(lease, devices=left, shares=shares)
            self._held = [lease for lease in self._held if lease.keys]
            if not self._pinned:
                self.release()

    def release(self) -> None:
        """Release everything that tests took their devices from."""
        with self._lock:
            held, self._held, self._scope = self._held, [], None
            for lease in held:
                self._session.leaser.release(lease)

    def _in_child(self) -> None:
        """Begin anew in a forked child: its parent's devices are not its own, but inherited, by the token."""
        if self._generation != generation():
            self._forget()

    @property
    def _pinned(self) -> bool:
        return bool(choices_of(self._session.config).alive or self._lent)

    def _scope_of(self, item: pytest.Item) -> str | None:
        fixture = _SCOPE_FIXTURES.get(self._session.options.lease)
        return None if fixture is None else scope_id(item, fixture)

    def _chosen(
        self, asked: Asked, keys: Collection[str], preferred: Sequence[str]
    ) -> tuple[tuple[str, ...], ...] | None:
        """Choose out of devices that are held, of which enough memory is."""
        if not keys:
            return None
        shares = {share.key: share.memory_bytes for lease in self._held for share in lease.shares}
        groups = [
            replace(group, candidates=tuple(key for key in group.candidates if _suffices(group, shares.get(key))))
            for group in asked.groups
        ]
        machine = self._session.machine()
        return choose(groups, keys, machine, closest_pair=asked.closest_pair, preferred=preferred)

    def _view(self, owner: str, devices: tuple[tuple[str, ...], ...]) -> Lease:
        keys = {key for group in devices for key in group}
        shares = tuple(share for lease in self._held for share in lease.shares if share.key in keys)
        return Lease(owner=owner, devices=devices, shares=shares)

    def _add_at_once(self, item: pytest.Item, asked: Asked) -> None:
        """Add what is missing to devices that a wider fixture keeps, without waiting: nobody foresaw it."""
        held = set(self.keys)
        offered = {key for group in asked.groups for key in group.candidates}
        machine = self._session.machine()
        chosen = choose(asked.groups, offered, machine, closest_pair=asked.closest_pair, preferred=tuple(held))
        missing = []
        # With none that do together, the leaser says so of all that was asked for.
        for group, keys in zip(asked.groups, chosen or [()] * len(asked.groups), strict=True):
            if count := sum(key not in held for key in keys):
                others = tuple(key for key in group.candidates if key not in held)
                missing.append(replace(group, requirement=replace(group.requirement, count=count), candidates=others))
        self._held.append(self._wait(missing or asked.groups, item.nodeid))

    def _planned(self, item: pytest.Item, groups: Sequence[Group], *, closest_pair: bool) -> Lease:
        """Wait for devices, or for those of the controller's plan (`--gpu-dist`) not at all: then it makes another."""
        from pytest_gpucoexist.session.granted import is_soon, note_refusal, planned
        from pytest_gpucoexist.session.waits import place_failed

        groups, at_once = planned(item, groups, self._session.machine(), closest_pair=closest_pair)
        if not at_once:
            return self._wait(groups, item.nodeid, closest_pair=closest_pair)
        try:
            if is_soon(item, groups):
                from pytest_gpucoexist.session.handover import wait_soon

                lease, self.waited_s = wait_soon(self._session, groups, item.nodeid, closest_pair=closest_pair)
                return lease
            return self._session.leaser.acquire(groups, item.nodeid, closest_pair=closest_pair, timeout_s=0)
        except DeviceBusyError:
            note_refusal(item)
            raise
        except OSError as error:
            raise place_failed(item.nodeid, error) from error

    def _wait(self, groups: Sequence[Group], owner: str, *, closest_pair: bool = False) -> Lease:
        from pytest_gpucoexist.session.waits import wait_for

        lease, self.waited_s = wait_for(self._session, groups, owner, closest_pair=closest_pair)
        return lease


def _suffices(group: Group, share_bytes: int | None) -> bool:
    """Whether a share (None: the whole device) is enough for a requirement."""
    wanted = group.requirement
    if share_bytes is None:
        return True
    return not wanted.exclusive and wanted.memory_bytes is not None and wanted.memory_bytes <= share_bytes


_HOLDS: pytest.StashKey[Holds] = pytest.StashKey()


def holds_of(session: GpuSession) -> Holds:
    """Return what this process holds."""
    return session.config.stash.setdefault(_HOLDS, Holds(session))

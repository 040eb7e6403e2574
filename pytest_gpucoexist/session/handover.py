"""Waiting for a device that another test of this session gives back in a moment: it has passed and is torn down."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pytest_gpucoexist.errors import DeviceBusyError
from pytest_gpucoexist.session.waits import is_strange

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucoexist.leases.lease import Lease, Waiting
    from pytest_gpucoexist.model.groups import Group
    from pytest_gpucoexist.session.state import GpuSession

__all__ = ["wait_soon"]

_MOMENT_S = 1.0
"""A scope may keep the devices beyond the test, until the controller ends it: for that the test has to go back."""


def wait_soon(
    session: GpuSession, groups: Sequence[Group], owner: str, *, closest_pair: bool = False
) -> tuple[Lease, float]:
    """Acquire devices that a test of this session gives back in a moment; return the lease and the seconds waited.

    Raises DeviceBusyError when another session has one of them, or a scope keeps it.
    """
    started = time.monotonic()
    limit_s = 0 if session.leaser.held() else None
    watch = _Soon(session, owner)
    lease = session.leaser.acquire(groups, owner, closest_pair=closest_pair, timeout_s=limit_s, on_wait=watch)
    return lease, time.monotonic() - started


class _Soon:
    """Hears about the wait, and ends it when it is not this session that has the devices, told twice in a row.

    In the moment between a release's record and its lock, a device has a holder that nobody can name.
    """

    eager_s = 0.02
    """How long to ask again before a place in the queue is taken (`MachineLeaser.acquire`)."""

    def __init__(self, session: GpuSession, owner: str) -> None:
        self._session = session
        self._owner = owner
        self._was_strange = False

    def __call__(self, waiting: Waiting) -> None:
        strange = [holder.key for holder in waiting.holders if is_strange(self._session, holder)]
        was_strange, self._was_strange = self._was_strange, bool(strange)
        if strange and was_strange:
            raise DeviceBusyError(f"{self._owner}: {', '.join(strange)} held by others than this session")
        if waiting.waited_s >= _MOMENT_S:
            kept = ", ".join(dict.fromkeys(holder.key for holder in waiting.holders))
            raise DeviceBusyError(f"{self._owner}: {kept} kept by this session beyond the test that was to free them")

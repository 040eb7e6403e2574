"""Waiting for devices that others hold: for how long, what is said meanwhile, and when a test gives up."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_gpucoexist.errors import DeviceBusyError, GpuCoexistError
from pytest_gpucoexist.session.speaking import say_anywhere
from pytest_gpucoexist.session.waitwords import gave_up_words, waiting_words

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpucoexist.leases.lease import Holder, Lease, Waiting
    from pytest_gpucoexist.model.groups import Group
    from pytest_gpucoexist.session.state import GpuSession

__all__ = ["FIRST_LINE_S", "NEXT_LINE_S", "Watch", "is_strange", "place_failed", "wait_for"]

FIRST_LINE_S = 2.0
"""How long a test waits before the terminal says so."""

NEXT_LINE_S = 30.0
"""How long until the terminal says it again."""


def wait_for(
    session: GpuSession, groups: Sequence[Group], owner: str, *, closest_pair: bool = False
) -> tuple[Lease, float]:
    """Acquire devices, as long as `--gpu-wait` allows; return the lease and for how many seconds it was waited for.

    A process that holds devices already does not wait. Raises DeviceBusyError, which names the holders, and
    GpuCoexistError where the devices could never be had together.
    """
    leaser = session.leaser
    held = leaser.held()
    watch = Watch(session, groups, owner)
    started = time.monotonic()
    try:
        lease = leaser.acquire(
            groups,
            owner,
            session.preferred,
            closest_pair=closest_pair,
            timeout_s=0 if held else None,
            on_wait=None if held else watch,
        )
    except DeviceBusyError as error:
        if not held:
            raise
        again = DeviceBusyError(f"{error}; {_why_at_once(held, owner)}")
        again.elsewhere = error.elsewhere
        raise again from None
    except OSError as error:
        raise place_failed(owner, error) from error
    return lease, time.monotonic() - started


def place_failed(owner: str, error: OSError) -> GpuCoexistError:
    """Say that leases cannot be kept where they are."""
    return GpuCoexistError(f"{owner}: the place of leases failed: {error}; `gpucoexist leases` says which it is")


def _why_at_once(held: dict[str, str], owner: str) -> str:
    earlier = [key for key, holder in held.items() if holder != owner]
    if earlier:
        return (
            f"this process does not wait, because it still holds {', '.join(earlier)} from an earlier test: for a "
            "device of a wider scope use class_gpu, module_gpu or session_gpu, which take at their first test what "
            "their scope needs"
        )
    return "a test that holds devices does not wait for more: ask for all of them with its marks"


class Watch:
    """Hears about a wait, from its beginning and then about every second, and ends it by raising DeviceBusyError.

    Only the time counts in which somebody else than the workers of this session holds what the test could use:
    their turns are the suite's own length.
    """

    def __init__(
        self,
        session: GpuSession,
        groups: Sequence[Group],
        owner: str,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`owner` waits for `groups`."""
        self._session = session
        self._groups = groups
        self._owner = owner
        self._clock = clock
        self._last: float | None = None
        self._counting = False
        self._was_vague = False
        self._counted_s = 0.0
        self._next_line_s = FIRST_LINE_S

    def __call__(self, waiting: Waiting) -> None:
        """Take note of the wait. Raises DeviceBusyError when it has lasted long enough."""
        options = self._session.options
        now = self._clock()
        if self._last is not None and self._counting:
            self._counted_s += now - self._last
        self._last = now
        strange = [holder for holder in waiting.holders if is_strange(self._session, holder)]
        self._counting = not waiting.holders or bool(strange)
        # In the moment of a release a device has no holder, or one that nobody can name: that is no stranger yet.
        vague = self._counting and all(holder.kind == "unknown" for holder in strange)
        is_sure, self._was_vague = self._was_vague or not vague, vague
        machine = self._session.machine()
        if self._counting and is_sure and self._counted_s >= options.wait_s:
            words = gave_up_words(_named(waiting), self._groups, machine, time.time(), options.wait_s)
            raise DeviceBusyError(words)
        if waiting.waited_s >= self._next_line_s:
            self._next_line_s = waiting.waited_s + NEXT_LINE_S
            say_anywhere(self._session, waiting_words(self._owner, _named(waiting), self._groups, machine, time.time()))


def is_strange(session: GpuSession, holder: Holder) -> bool:
    """Say whether somebody else than the workers of this session keeps a device."""
    return holder.kind != "lease" or holder.session is None or holder.session != session.run_id


def _named(waiting: Waiting) -> Waiting:
    """Give holders the names of their users, where this machine's own file has them."""
    if all(holder.user or holder.uid is None for holder in waiting.holders):
        return waiting
    from pytest_gpucoexist.host import local_host

    try:
        lines = local_host().read_text("/etc/passwd", limit=1 << 20).splitlines()
    except OSError:
        return waiting
    names = {parts[2]: parts[0] for line in lines if len(parts := line.split(":")) > 2}
    holders = tuple(replace(each, user=each.user or names.get(str(each.uid))) for each in waiting.holders)
    return replace(waiting, holders=holders)

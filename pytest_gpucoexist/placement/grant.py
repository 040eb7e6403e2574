"""What the controller said about a position of a worker's queue, as it stands on the item while that position is up."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

__all__ = ["CANCELLED", "GRANTED", "REFUSED", "Grant"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A test may run, with these devices: one tuple of keys per group of its demand.

    `keys` is empty for a test that needs none, and where the plan does not say. A worker asks for the lease of these
    devices only; when its wider leases leave no room for that, the request stands as it is: the plan is advice, the
    kernel's locks are the truth. `waits` says what follows when another session holds them: the worker waits in the
    kernel's queue for any device that would do, or it gives the test back. `soon`: they become free in a moment, when
    a test of this session is torn down; that is waited for.
    """

    keys: tuple[tuple[str, ...], ...] = ()
    waits: bool = False
    soon: bool = False

    @property
    def devices(self) -> frozenset[str]:
        """All devices of the plan."""
        return frozenset(key for group in self.keys for key in group)


GRANTED = pytest.StashKey[Grant]()
"""On an item that runs under `--gpu-dist`: what it was given."""

CANCELLED = pytest.StashKey[bool]()
"""On an item whose position in the queue was a prediction that did not come true: it runs elsewhere, or later."""

REFUSED = pytest.StashKey[tuple[str, ...]]()
"""On an item whose devices turned out to be held by another session: it is given back to the controller unrun.

Set by whoever asked for the lease, when `Grant.waits` is False; the keys that were refused.
"""

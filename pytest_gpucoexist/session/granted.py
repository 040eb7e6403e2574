"""What the plan of `--gpu-dist` means for the lease of a test: which devices to ask for, whether to wait for them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_gpucoexist.errors import DeviceBusyError
from pytest_gpucoexist.model.matching import choose
from pytest_gpucoexist.placement.grant import GRANTED, REFUSED

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from pytest_gpucoexist.model.groups import Group
    from pytest_gpucoexist.model.machine import Machine

__all__ = ["give_back_unfit", "is_soon", "note_refusal", "planned"]


def planned(
    item: pytest.Item, groups: Sequence[Group], machine: Machine, *, closest_pair: bool
) -> tuple[Sequence[Group], bool]:
    """Narrow groups to the devices that a test was given; say whether it goes back when these are not free.

    Without a plan the groups stay as they are and the test waits. They also stay where the plan's devices cannot serve
    them: wider leases take more than the plan knew.
    """
    grant = item.stash.get(GRANTED, None)
    if grant is None or grant.waits or not grant.keys:
        return groups, False
    keys = grant.devices
    narrowed = [replace(group, candidates=tuple(key for key in group.candidates if key in keys)) for group in groups]
    if choose(narrowed, keys, machine, closest_pair=closest_pair) is None:
        return groups, True  # not waited for: a worker that is idle may hold them for a scope that only its end ends
    return narrowed, True


def is_soon(item: pytest.Item, groups: Sequence[Group]) -> bool:
    """Say whether groups are of planned devices only, which a teardown of this session's own frees in a moment."""
    grant = item.stash[GRANTED]
    return grant.soon and all(key in grant.devices for group in groups for key in group.candidates)


def give_back_unfit(item: pytest.Item, reason: str) -> None:
    """Raise DeviceBusyError for a test whose planned device is gone and left none here that would do.

    It goes back to the controller: another machine may have one, and if none has, it is planned without. Nothing
    happens without a plan.
    """
    grant = item.stash.get(GRANTED, None)
    if grant is not None and grant.keys and not grant.waits:
        note_refusal(item)
        raise DeviceBusyError(reason)


def note_refusal(item: pytest.Item) -> None:
    """Have the gate give a test back, whose devices others hold."""
    item.stash[REFUSED] = tuple(sorted(item.stash[GRANTED].devices))

"""A worker under `--gpu-dist`: tells the controller what it collected, and lets its gate in."""

from __future__ import annotations

import contextlib
from array import array
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.errors import GpuCoexistError
from pytest_gpucoexist.placement.transport import TABLE, Table, TableUnit
from pytest_gpucoexist.placement.worker import Gate, Turnstile, Words, hear
from pytest_gpucoexist.session.units import unit_names
from pytest_gpucoexist.session.wire import END, KEY

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from pytest_gpucoexist.model.requirement import Need
    from pytest_gpucoexist.session.state import GpuSession

__all__ = ["HERE", "PLANNED", "is_planned", "table_of", "tell_collected"]

HERE = "here"
"""In our part of `workerinput`: whether the worker is certainly on the controller's machine."""

PLANNED = "planned"
"""In our part of `workerinput`: whether the controller plans this run."""


def is_planned(session: GpuSession) -> bool:
    """Whether the controller of this worker plans who runs what."""
    given: dict[str, Any] = getattr(session.config, "workerinput", {})
    return session.link is not None and bool(given.get(KEY, {}).get(PLANNED))


def tell_collected(session: GpuSession, items: Sequence[pytest.Item], gpu_items: Sequence[pytest.Item]) -> None:
    """Send the table of what was collected, before pytest-xdist sends its list of ids, and register the gate.

    The gate is registered after whatever leases devices, so it stands around that.
    """
    link = session.link
    if link is None:
        return
    words = Words()
    hear(words, link.on, END)
    manager = session.config.pluginmanager
    manager.register(Turnstile(), "gpucoexist-turnstile")
    manager.register(Gate(link.tell, words, _Leases(session)), "gpucoexist-gate")
    if not session.config.workerinput[KEY].get(HERE):  # type: ignore[attr-defined]
        from pytest_gpucoexist.session.sites import tell_site

        tell_site(session, link)
    link.tell(TABLE, table_of(session, items, gpu_items).pack())
    if session.selected_needs:
        manager.register(_Prepares(session), "gpucoexist-prepares")


class _Prepares:
    """Does what the first test would do while it has a device, while others still collect and nobody has one."""

    def __init__(self, session: GpuSession) -> None:
        self._session = session

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """Hear about the machine, and open what leases are kept in."""
        session = self._session
        with contextlib.suppress(GpuCoexistError):  # each test says it itself
            session.prepare(session.selected_needs)
            for need in session.selected_needs:
                session.decide(need)
            session.leaser.held()
        for name in _NEEDED:
            import_module(name)
        return (yield)


_NEEDED = (
    "pytest_gpucoexist.session.handout",
    "pytest_gpucoexist.session.handover",
    "pytest_gpucoexist.reports.model",
)
"""What the fixtures and the report of the first test import."""


class _Leases:
    """What the gate asks about leases."""

    def __init__(self, session: GpuSession) -> None:
        self._session = session

    def waited_s(self, item: pytest.Item) -> float:
        """Return how long a test has waited for its devices."""
        from pytest_gpucoexist.session.leasing import HOLDING

        holding = item.stash.get(HOLDING, None)
        return float(getattr(holding, "waited_s", 0.0))

    def keys(self, item: pytest.Item) -> list[str]:
        """Return the devices that a test had."""
        from pytest_gpucoexist.session.leasing import HOLDING

        holding = item.stash.get(HOLDING, None)
        return [] if holding is None else list(holding.used)

    def are_locks(self, item: pytest.Item) -> bool:
        """Say whether a test has devices, by locks that keep every other worker from them until they are back."""
        from pytest_gpucoexist.session.leasing import HOLDING

        holding = item.stash.get(HOLDING, None)
        place = getattr(self._session.leaser, "place", None)
        return holding is not None and bool(holding.leases) and place is not None and place.locks != "process"

    def is_back(self, item: pytest.Item) -> bool:
        """Say whether the devices of a test that has been torn down went back before its last report is made."""
        from pytest_gpucoexist.session.leasing import HOLDING

        holding = item.stash.get(HOLDING, None)
        return holding is not None and holding.is_back is True

    def settle(self, nextitem: pytest.Item | None) -> None:
        """Give back what no scope keeps any more, after scopes have ended between two tests."""
        from pytest_gpucoexist.session.holds import holds_of

        holds_of(self._session).settle(nextitem)


def table_of(session: GpuSession, items: Sequence[pytest.Item], gpu_items: Sequence[pytest.Item]) -> Table:
    """Describe a collection: what each test needs, and with which others it stays together."""
    needs = _Needs()
    codes = array("I", bytes(4 * len(items)))
    by_id = {id(item): needs.code(_need(session, item)) for item in gpu_items}
    for index, item in enumerate(items):  # one item may stand there twice
        codes[index] = by_id.get(id(item), 0)
    units: dict[str, int] = {}
    described: list[TableUnit] = []
    unit_codes = array("I", bytes(4 * len(items)))
    for index, (name, divisible, held) in enumerate(unit_names(items, gpu_items, session.options.lease)):
        if name is None:
            continue
        if name not in units:
            described.append(TableUnit(name=name, divisible=divisible))
            units[name] = len(described)
        unit_codes[index] = units[name]
        if held and described[units[name] - 1].need is None:
            need = _held(session, items[index])
            if need is not None:
                described[units[name] - 1] = TableUnit(name=name, need=needs.code(need) - 1, divisible=divisible)
    return Table(needs=needs.all, need_codes=codes, units=tuple(described), unit_codes=unit_codes)


class _Needs:
    """Codes of needs, from 1; 0 stands for no need."""

    def __init__(self) -> None:
        self._codes: dict[Need, int] = {}
        self._last: tuple[Need | None, int] = (None, 0)

    def code(self, need: Need | None) -> int:
        if need is None:
            return 0
        if need is not self._last[0]:  # hashing a need costs more than finding it
            self._last = need, self._codes.setdefault(need, len(self._codes) + 1)
        return self._last[1]

    @property
    def all(self) -> tuple[Need, ...]:
        return tuple(self._codes)


def _need(session: GpuSession, item: pytest.Item) -> Need | None:
    try:
        return session.needs.of(item)
    except GpuCoexistError:
        return None  # malformed marks: the test fails wherever it runs


def _held(session: GpuSession, item: pytest.Item) -> Need | None:
    """Return what a worker takes at the first test of a unit whose device is held, as a need."""
    from pytest_gpucoexist.model.requirement import Need
    from pytest_gpucoexist.session.asking import asked_by, everything
    from pytest_gpucoexist.session.choices import choices_of

    try:
        decision = session.decision(item)
        if decision is None or decision.outcome != "run":
            return None
        choices = choices_of(session.config)
        asked = asked_by(session, item, decision, choices)
        groups = everything(session, item, asked, choices)
    except GpuCoexistError:
        return None  # the test says it itself when it runs
    return Need(requirements=tuple(group.requirement for group in groups), closest_pair=asked.closest_pair)

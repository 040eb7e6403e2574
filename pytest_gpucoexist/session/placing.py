"""`--gpu-dist=auto` in the controller of pytest-xdist: puts its scheduler in the place of xdist's.

The hook for a scheduler is called before anything is collected, so both are there until the workers have told what they
collected. What workers say arrives in execnet's receiver threads and is dealt with there: a test that waits for a
device must not wait for the reports of others, which pytest-xdist reads in its main loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.errors import GpuCoexistError
from pytest_gpucoexist.session.placing_worker import HERE, PLANNED
from pytest_gpucoexist.session.sites import SITE, Sites
from pytest_gpucoexist.session.wire import KEY, is_surely_here

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from pytest_gpucoexist.model.machine import Machine
    from pytest_gpucoexist.placement.durations import Durations
    from pytest_gpucoexist.placement.engine import Engine
    from pytest_gpucoexist.placement.scheduler_run import Run
    from pytest_gpucoexist.placement.suite import Suite
    from pytest_gpucoexist.placement.transport import Over, Table
    from pytest_gpucoexist.session.link_controller import ControllerLink
    from pytest_gpucoexist.session.state import GpuSession

__all__ = ["Placing", "explicit_dist", "place"]


def place(session: GpuSession, link: ControllerLink) -> None:
    """Plan the run of this session, unless somebody chose one of pytest-xdist's own ways."""
    explicit = explicit_dist(session.config)
    register = session.config.pluginmanager.register
    if explicit is None:
        register(Placing(session, link), "gpucoexist-placing")
    else:
        register(
            _Said(f"gpucoexist: {explicit} wins over --gpu-dist=auto: tests are not planned"), "gpucoexist-placing"
        )


class _Said:
    def __init__(self, line: str) -> None:
        self._line = line

    def pytest_report_header(self) -> str:
        """Say why nothing is planned."""
        return self._line


def explicit_dist(config: pytest.Config) -> str | None:
    """Return the `--dist` that somebody asked for, in words; None where it only follows from `-n`.

    `-n` makes pytest-xdist set `load` after the options were parsed; what was given stands in the first parse.
    """
    given: Any = config.known_args_namespace
    if getattr(given, "distload", False):
        return "-d"
    dist = getattr(given, "dist", "no")
    return None if dist == "no" else f"--dist={dist}"


class Placing:
    """Plans the tests of a distributed run. Registered in the controller."""

    def __init__(self, session: GpuSession, link: ControllerLink) -> None:
        """`link` reaches the workers."""
        self._session = session
        self._link = link
        self._tables: dict[str, Table] = {}
        self._coming: set[str] = set()
        self._failed: BaseException | None = None
        self._came_to_its_end = False
        self._durations: Durations | None = None
        self.run: Run | None = None
        self.suite: Suite | None = None
        self._engine: Engine | None = None
        self._sites = Sites(session)
        self._known_sites: set[str] = set()
        from pytest_gpucoexist.placement.transport import ENDING, OVER, RIDER, TABLE

        self._rider = RIDER
        link.at_once(SITE, self._sites.take)
        link.at_once(TABLE, self._take_table)
        link.at_once(OVER, self._take_over)
        link.at_once(ENDING, self._take_ending)

    # What pytest-xdist asks

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker that its tests are planned."""
        node.workerinput.setdefault(KEY, {}).update({PLANNED: True, HERE: is_surely_here(node.gateway.spec)})
        self._coming.add(str(node.gateway.id))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:  # noqa: ARG002
        """Do not wait for a worker that ended or died."""
        self._coming.discard(str(node.gateway.id))

    @pytest.hookimpl(optionalhook=True, wrapper=True)
    def pytest_xdist_make_scheduler(self) -> Generator[None, Any, Any]:
        """Put our scheduler around the one that pytest-xdist makes; one that another plugin makes stays as it is."""
        inner = yield
        if not type(inner).__module__.startswith("xdist."):
            self._session.notes.append(f"--gpu-dist: left to {type(inner).__name__}, the scheduler of another plugin")
            return inner
        from pytest_gpucoexist.placement.scheduler import GpuScheduling

        return GpuScheduling(inner, self)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """Note whether the run came to its end, or was stopped: by `-x`, Ctrl-C, `pytest.exit`."""
        result = yield
        self._came_to_its_end = True
        return result

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note which test a worker has begun."""
        if self.run is not None:
            self.run.began(nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: Any) -> None:
        """Tell workers what can wait until a test is set up, and take what a last report has brought."""
        if self.run is not None and report.when == "setup":
            self.run.was_set_up()
        elif (said := report.__dict__.pop(self._rider, None)) is not None:
            self._take_over(str(report.node.gateway.id), said)
            self.check()

    # What the scheduler asks

    def plan(self, collections: dict[str, list[str]]) -> Run | None:
        """Return a run for these collections; None when no test needs a device, or the machine cannot be had."""
        from pytest_gpucoexist.placement.durations import cache_key
        from pytest_gpucoexist.placement.scheduler_run import Run
        from pytest_gpucoexist.placement.suite import Suite

        self._coming -= collections.keys()
        if not any(table.needs for table in self._tables.values()):
            return None
        session = self._session
        suite = Suite(collections, self._tables)
        session.selected_needs = suite.needs
        try:
            machine = session.prepare(suite.needs)
        except GpuCoexistError:
            return None  # every worker hears the same when its first test asks, and says so in its report
        self._key = cache_key(machine.name)
        self._durations = durations = self._remembered()
        self._engine = engine = suite.engine(
            machine,
            [session.decide(need) for need in suite.needs],
            durations,
            default_memory_bytes=session.options.default_memory_bytes,
            keep_order=_keeps_order(session.config),
            workers_per_device=session.options.workers_per_device,
        )
        self.suite = suite
        self.run = Run(
            engine,
            suite.ids,
            self._link.push,
            unit_of=suite.unit_of,
            place=self._place,
            measured=self._measured,
            coming=lambda: bool(self._coming),
        )
        session.hear_lost.append(self._lost)
        return self.run

    def _lost(self, lost: Mapping[str, str]) -> None:
        """Plan without devices of this machine that a gate took out, or that a test found gone."""
        for key, words in lost.items():
            if self.run is not None and self.suite is not None:
                self.run.lost(self.suite.here, [key], words)

    def stand_aside(self, workers: Sequence[str]) -> None:
        """Let workers run whatever stands in their queues."""
        from pytest_gpucoexist.placement.transport import OPEN

        for worker in workers:
            self._link.push(worker, OPEN, None)

    # What workers say, in receiver threads

    def _take_table(self, worker: str, packed: Any) -> None:
        from pytest_gpucoexist.placement.transport import Table

        self._tables[worker] = Table.unpack(packed)

    def _take_ending(self, worker: str, number: int) -> None:
        if self.run is not None:
            try:
                self.run.ending(worker, number)
            except BaseException as error:  # noqa: BLE001  it is raised again where pytest hears of it
                self._failed = error

    def _take_over(self, worker: str, said: Over) -> None:
        if self.run is not None:
            try:
                self.run.over(worker, said)
            except BaseException as error:  # noqa: BLE001  it is raised again where pytest hears of it
                self._failed = error

    def check(self) -> None:
        """Raise, in the main loop, what went wrong in a receiver thread."""
        if self._failed is not None:
            failed, self._failed = self._failed, None
            raise failed

    # What the run asks

    def _place(self, worker: str) -> dict[str, Any] | None:
        self._coming.discard(worker)
        if worker not in self._tables:
            return None  # our plugin is not there: nothing would keep its queue from running
        assert self.suite is not None
        place = self.suite.place(worker) | self._sites.at_home(worker)
        there = self._sites.machine_of(worker)
        if there is not None:
            place["site"] = self._site(*there)
        return place

    def _site(self, name: str, machine: Machine) -> str:
        """Let the engine know another machine, once."""
        assert self.suite is not None
        assert self._engine is not None
        if name not in self._known_sites:
            from pytest_gpucoexist.model.plan import decide

            decisions = [decide(need, machine, stand_ins=True) for need in self.suite.needs]
            default = self._session.options.default_memory_bytes
            self._engine.add_site(self.suite.site(name, machine, decisions, default))
            self._known_sites.add(name)
        return name

    def _measured(self, test: int, over: Over, first: bool) -> None:
        assert self.suite is not None
        if self._durations is not None and over[6]:
            unit = self.suite.unit_of(test) if first else None
            self._durations.add(self.suite.ids[test], over[5], setup_s=over[4], unit=unit)

    # Durations

    def _remembered(self) -> Durations:
        from pytest_gpucoexist.placement.durations import Durations

        cache = getattr(self._session.config, "cache", None)
        return Durations(None if cache is None else cache.get(self._key, None))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Remember how long tests took, and say what was done with the devices; before a report is written."""
        if self.run is not None and self._came_to_its_end and (stranded := self.run.stranded):
            from pytest_gpucoexist.session.collecting import fail_collection

            told = "not run, because no worker that could run them is left:\n" + "\n".join(stranded)
            fail_collection(session, "--gpu-dist", told)
            if session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
        self._tell_timeline()
        cache = getattr(self._session.config, "cache", None)
        if cache is not None and self._durations is not None and self._durations.is_changed:
            cache.set(self._key, self._durations.stored())

    def _tell_timeline(self) -> None:
        session = self._session
        if self.run is None or self.suite is None:
            return
        from pytest_gpucoexist.placement.timeline import timeline_of
        from pytest_gpucoexist.reports.timeline import timeline_lines

        waits = self.run.statistics().waits
        timeline = timeline_of(self.run.holds, waits, self.suite.ids, self.suite.devices)
        if timeline is not None:
            session.timeline = timeline
            if getattr(session.config.option, "verbose", 0) >= 0:
                session.notes += timeline_lines(timeline, session.discovered)


def _keeps_order(config: pytest.Config) -> bool:
    """Whether the order of the collection says something: `--sw` goes on where it stopped, `--ff` and `--nf` sort."""
    option = config.option
    if (
        getattr(option, "stepwise", False)
        or getattr(option, "stepwise_skip", False)
        or getattr(option, "newfirst", False)
    ):
        return True
    cache = getattr(config, "cache", None)
    return bool(getattr(option, "failedfirst", False) and cache is not None and cache.get("cache/lastfailed", {}))

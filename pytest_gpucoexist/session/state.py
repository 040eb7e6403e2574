"""The session's one object: options, machine, decisions, leases. Nothing is discovered before somebody asks."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pytest_gpucoexist.leases.lease import Leaser
    from pytest_gpucoexist.model.machine import Machine
    from pytest_gpucoexist.model.plan import Decision as Decision  # noqa: PLC0414  others take it from here
    from pytest_gpucoexist.model.requirement import Need
    from pytest_gpucoexist.model.timeline import Timeline
    from pytest_gpucoexist.model.verdicts import Judgement
    from pytest_gpucoexist.session.ledger import Ledger
    from pytest_gpucoexist.session.link_worker import WorkerLink
    from pytest_gpucoexist.session.needs import Needs
    from pytest_gpucoexist.session.options import Options

__all__ = ["DECISION", "GPU_SESSION", "GpuSession"]


class GpuSession:
    """What this process knows and may do. On an xdist worker, machine and devices come from the controller."""

    def __init__(self, config: pytest.Config, options: Options) -> None:
        """`options` have been checked."""
        self.config = config
        self.options = options
        self.link: WorkerLink | None = None  # a worker has one, to the controller
        self.home: tuple[str, ...] | None = None  # a worker's own devices, with `--gpu-workers`
        self.apart: dict[tuple[str | None, ...], list[str]] = {}  # a controller's workers on each other machine
        self.selected = 0
        self.selected_needs: tuple[Need, ...] = ()
        self.ledger: Ledger | None = None
        self.notes: list[str] = []
        self.unmet: tuple[str, ...] = ()
        self.started_s = time.time()
        self.judgement: Judgement | None = None
        self.timeline: Timeline | None = None  # of a run with `--gpu-dist`, once it is over
        self._needs: Needs | None = None
        self.lost: dict[str, str] = {}
        self.hear_lost: list[Callable[[Mapping[str, str]], None]] = []
        self._machine: Machine | None = None
        self._judged = False
        self.preferred: tuple[str, ...] = ()  # devices to be given first, where a test has the choice
        self._leaser: Leaser | None = None
        self.rank_leaser: Leaser | None = None  # of a rank of a job, which asks together with the others
        self._run_id: str | None = None
        self._gpu_items: tuple[pytest.Item, ...] | None = None
        self._gate_properties: list[tuple[str, str]] | None = None
        self.decisions: dict[Need, Decision] = {}
        # In a controller the thread that serves the workers asks too, and in a test any thread of its own.
        self._lock = threading.RLock()

    @property
    def is_worker(self) -> bool:
        """Whether this process is a worker of pytest-xdist, which never writes anything."""
        return hasattr(self.config, "workerinput")

    @property
    def teller(self) -> WorkerLink | None:
        """Who tells this worker about its machine; None where it is to find out itself, as on another machine."""
        return None if self.link is None or self.link.apart else self.link

    @property
    def hypothetical(self) -> bool:
        """Whether decisions are only shown: then a replayed machine counts as if it were here."""
        return self.options.plan or self.options.observe

    @property
    def discovered(self) -> Machine | None:
        """The machine, if anybody has asked for it yet."""
        return self._machine

    @property
    def needs(self) -> Needs:
        """What tests need, by their marks and fixtures."""
        if self._needs is None:
            from pytest_gpucoexist.session.needs import Needs

            self._needs = Needs(self.config)
        return self._needs

    @property
    def leaser(self) -> Leaser:
        """What gives devices to tests of this process, so that no other process of the machine has them too."""
        with self._lock:
            if self.rank_leaser is not None:
                return self.rank_leaser
            if self._leaser is None:
                from pytest_gpucoexist.session.leasers import make_leaser

                self._leaser = make_leaser(self)
            return self._leaser

    @property
    def run_id(self) -> str:
        """What names this run among all that use the machine; the same for all its workers."""
        if self._run_id is None:
            given = getattr(self.config, "workerinput", {}).get("testrunuid")
            if given is None:
                import uuid

                given = uuid.uuid4().hex
            self._run_id = str(given)
        return self._run_id

    def gpu_items(self, session: pytest.Session) -> Sequence[pytest.Item]:
        """Return the tests of this run that may need a GPU."""
        if self._gpu_items is None:
            self._gpu_items = tuple(self.needs.select(session.items))
        return self._gpu_items

    def machine(self, ask: Sequence[str] = (), needed: Sequence[str] | None = None) -> Machine:
        """Return the machine, with what the vendor libraries in `ask` (`nvidia`, `amd`) know.

        Discovered at the first call and again when a library is asked for that was not called yet, by one thread
        while the others wait. With `needed`, the vendors that tests name, the gates judge it first, once per session.
        Raises GpuCoexistError.
        """
        with self._lock:
            known = self._machine
            if known is None or not set(ask) <= set(known.asked):
                wanted = tuple(sorted({*ask, *(known.asked if known else ())}))
                known = self._quarantined(self._look(wanted))
            if needed is not None and not self._judged and self.options.gates != "off":
                known = self._quarantined(self._judge(known, needed))
                self._judged = True  # not where it failed: the next one that asks must hear it too
            if self.judgement is not None and known.asked:
                from pytest_gpucoexist.session.gating import judge_silence

                if judge_silence(self, known):
                    known = self._quarantined(known)
            self._machine = known
            return known

    def _look(self, ask: tuple[str, ...]) -> Machine:
        found = None if self.teller is None else self.teller.machine(ask)
        if found is None:
            from pytest_gpucoexist.session.discovery import discover_machine

            found = discover_machine(self.config, self.options, ask)
        return self._at_home(found)

    def _at_home(self, machine: Machine) -> Machine:
        """Apply the masks of this worker's home, which the controller and a recording do not have."""
        if self.home is None:
            return machine
        from pytest_gpucoexist.session.home import masked

        return masked(machine)

    @property
    def collecting_machine(self) -> Machine:
        """The machine by which tests are made: all workers must make the same ones, whatever each of them sees."""
        if self.link is None:
            return self.machine()
        from pytest_gpucoexist.session.home import machine_to_collect

        return machine_to_collect(self, self.link)

    def _judge(self, machine: Machine, needed: Sequence[str]) -> Machine:
        if self.teller is not None:
            from pytest_gpucoexist.session.gating import warn_of_unheard

            judged = self.teller.judged(needed)
            warn_of_unheard(self.config, self.teller.said.get("heard", ()))
            return machine if judged is None else self._at_home(judged)
        from pytest_gpucoexist.session.gating import judge_session

        self.judgement = judge_session(self, machine, needed)
        return machine

    def _quarantined(self, machine: Machine) -> Machine:
        if self.options.gate_policy == "warn" or not (self.judgement or self.lost):
            return machine
        from pytest_gpucoexist.model.quarantine import quarantined

        return quarantined(machine, {**(self.judgement.unfit if self.judgement else {}), **self.lost})

    def quarantine(self, lost: Mapping[str, str]) -> None:
        """Make devices unfit from now on, with words by key; what was decided about tests is decided anew."""
        with self._lock:
            self.lost.update(lost)
            self.decisions.clear()
            if self._machine is not None:
                self._machine = self._quarantined(self._machine)
        for hear in self.hear_lost:
            hear(lost)

    def take_out(self, lost: Mapping[str, str]) -> None:
        """Make devices that are gone unfit, with words by key, and tell the controller, or the summary."""
        from pytest_gpucoexist.session.presence import take_out

        take_out(self, lost)

    def prepare(self, needs: Iterable[Need], *, judge: bool = True) -> Machine:
        """Return the machine, judged, with every fact that these needs ask about: one discovery for all of them."""
        from pytest_gpucoexist.model.matching import libraries_to_ask
        from pytest_gpucoexist.session.gating import needed_vendors

        needs = tuple(needs)
        needed = needed_vendors(needs) if judge else None
        machine = self.machine((), needed)
        if self.link is not None and self.link.apart:
            from pytest_gpucoexist.session.remote import tell_apart

            tell_apart(self, self.link, machine)
        if self.stopped is not None:
            from pytest_gpucoexist.errors import GpuCoexistError

            raise GpuCoexistError(self.stopped)
        ask = libraries_to_ask(needs, machine)
        return self.machine(ask) if ask else machine

    @property
    def stopped(self) -> str | None:
        """Why the gates end this run (`--gpu-gate-policy=stop`), if they do."""
        from pytest_gpucoexist.session.gating import stop_words

        return stop_words(self) if self.teller is None else self.teller.said.get("stop")

    def said(self) -> dict[str, Any]:
        """Return what workers must know of the judgement, and stop the run where the gates end it."""
        from pytest_gpucoexist.session.gating import gate_plugins, junit_properties, stop_distributed

        stop_distributed(self)
        return {"stop": self.stopped, "properties": junit_properties(self), "heard": gate_plugins(self.config)}

    @property
    def gate_properties(self) -> Sequence[tuple[str, str]]:
        """What each test's JUnit properties say of the gates."""
        if self._gate_properties is None:  # the same for every report of every test
            from pytest_gpucoexist.session.gating import junit_properties

            if self.teller is None:
                self._gate_properties = junit_properties(self)
            else:
                self._gate_properties = [(name, value) for name, value in self.teller.said.get("properties", ())]
        return self._gate_properties

    def decide(self, need: Need) -> Decision:
        """Decide about a need. Raises GpuCoexistError when the machine cannot be had."""
        decision = self.decisions.get(need)
        if decision is None:
            from pytest_gpucoexist.model.plan import decide

            machine = self.prepare({*self.selected_needs, need})
            decision = decide(need, machine, stand_ins=self.options.simulate or self.hypothetical)
            if decision.reason is not None and self.link is not None:
                from pytest_gpucoexist.session.home import explained

                decision = explained(self, decision)
            self.decisions[need] = decision
        return decision

    def decision(self, item: pytest.Item) -> Decision | None:
        """Decide about a test; None when it needs no GPU.

        What cannot be decided (malformed marks, no machine) is a decision too: outcome `error`.
        """
        if DECISION not in item.stash:
            from pytest_gpucoexist.errors import GpuCoexistError

            need = None
            try:
                need = self.needs.of(item)
                item.stash[DECISION] = None if need is None else self.decide(need)
            except GpuCoexistError as error:
                from pytest_gpucoexist.model.plan import Decision
                from pytest_gpucoexist.model.requirement import Need

                item.stash[DECISION] = Decision(need=need or Need(requirements=()), outcome="error", reason=str(error))
        return item.stash[DECISION]


# Typed by annotation: what stands in brackets is evaluated in every session.
GPU_SESSION: pytest.StashKey[GpuSession] = pytest.StashKey()
"""In `config.stash`: the session."""

DECISION: pytest.StashKey[Decision | None] = pytest.StashKey()
"""In `item.stash`: what was decided about a test; None when it needs no GPU."""

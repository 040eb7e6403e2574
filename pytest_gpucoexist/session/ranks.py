"""A job of several pytest processes (torchrun, mpirun, srun): all ranks of a node decide and hold devices together.

A rank that skipped alone, failed alone before its test, or had no device where others have one would leave them waiting
in a collective. So every test begins on all ranks or on none: `ranks.board` has the steps.
"""

from __future__ import annotations

import json
import os
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.errors import GpuCoexistError, error_named
from pytest_gpucoexist.model.codec import decode, encode
from pytest_gpucoexist.model.plan import Decision
from pytest_gpucoexist.placement.ranks.decisions import decide_together
from pytest_gpucoexist.session.protocol import HOLD_ERROR, REFUSED
from pytest_gpucoexist.session.state import DECISION

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping

    from pytest_gpucoexist.model.requirement import Need
    from pytest_gpucoexist.placement.ranks.job import Job
    from pytest_gpucoexist.placement.ranks.leader import Leader
    from pytest_gpucoexist.session.rank_watch import RankWatch
    from pytest_gpucoexist.session.state import GpuSession

__all__ = ["RankProtocol", "resolve_begin"]

_TITLE = "ranks"


class RankProtocol:
    """Keeps the ranks of a job together, test by test. Registered last, so that it stands around everything."""

    def __init__(self, session: GpuSession, job: Job, grace_s: float) -> None:
        """`job` has been joined; `grace_s` is how long a test may go on when a rank is gone."""
        self._session = session
        self._job = job
        self._grace_s = grace_s
        self._watch: RankWatch | None = None
        self._goes_on = True
        self._asked_ready = False
        self._encoded: dict[int, tuple[Decision, str]] = {}
        job.on_broken = self._broken

    @property
    def line(self) -> str:
        """What the header says: that ranks go together, and what they do not share."""
        place = self._job.place
        if place.local_rank:
            return f"gpucoexist: rank {place.rank} of {place.size} ({place.launcher}): goes with the first of this node"
        here = f", {place.local_size} of them on this node; other nodes decide for themselves" if place.nodes else ""
        return f"gpucoexist: {place.size} ranks of {place.launcher} decide and lease devices together{here}"

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Begin and end a test together with all ranks of the node."""
        self._goes_on = self._begin(item)
        self._asked_ready = False
        self._job.inside = self._goes_on
        ended = False
        try:
            result = yield
            ended = True
            return result
        finally:
            if self._goes_on and ended:
                self._end(item)
            if ended:
                self._job.inside = False

    @pytest.hookimpl(specname="pytest_runtest_protocol", tryfirst=True)
    def pytest_runtest_protocol_of_all(self) -> bool | None:
        """Leave a test out that not all ranks have come to."""
        return None if self._goes_on else True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Go on when all ranks can: what one refused before its test, for want of a device, all refuse."""
        if self._asked_ready or not self._goes_on:
            return  # a rerun: the others are not asked twice
        self._asked_ready = True
        decision = self._session.decision(item)
        if decision is None or decision.outcome != "run":
            return
        mine = item.stash.get(HOLD_ERROR, None)
        refused = None if mine is None else [type(mine).__name__, str(mine)]
        kind, said = self._job.meet("ready", item.nodeid, refused)
        if kind == "ok" and said and mine is None:
            # JSON has made texts of the ranks.
            rank, (name, words) = min(said.items(), key=lambda each: int(each[0]))
            item.stash[HOLD_ERROR] = error_named(name)(f"rank {rank} of this node: {words}")
        elif kind != "ok" and mine is None:
            item.stash[REFUSED] = True
            pytest.fail(str(said), pytrace=False)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Tell the others why this rank ends, when it does before they do."""
        why = session.shouldfail or session.shouldstop
        words = f"ended its run ({why})" if why else "ended its run"
        self._job.leave(words if not self._job.inside else f"left in the middle of a test ({why or 'interrupted'})")

    def pytest_unconfigure(self) -> None:
        """End the job in this process."""
        from pytest_gpucoexist.placement.ranks.place import JOB

        self._job.close()
        os.environ.pop(JOB, None)

    def agree(self, session: pytest.Session) -> None:
        """Decide with all ranks about every need that was collected: wider scopes plan for tests that are to come.

        Ends the run when the ranks are no longer together.
        """
        words = self._agree()
        if words is not None:
            from pytest_gpucoexist.session.collecting import fail_collection

            fail_collection(session, _TITLE, words)
            pytest.exit(words, returncode=pytest.ExitCode.TESTS_FAILED)

    def _agree(self) -> str | None:
        needs = self._session.selected_needs
        while True:
            kind, said = self._job.meet("begin", "the collection", self._value(map(self._alone, needs)))
            if kind != "ok":
                return f"the ranks of this job are no longer together: {said}"
            if not said["again"]:
                break
            self._session.quarantine(said["lost"])
        for need, text in zip(needs, said["decisions"], strict=True):
            if text is not None:
                self._session.decisions[need] = _decision(text)
        return None

    def _alone(self, need: Need) -> Decision:
        try:
            return self._session.decide(need)
        except GpuCoexistError as error:
            return Decision(need=need, outcome="error", reason=str(error))

    def _value(self, decisions: Iterable[Decision | None]) -> dict[str, Any]:
        return {"decisions": [self._text(each) for each in decisions], "lost": dict(self._session.lost)}

    def _begin(self, item: pytest.Item) -> bool:
        """Come to a test and hear whether it runs, and what it comes to. False: this session ends."""
        while True:
            kind, said = self._job.meet("begin", item.nodeid, self._value([self._session.decision(item)]))
            if kind == "error":
                said = f"rank 0 of this node: {said}"
            if kind != "ok":
                self._stop(item.session, kind, str(said))
                return False
            if not said["again"]:
                break
            self._session.quarantine(said["lost"])
            del item.stash[DECISION]
            if (words := self._agree()) is not None:
                self._stop(item.session, "broken", words)
                return False
        (text,) = said["decisions"]
        if text is not None:
            item.stash[DECISION] = _decision(text)
        return True

    def _text(self, decision: Decision | None) -> str | None:
        """Write a decision; those about equal needs are one object, written once."""
        if decision is None:
            return None
        known = self._encoded.get(id(decision))
        if known is None or known[0] is not decision:
            known = self._encoded[id(decision)] = decision, json.dumps(encode(decision))
        return known[1]

    def _end(self, item: pytest.Item) -> None:
        kind, said = self._job.meet("end", item.nodeid)
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.ended()
        if kind == "broken":
            self._stop(item.session, kind, str(said))

    def _stop(self, session: pytest.Session, kind: str, words: str) -> None:
        if kind == "stop":
            session.shouldstop = session.shouldstop or f"another rank: {words}"
            return
        if not session.shouldfail:
            from pytest_gpucoexist.session.collecting import fail_collection

            text = f"the ranks of this job are no longer together: {words}"
            fail_collection(session, _TITLE, text)
            session.shouldfail = text

    def _broken(self, words: str) -> None:
        """Watch the test that runs, from another thread: where it waits for a rank that is gone, it would for ever."""
        if self._job.inside and self._watch is None:
            from pytest_gpucoexist.session.rank_watch import RankWatch

            capture = self._session.config.pluginmanager.get_plugin("capturemanager")
            self._watch = RankWatch(words, self._grace_s, capture)


def resolve_begin(session: GpuSession, job: Leader) -> None:
    """Have the first rank decide about each test, from what all ranks come to alone."""

    def together(texts: tuple[str | None, ...]) -> str | None:
        if set(texts) == {None}:
            return None
        decisions = {rank: None if text is None else _decision(text) for rank, text in enumerate(texts)}
        decision = decide_together(decisions, session.machine())
        return None if decision is None else json.dumps(encode(decision))

    def resolve(values: Mapping[int, Any]) -> dict[int, Any]:
        lost: dict[str, str] = {}
        for value in values.values():
            lost.update(value["lost"])
        if any(value["lost"].keys() != lost.keys() for value in values.values()):
            return dict.fromkeys(values, {"again": True, "lost": lost})  # noqa: RUF024  nobody changes it
        of_ranks = zip(*(values[rank]["decisions"] for rank in sorted(values)), strict=True)
        said = {"again": False, "decisions": [together(texts) for texts in of_ranks]}
        return dict.fromkeys(values, said)

    job.resolve["begin"] = resolve


@lru_cache(maxsize=1024)
def _decision(text: str) -> Decision:
    return decode(Decision, json.loads(text))

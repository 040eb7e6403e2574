"""What the ranks of a node must know alike: the machine, the judgement, what was lost. The first rank finds it out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpucoexist.model.machine import Machine
    from pytest_gpucoexist.placement.ranks.leader import Leader
    from pytest_gpucoexist.placement.ranks.member import Member
    from pytest_gpucoexist.session.state import GpuSession

__all__ = ["RankLink", "serve_machine"]


def serve_machine(session: GpuSession, job: Leader) -> None:
    """Have the first rank answer what `RankLink` asks."""

    def machine(_rank: int, arguments: Any) -> str:
        ask, needed, wants_machine = arguments
        found = session.machine(tuple(ask), needed)
        return json.dumps({"machine": found.to_json() if wants_machine else None, "said": _said(session)})

    job.on("machine", machine)
    job.on("take_out", lambda _rank, lost: session.take_out(lost))


def _said(session: GpuSession) -> dict[str, Any]:
    from pytest_gpucoexist.session.gating import gate_plugins, junit_properties

    judgement = session.judgement
    quarantines = judgement is not None and session.options.gate_policy != "warn"
    return {
        "stop": session.stopped,
        "properties": junit_properties(session),
        "heard": gate_plugins(session.config),
        "unfit": {**(judgement.unfit if judgement is not None and quarantines else {}), **session.lost},
    }


class RankLink:
    """Asks the first rank of the node, as a worker of pytest-xdist asks its controller.

    A rank that sees devices through masks of its own discovers them itself and only asks for the judgement.
    """

    apart = False
    """That the first rank is on another machine: never."""

    host: str | None = None

    def __init__(self, session: GpuSession, job: Member, *, shared_view: bool) -> None:
        """`shared_view`: the first rank sees the same devices."""
        self._session = session
        self._job = job
        self._shared = shared_view
        self._needed: list[str] | None = None
        self._machines: dict[tuple[str, ...], Machine] = {}
        self.said: Mapping[str, Any] = {}

    def machine(self, ask: Sequence[str] = (), *, collecting: bool = False) -> Machine:  # noqa: ARG002  a worker's
        """Return the machine with the facts of the vendor libraries in `ask`."""
        wanted = tuple(sorted(set(ask)))
        known = [self._machines[each] for each in self._machines if set(each) >= set(wanted)]
        return known[0] if known else self._ask_for(wanted)

    def judged(self, needed: Sequence[str]) -> Machine:
        """Return the machine after the first rank has judged it, for tests that name the vendors `needed`."""
        known = max(self._machines, key=len, default=())
        self._machines.clear()
        self._needed = list(needed)
        return self._ask_for(known)

    def take_out(self, lost: Mapping[str, str]) -> None:
        """Tell the first rank of devices that are gone; it tells the others before the next test."""
        self._machines.clear()
        self._job.tell("take_out", dict(lost))

    def _ask_for(self, ask: tuple[str, ...]) -> Machine:
        from pytest_gpucoexist.model.machine import Machine

        answer = json.loads(self._job.ask("machine", [list(ask), self._needed, self._shared]))
        self.said = answer["said"]
        if self._shared:
            machine = Machine.from_json(answer["machine"])
        else:
            from pytest_gpucoexist.model.quarantine import quarantined
            from pytest_gpucoexist.session.discovery import discover_machine

            machine = discover_machine(self._session.config, self._session.options, ask)
            if unfit := self.said["unfit"]:
                machine = quarantined(machine, unfit)
        self._machines[ask] = machine
        return machine

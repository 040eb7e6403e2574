"""Where each worker of a planned run is: which machine it is on, and which of its devices the worker can use.

A worker that may be on another machine tells, with what it collected, which machine it found there. The controller's
own is everybody else's. A home limits a worker to its devices (`narrow`) or says which it should have (`rotate`).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.errors import GpuCoexistError

if TYPE_CHECKING:
    from pytest_gpucoexist.model.machine import Machine
    from pytest_gpucoexist.session.link_worker import WorkerLink
    from pytest_gpucoexist.session.state import GpuSession

__all__ = ["SITE", "Sites", "tell_site"]

SITE = "site"
"""The verb with which a worker tells on which machine it is, before it tells what it collected."""


def tell_site(session: GpuSession, link: WorkerLink) -> None:
    """Tell the controller, from a worker that is on another machine, which one that is."""
    from pytest_gpucoexist.session.wire import place

    try:
        machine = session.prepare(session.selected_needs)
    except GpuCoexistError:
        return  # its tests say it when they run
    if link.apart:
        host, _, step = place()
        name = " ".join(filter(None, (host, step, session.options.machine)))
        link.tell(SITE, {"name": name, "machine": json.dumps(machine.to_json())})


class Sites:
    """In the controller: what workers told, and where they are at home."""

    def __init__(self, session: GpuSession) -> None:
        """`session` may have a plugin that gives homes."""
        self._session = session
        self._told: dict[str, tuple[str, str]] = {}

    def take(self, worker: str, told: Any) -> None:
        """Remember what a worker told. Quick: it is called in a receiver thread."""
        self._told[worker] = told["name"], told["machine"]

    def machine_of(self, worker: str) -> tuple[str, Machine] | None:
        """Return the name and the machine of the place of a worker; None for one on the controller's."""
        told = self._told.get(worker)
        if told is None:
            return None
        settled = self._homes().get(worker)
        if settled is not None:
            return told[0], settled.ground.machine  # without the masks that hide the other workers' homes from it
        from pytest_gpucoexist.model.machine import Machine as MachineType

        return told[0], MachineType.from_json(json.loads(told[1]))

    def at_home(self, worker: str) -> dict[str, Any]:
        """Return the arguments of `Engine.worker_up` that follow from a worker's home."""
        settled = self._homes().get(worker)
        if settled is None:
            return {}
        only = settled.home if self._session.options.workers == "narrow" else None
        return {"only": only, "home": settled.home}

    def _homes(self) -> dict[str, Any]:
        plugin: Any = self._session.config.pluginmanager.get_plugin("gpucoexist-homes")
        return {} if plugin is None else plugin.by_worker

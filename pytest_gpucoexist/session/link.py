"""The way between an xdist worker and its controller: the machine, what was judged, and verbs of one's own.

`ControllerLink` lives in `link_controller`, `WorkerLink` and `worker_link` in `link_worker`, what crosses in `wire`.
Only builtin types cross (execnet refuses everything else).

    worker → controller   (number, verb, arguments)      number 0: nothing is to be answered
    controller → worker   (number, "ok", value) | (number, error name, message) | (0, verb, value)

Other parts of a session add verbs of their own with `on`, on either side.
"""

from __future__ import annotations

from pytest_gpucoexist.session.link_controller import ControllerLink
from pytest_gpucoexist.session.link_worker import WorkerLink, worker_link
from pytest_gpucoexist.session.wire import END

__all__ = ["END", "ControllerLink", "WorkerLink", "worker_link"]

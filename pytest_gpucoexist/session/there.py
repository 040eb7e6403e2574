"""Discover and judge the machine that this process is on, in a process of its own, and print it as JSON.

The controller has `python -m pytest_gpucoexist.session.there` run beside a worker that is on another machine, before
that worker is set up: its home must be known before it imports anything. No conftest takes part in this.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucoexist.host import Host
    from pytest_gpucoexist.model.machine import Machine

__all__ = ["main", "survey"]


def survey(level: str, policy: str, deadline_s: float, replayed: str | None) -> dict[str, Any]:
    """Return the machine, judged up to `level`, and the environment. Raises GpuCoexistError."""
    from pytest_gpucoexist.placement.homes import home_needs

    host = _host(replayed)
    machine = _discover(host, replayed, (), deadline_s)
    vendors = sorted({need.requirements[0].vendor or "" for need in home_needs(machine)})
    asked = tuple(vendor for vendor in vendors if vendor in {"nvidia", "amd"})
    machine = _discover(host, replayed, asked, deadline_s)
    if host is not None and level != "off" and policy != "warn":
        from pytest_gpucoexist.gates.catalogue import gates_of_level
        from pytest_gpucoexist.gates.runner import judge
        from pytest_gpucoexist.gates.subject import Subject
        from pytest_gpucoexist.model.quarantine import quarantined

        wanted: Any = level
        subject = Subject(host=host, machine=machine, level=wanted, needed=frozenset(vendors), deadline_s=deadline_s)
        machine = quarantined(machine, judge(subject, gates=gates_of_level(wanted)).unfit)
    environ = {mask.variable: mask.value for mask in machine.masks} if host is None else dict(host.environ)
    return {"machine": machine.to_json(), "environ": environ}


def _host(replayed: str | None) -> Host | None:
    if replayed is None:
        from pytest_gpucoexist.host import local_host

        return local_host()
    if replayed == "demo":
        from pytest_gpucoexist.testing.demo import demo_host

        return demo_host()
    if replayed.endswith(".json"):
        return None
    from pytest_gpucoexist.host import open_recording

    return open_recording(replayed)


def _discover(host: Host | None, replayed: str | None, ask: Sequence[str], deadline_s: float) -> Machine:
    if host is None:
        from pytest_gpucoexist.session.discovery import machine_from_json

        return machine_from_json(str(replayed))
    from pytest_gpucoexist.probes import discover

    return discover(host, ask=ask, deadline_s=deadline_s)


def main() -> int:
    """Read what to do from standard input, and print what was found, or why nothing was."""
    from pytest_gpucoexist.errors import GpuCoexistError

    asked = json.load(sys.stdin)
    try:
        found = survey(**asked, replayed=os.environ.get("PYTEST_GPU_MACHINE") or None)
    except GpuCoexistError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    json.dump(found, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())

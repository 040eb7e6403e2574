"""Workers on other machines: where a gateway leads, what is there, and what they tell the controller.

A worker is on another machine when its host name or boot id is not the controller's (ssh, `python=srun … python`), when
Slurm gave it devices of its own there, or when it replays another one. It discovers and judges its machine itself, and
takes leases there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.errors import GpuCoexistError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucoexist.model.machine import Machine
    from pytest_gpucoexist.session.link_worker import WorkerLink
    from pytest_gpucoexist.session.options import Options
    from pytest_gpucoexist.session.state import GpuSession

__all__ = [
    "There",
    "hear_apart",
    "look_there",
    "place_there",
    "set_environment",
    "tell_apart",
    "tell_note",
]

# These run in the gateway's interpreter, before pytest does, and import nothing of ours there.
_PLACE = """
import os, platform
try:
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot_id = file.read().strip()
except OSError:
    boot_id = None
job = os.environ.get("SLURM_JOB_ID")
step = None if job is None else job + "." + os.environ.get("SLURM_STEP_ID", "")
channel.send((platform.node() or "localhost", boot_id, step, os.environ.get("PYTEST_GPU_MACHINE") or None))
"""
_SET = """
import os
os.environ.update(channel.receive())
"""
_SURVEY = """
import os, subprocess, sys
path, asked, timeout_s = channel.receive()
environ = dict(os.environ)
if path:
    environ["PYTHONPATH"] = os.pathsep.join(path)
try:
    done = subprocess.run(
        [sys.executable, "-m", "pytest_gpucoexist.session.there"],
        input=asked, capture_output=True, text=True, env=environ, timeout=timeout_s,
    )
except (OSError, subprocess.TimeoutExpired) as error:
    channel.send((-1, "", str(error)))
else:
    channel.send((done.returncode, done.stdout, done.stderr))
"""

_START_S = 60.0
"""What starting an interpreter may take on a machine and a file system that we do not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class There:
    """Where a gateway leads; `step` is one of Slurm, `option` is `PYTEST_GPU_MACHINE` there."""

    host: str
    boot_id: str | None
    step: str | None
    option: str | None


def place_there(gateway: Any) -> There:
    """Ask where a gateway leads. Raises GpuCoexistError."""
    host, boot_id, step, option = _execute(gateway, _PLACE)
    return There(host=host, boot_id=boot_id, step=step, option=option)


def set_environment(gateway: Any, environ: Mapping[str, str]) -> None:
    """Set variables in the interpreter where pytest will run. Raises GpuCoexistError."""
    _execute(gateway, _SET, dict(environ), answers=False)


def look_there(gateway: Any, options: Options) -> tuple[Machine, Mapping[str, str]]:
    """Discover and judge the machine where a gateway leads; return it and the environment there.

    Raises GpuCoexistError with what was printed there.
    """
    import sys

    from pytest_gpucoexist.model.machine import Machine as MachineType

    asked = {"level": options.gates, "policy": options.gate_policy, "deadline_s": options.helper_deadline_s}
    # A popen worker gets this process's sys.path from pytest-xdist, wherever `python=` starts it.
    path = list(sys.path) if gateway.spec.popen else []
    status, output, errors = _execute(gateway, _SURVEY, (path, json.dumps(asked), _START_S + options.helper_deadline_s))
    if status != 0:
        said = errors.strip().splitlines()
        why = said[-1] if said else f"exit status {status}"
        raise GpuCoexistError(
            f"its machine could not be discovered: {why}. Is pytest-gpucoexist installed for {gateway.spec}?"
        )
    try:
        found = json.loads(output)
    except ValueError:
        raise GpuCoexistError(f"its machine could not be discovered: {output[:200]!r} is not JSON") from None
    return MachineType.from_json(found["machine"]), found["environ"]


def _execute(gateway: Any, source: str, message: object = None, *, answers: bool = True) -> Any:
    channel = gateway.remote_exec(source)
    try:
        if message is not None:
            channel.send(message)
        answer = channel.receive() if answers else None
        channel.waitclose(_START_S)
    except (channel.RemoteError, channel.TimeoutError, EOFError, OSError) as error:
        words = str(error).strip().splitlines()
        why = words[-1] if words else type(error).__name__
        raise GpuCoexistError(f"{gateway.spec} does not answer: {why}") from None
    return answer


def tell_apart(session: GpuSession, link: WorkerLink, machine: Machine) -> None:
    """Tell the controller, once, from a worker on another machine, which machine that is and how it was judged."""
    if link.told_apart:
        return
    link.told_apart = True
    from pytest_gpucoexist.reports.terminal import machine_header
    from pytest_gpucoexist.session.summary import session_screen

    lines = machine_header(
        machine, promised=None, simulate=session.options.simulate, screen=session_screen(session.config)
    )
    from pytest_gpucoexist.session.wire import place

    host, _, step = place()
    where = f"{host} (step {step} of Slurm)" if step else host
    told = {"host": where, "replayed": session.options.machine, "lines": lines, "stop": session.stopped}
    link.tell("apart", told)


def tell_note(link: WorkerLink, text: str) -> None:
    """Have a line in the controller's summary, from a worker on another machine."""
    link.tell("apart", {"note": f"{text} (on {link.host})"})


def hear_apart(session: GpuSession, worker: str, told: Mapping[str, Any]) -> None:
    """Note in the controller what such a worker told, once per machine; end the run where its gates end it."""
    if "note" in told:
        session.notes.append(told["note"])
        return
    where = (told["host"], told["replayed"])
    workers = session.apart.setdefault(where, [])
    workers.append(worker)
    if len(workers) == 1:
        session.notes.append(
            f"{told['host']}, where {worker} runs: " + "; ".join(line.strip() for line in told["lines"])
        )
    if told["stop"]:
        from pytest_gpucoexist.session.gating import stop_distributed

        stop_distributed(session, f"{told['host']}: {told['stop']}")

"""What a worker knows of its home: from its environment before pytest is set up, from the controller afterwards.

The environment is the only thing that is there when a conftest is imported, so it tells all: `PYTEST_GPU_HOME` the
keys, for everybody to read, and `PYTEST_GPU_HOME_DETAILS` what this package needs. A child process inherits both.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.errors import GpuCoexistError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pytest

    from pytest_gpucoexist.model.machine import Gpu, Machine
    from pytest_gpucoexist.model.plan import Decision
    from pytest_gpucoexist.session.link_worker import WorkerLink
    from pytest_gpucoexist.session.state import GpuSession

__all__ = [
    "DETAILS",
    "HOME",
    "caller_environ",
    "claim",
    "details",
    "explained",
    "home_environment",
    "home_gpus",
    "machine_to_collect",
    "masked",
    "settle",
    "without_home",
]

HOME = "PYTEST_GPU_HOME"
DETAILS = "PYTEST_GPU_HOME_DETAILS"
OWNER = "PYTEST_GPU_HOME_PID"


def home_environment(
    home: Sequence[str], machine: Machine, mode: str, masks: Mapping[str, str], caller: Mapping[str, str]
) -> dict[str, str]:
    """Return what to set in a worker's environment: its masks, its home, and how to find the way back.

    `caller` are the visibility variables that the worker would have without us.
    """
    from dataclasses import replace

    from pytest_gpucoexist.model.codec import encode

    found = [gpu for key in home if (gpu := machine.gpu(key)) is not None]
    # What other processes do is nobody's business in an environment, and facts would make it long.
    devices = [encode(replace(gpu, facts={}, processes=None, upstream_links=(), bars=None)) for gpu in found]
    told = {"mode": mode, "machine": machine.name, "set": dict(masks), "caller": dict(caller), "devices": devices}
    return {**masks, HOME: ",".join(home), DETAILS: json.dumps(told, separators=(",", ":")), OWNER: ""}


def claim() -> dict[str, Any] | None:
    """Return the details to the worker itself, and to nobody who inherits its environment."""
    told = details()
    if told is None:
        return None
    owner = os.environ.setdefault(OWNER, "") or str(os.getpid())
    os.environ[OWNER] = owner
    return told if owner == str(os.getpid()) else None


def without_home(environ: dict[str, str]) -> dict[str, str]:
    """Take the home out of an environment, for a child whose masks are others."""
    for variable in (HOME, DETAILS, OWNER):
        environ.pop(variable, None)
    return environ


def details() -> dict[str, Any] | None:
    """Return what `home_environment` wrote into this process's environment; None where it did not."""
    text = os.environ.get(DETAILS)
    if text is None:
        return None
    try:
        told = json.loads(text)
    except ValueError:
        told = None
    if not isinstance(told, dict):
        raise GpuCoexistError(f"{DETAILS} is not what --gpu-workers wrote there: something has changed it")
    return told


def home_gpus() -> tuple[Gpu, ...]:
    """Return the home devices of this process, by its environment; none where it has no home.

    They are as they were when the worker was started, without facts: compare their keys.
    """
    told = details()
    if told is None:
        return ()
    from pytest_gpucoexist.model.codec import decode
    from pytest_gpucoexist.model.machine import Gpu as GpuType

    return tuple(decode(GpuType, each) for each in told["devices"])


def caller_environ() -> dict[str, str]:
    """Return a copy of the environment with the visibility variables that pytest was started with.

    For a child process of a test that shall see what the caller sees. Without `--gpu-workers` it is just a copy.
    """
    environ = dict(os.environ)
    told = details()
    if told is not None:
        for variable in told["set"]:
            environ.pop(variable, None)
        environ |= told["caller"]
    return without_home(environ)


def masked(machine: Machine) -> Machine:
    """Apply this worker's masks to a machine that was discovered outside it, or replayed."""
    told = details()
    if told is None:
        return machine
    from pytest_gpucoexist.model.visibility.apply import apply_masks

    # A replayed machine has its own environment, of which the masks are what matters here.
    environ = {mask.variable: mask.value for mask in machine.masks} if machine.simulated else os.environ
    return apply_masks({**environ, **told["caller"], **told["set"]}, machine)


def machine_to_collect(session: GpuSession, link: WorkerLink) -> Machine:
    """Return the machine by which a worker makes tests: the controller's, without this worker's masks.

    Where the controller plans the run (`--gpu-dist`), a worker on another machine makes those of its own.
    """
    from pytest_gpucoexist.session.wire import KEY

    own = session.machine()
    if session.home is None and not link.apart:
        return own
    if link.apart and session.config.workerinput[KEY].get("planned"):  # type: ignore[attr-defined]
        return own
    return link.machine(own.asked, collecting=True) or own


def explained(session: GpuSession, decision: Decision) -> Decision:
    """Say, of a test that this worker cannot run, on which other host that is, and what hid its devices if we did."""
    from dataclasses import replace

    reason = decision.reason or ""
    told = details() if session.home is not None and decision.outcome == "masked" else None
    if told is not None and told["mode"] == "narrow":
        ours = (f"{variable}={value}" for variable, value in told["set"].items())
        if any(text in reason for text in ours):
            reason += (
                " (--gpu-workers=narrow shows this worker its home alone; --gpu-workers=rotate shows all devices, and "
                "--gpu-dist=auto runs the test on a worker that has what it needs, if there is one)"
            )
    host = None if session.link is None else session.link.host
    return replace(decision, reason=reason if host is None else f"{reason} (on {host})")


def settle(session: GpuSession) -> None:
    """Take up the home that the controller says this worker has."""
    from pytest_gpucoexist.session.wire import KEY

    given: Mapping[str, Any] = getattr(session.config, "workerinput", {}).get(KEY, {})
    home = given.get("home")
    session.home = None if home is None else tuple(home)
    _leave_basetemp(session.config)


def _leave_basetemp(config: pytest.Config) -> None:
    """Forget the controller's folder for temporary files where it is not: on another host."""
    basetemp = getattr(config.option, "basetemp", None)
    if basetemp is not None and not os.path.isdir(os.path.dirname(os.path.abspath(basetemp))):
        config.option.basetemp = None

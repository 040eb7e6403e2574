"""From options to a Machine: this machine, the built-in demo, a recording, or the JSON of one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.errors import RecordingError
from pytest_gpucoexist.session.plugins import amend, implementations

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpucoexist.host import Host
    from pytest_gpucoexist.model.machine import Machine
    from pytest_gpucoexist.model.readings import Observation
    from pytest_gpucoexist.session.options import Options

__all__ = ["check_machine", "discover_machine", "machine_from_json", "session_host"]


def check_machine(config: pytest.Config, name: str) -> None:
    """Open what `--gpu-machine` names, without reading the machine. Raises RecordingError that lists what is good."""
    path = _path(config, name)
    if name == "demo":
        return
    if not os.path.exists(path):
        raise RecordingError(
            f"--gpu-machine: {name!r} is no recording here; good values are demo, a folder, "
            "an archive (.tar.gz, .tar.xz, .tar.bz2, .tar) or the .json of `gpucoexist show --json`"
        )
    if name.endswith(".json"):
        machine_from_json(path)
        return
    try:
        _host(config, name)
    except RecordingError as error:
        raise RecordingError(
            f"--gpu-machine: {error}; `gpucoexist record FILE` makes an archive that replays"
        ) from None


def discover_machine(config: pytest.Config, options: Options, ask: Sequence[str]) -> Machine:
    """Discover the machine that the options name, and let plugins amend it. Raises GpuCoexistError."""
    name = options.machine
    if name is not None and name.endswith(".json"):
        machine = machine_from_json(_path(config, name))
    else:
        from functools import partial

        from pytest_gpucoexist.probes import discover

        host = _host(config, name)
        extra = {
            plugin: partial(_observations, partial(call, config=config))
            for plugin, call in implementations(config, "pytest_gpucoexist_probes")
        }
        machine = discover(host, ask=ask, deadline_s=options.helper_deadline_s, extra=extra)
    from dataclasses import replace

    # An answer must say that everything was asked, or it would be asked again.
    machine = replace(machine, asked=tuple(sorted({*machine.asked, *ask})))
    return amend(config, "pytest_gpucoexist_machine", "machine", machine)


def _observations(call: Callable[..., list[Any]], host: Host) -> list[Observation]:
    return [observation for said in call(host=host) if said is not None for observation in said]


def _path(config: pytest.Config, name: str) -> str:
    return os.path.join(config.invocation_params.dir, name)


HOST = pytest.StashKey["Host"]()
"""In `config.stash`: the host that was opened, because unpacking a large archive once is enough."""


def _host(config: pytest.Config, name: str | None) -> Host:
    if HOST not in config.stash:
        if name is None:
            from pytest_gpucoexist.host import local_host

            config.stash[HOST] = local_host()
        elif name == "demo":
            from pytest_gpucoexist.testing.demo import demo_host

            config.stash[HOST] = demo_host()
        else:
            from pytest_gpucoexist.host import open_recording

            config.stash[HOST] = open_recording(_path(config, name))
    return config.stash[HOST]


def session_host(config: pytest.Config, options: Options) -> Host | None:
    """Return the host of this session's machine; None for one that was read from JSON. Raises RecordingError."""
    if options.machine is not None and options.machine.endswith(".json"):
        return None
    return _host(config, options.machine)


def machine_from_json(path: str) -> Machine:
    """Read a machine as a replayed one. Raises RecordingError."""
    import json
    from dataclasses import replace

    from pytest_gpucoexist.errors import DataError
    from pytest_gpucoexist.model.machine import Machine

    try:
        with open(path, encoding="utf-8") as file:
            machine = Machine.from_json(json.load(file))
    except (OSError, ValueError, DataError) as error:
        raise RecordingError(
            f"--gpu-machine: {path} holds no machine as `gpucoexist show --json` prints: {error}"
        ) from None
    return replace(machine, simulated=True)

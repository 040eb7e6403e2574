"""Hosts of a name of their own, for workers on other machines: a machine for each, and a command that starts there."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.fixtures.machines import as_text, workstation
from tests.fixtures.running import loaded

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["HOSTS", "RECORDER", "make_under", "on", "run", "seen", "write_host"]

# Every host has other devices, and none is a replayed one: as far as this package can tell, tests run on them.
HOSTS = """
import json
import os
import platform
from dataclasses import replace
from pytest_gpucoexist.model.machine import Machine

def pytest_gpucoexist_machine(config, machine):
    folder = os.path.dirname(__file__)
    path = os.path.join(folder, platform.node() + ".json")
    if not os.path.exists(path):
        return replace(machine, gpus=())
    with open(path) as file:
        return Machine.from_json(json.load(file))
"""

RECORDER = """
import json
import os
import platform
import pytest

@pytest.fixture(autouse=True)
def record(request):
    yield
    names = ("PYTEST_XDIST_WORKER", "PYTEST_GPU_HOME", "CUDA_VISIBLE_DEVICES")
    entry = {"test": request.node.name, "host": platform.node(), **{name: os.environ.get(name) for name in names}}
    with open(os.path.join(os.path.dirname(__file__), "seen"), "a") as file:
        file.write(json.dumps(entry) + "\\n")
"""


def make_under(folder: Path) -> str:
    """Return a command that runs its other arguments under a host name: `under NAME COMMAND…`."""
    script = folder / "under"
    script.write_text(
        "#!/bin/sh\nname=$1\nshift\nexec unshare --user --map-root-user --uts --mount sh -c '"
        'hostname "$0" && if [ "$HIDE" ]; then mount -t tmpfs none "$HIDE"; fi && exec "$@"\' "$name" "$@"\n'
    )
    script.chmod(0o755)
    try:
        done = subprocess.run([str(script), "elsewhere", "hostname"], capture_output=True, text=True, check=False)
    except OSError as error:
        pytest.skip(f"needs a shell: {error}")
    if done.stdout.strip() != "elsewhere":
        pytest.skip(f"needs unshare and a namespace of its own for the host name: {done.stderr.strip()}")
    return str(script)


def write_host(folder: Path, name: str, *ids: str) -> str:
    """Write the machine of a host: these devices of the workstation."""
    whole = json.loads(as_text(workstation()))
    part = {**whole, "name": name, "gpus": [gpu for gpu in whole["gpus"] if gpu["id"] in ids]}
    (folder / f"{name}.json").write_text(json.dumps(part))
    return str(folder / f"{name}.json")


def run(pytester: pytest.Pytester, *args: str) -> pytest.RunResult:
    common = ["-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-ra"]
    return pytester.runpytest_subprocess(*loaded(), *common, *args)


def on(under: str, name: str, *further: str) -> str:
    return "--tx=" + "//".join((f"popen//id={name}//python={under} {name} {sys.executable}", *further))


def seen(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "seen").read_text().splitlines()]

"""The default paths and a root folder give the same machine: umockdev shows a process the tree as its own `/sys`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.oracles.trees import Tree, program

_SHOW = """
import json
from pytest_gpucoexist.host import local_host
from pytest_gpucoexist.probes import discover
print(json.dumps(discover(local_host()).to_json()))
"""

# umockdev replaces `/sys` only: what comes from /proc, /dev, /usr and the environment is of the machine that runs
# the test.
_OF_THIS_MACHINE = ("name", "simulated", "runtimes", "conflicts", "masks")
_GPU_OF_THIS_MACHINE = ("name", "driver_version", "usable", "granted", "visible")
_FACTS_OF_THIS_MACHINE = (*_GPU_OF_THIS_MACHINE, "usable.cuda", "usable.rocm", "drm")


@pytest.fixture(scope="module")
def wrapper() -> str:
    return program("umockdev-wrapper", "umockdev")


def comparable(machine: dict[str, Any]) -> dict[str, Any]:
    for key in _OF_THIS_MACHINE:
        machine.pop(key)
    for gpu in machine["gpus"]:
        for key in _GPU_OF_THIS_MACHINE:
            gpu.pop(key)
        for key in _FACTS_OF_THIS_MACHINE:
            gpu["facts"].pop(key, None)
    for driver in machine["drivers"]:
        if driver["source"] == "kernel release":
            driver["version"] = None
    return machine


def test_the_same_json(wrapper: str, tree: Tree) -> None:
    plain = {name: value for name, value in os.environ.items() if name in {"PATH", "HOME", "LANG", "LD_LIBRARY_PATH"}}
    package = str(Path(__file__).resolve().parents[2])
    done = subprocess.run(
        [wrapper, sys.executable, "-c", _SHOW],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**plain, "UMOCKDEV_DIR": str(tree.root), "PYTHONPATH": package},
    )
    assert done.returncode == 0, done.stderr
    replayed = json.loads(json.dumps(tree.machine.to_json()))
    assert comparable(json.loads(done.stdout)) == comparable(replayed)

"""No wolf in containers: a part of the GPUs, CDI, rootless and MIG are healthy, and enough is decided in them.

After a gate was added or changed, write the table anew and look at what became different:
`python -m tests.gates.layouts.write`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_gpucoexist.probes import discover
from tests.gates.layouts.checking import check_healthy
from tests.gates.layouts.places import LAYOUTS

TABLE = Path(__file__).with_name("expected.txt")


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_container_is_healthy(name: str) -> None:
    check_healthy(TABLE, name, LAYOUTS[name]())


@pytest.mark.parametrize(
    ("name", "granted", "usable"),
    [
        ("pod-two-of-four", ["nvidia0", "nvidia1"], ["nvidia0", "nvidia1"]),
        ("cdi-void", ["nvidia1"], ["nvidia1"]),
        ("rootless-podman", ["amd0"], ["amd0"]),
    ],
)
def test_discovery_sees_what_was_passed_in(name: str, granted: list[str], usable: list[str]) -> None:
    machine = discover(LAYOUTS[name]())
    assert [gpu.id for gpu in machine.gpus if gpu.granted and gpu.is_compute] == granted
    assert [gpu.id for gpu in machine.gpus if gpu.usable.cuda or gpu.usable.rocm] == usable


def test_discovery_sees_the_instance() -> None:
    machine = discover(LAYOUTS["mig-instance"](), ask=("nvidia",))
    (instance,) = [gpu for gpu in machine.gpus if gpu.partition is not None]
    assert instance.usable.cuda, instance.facts["usable.cuda"]

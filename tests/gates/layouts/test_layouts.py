"""No wolf in containers: a part of the GPUs, CDI, rootless and MIG are healthy, and enough is decided in them.

After a gate was added or changed, write the table anew and look at what became different:
`python -m tests.gates.layouts.write`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.gates.runner import judge
from pytest_gpucoexist.gates.subject import Subject
from pytest_gpucoexist.probes import discover
from tests.gates.layouts.checking import check_healthy
from tests.gates.layouts.places import LAYOUTS

if TYPE_CHECKING:
    from pytest_gpucoexist.model.verdicts import Level

TABLE = Path(__file__).with_name("expected.txt")


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_container_is_healthy(name: str) -> None:
    check_healthy(TABLE, name, LAYOUTS[name]())


@pytest.mark.parametrize("level", ["quick", "standard"])
@pytest.mark.parametrize(
    ("name", "promised"),
    [
        ("pod-two-of-four", {"cuda": 2}),
        ("cdi-void", {"cuda": 1}),
        ("rootless-podman", {"rocm": 1}),
        ("mig-instance", {"cuda": 1}),
    ],
)
def test_what_is_promised_and_here_is_not_missed(name: str, promised: dict[str, int], level: Level) -> None:
    host = LAYOUTS[name]()
    needed = frozenset({"nvidia", "amd"})
    subject = Subject(host=host, machine=discover(host), level=level, promised=promised, needed=needed, deadline_s=60.0)
    wrong = [(each.id, each.reason) for each in judge(subject).verdicts if each.status in {"FAIL", "ERROR"}]
    assert wrong == []


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

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import pytest

from pytest_gpucoexist.host import open_recording
from pytest_gpucoexist.host.anonymise import anonymised
from pytest_gpucoexist.host.caller import people_of
from pytest_gpucoexist.host.recording import RecordingHost
from pytest_gpucoexist.host.replay import ReplayHost
from pytest_gpucoexist.model.machine import Machine
from pytest_gpucoexist.probes import discover
from tests.conftest import ROOT
from tests.reports.schemas import problems
from tests.truth.comparing import Score, compare
from tests.truth.translate import translate

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pytest_gpucoexist.host.base import Host

MACHINES = ROOT.parent / "shared" / "machines"
TRUTHS = sorted((MACHINES / "truth").glob("*.json")) if MACHINES.is_dir() else []
TREES = sorted(path for path in MACHINES.rglob("*.tar.*")) if MACHINES.is_dir() else []


def name_of(path: Path) -> str:
    return path.name.partition(".tar")[0].removesuffix(".json")


def some(paths: list[Path]) -> list[Any]:
    """One case without a path where there are no recordings, so that the skip is seen."""
    return [pytest.param(path, id=name_of(path)) for path in paths] or [pytest.param(None, id="no-recordings")]


@cache
def opened(path: Path) -> Host:
    return open_recording(str(path)) if ".tar." in path.name else translate(path)


def score_of(path: Path) -> Score:
    truth = json.loads(path.read_text())
    recording = MACHINES / truth["recording"]
    machine = discover(opened(recording))
    assert [item.message for item in machine.conflicts if item.kind == "probe"] == []
    return compare(truth, machine.to_json())


def test_every_field_that_a_truth_states(
    shared: Path,
    record_property: Callable[[str, object], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    scores = {name_of(path): score_of(path) for path in TRUTHS}
    wrong = {name: score.wrong for name, score in scores.items() if score.wrong}
    stated = sum(score.stated for score in scores.values())
    line = f"truth: {stated - sum(map(len, wrong.values()))} of {stated} fields on {len(scores)} trees"
    record_property("truth", line)
    with capsys.disabled():
        print(f"\n{line}")
    assert wrong == {}
    assert all(score.stated for score in scores.values())
    assert len(scores) >= 49
    assert len(TREES) >= 30
    assert stated >= 2000


@pytest.fixture(scope="module", params=some(TREES))
def tree(shared: Path, request: pytest.FixtureRequest) -> tuple[Host, Machine]:
    """One recorded machine: pytest runs all tests of one tree before those of the next."""
    host = opened(request.param)
    return host, discover(host)


def test_every_tree_shows_devices(tree: tuple[Host, Machine], request: pytest.FixtureRequest) -> None:
    host, _machine = tree
    assert f"[{host.name}]" in request.node.name
    found = [
        name
        for folder in ("/sys/bus/pci/devices", "/sys/class/drm", "/sys/class/kfd/kfd/topology/nodes")
        if host.exists(folder)
        for name in host.list_dir(folder)
    ]
    # A platform GPU, and a tree of NUMA nodes and of what the NVIDIA driver writes.
    assert found or host.name in {"nvidia-dgx-gb10", "nvidiagpunumanodes"}


def test_every_tree_replays_and_survives_its_own_json(tree: tuple[Host, Machine]) -> None:
    _host, machine = tree
    assert [item.message for item in machine.conflicts if item.kind == "probe"] == []
    assert machine.simulated
    document = json.loads(json.dumps(machine.to_json()))
    assert problems("machine", document) == []
    assert Machine.from_json(document) == machine
    # What could not be read is null, and the facts say why.
    for gpu in machine.gpus:
        data = gpu.__class__.__dataclass_fields__
        for field in data.keys() - {"id", "link", "features", "facts", "hwmon", "upstream_links", "visible"}:
            if getattr(gpu, field) is None:
                assert gpu.facts[field].status != "ok", (gpu.key, field)
                assert gpu.facts[field].detail, (gpu.key, field)
        for field, fact in gpu.facts.items():
            assert fact.source or fact.status == "absent", (gpu.key, field)


def test_a_record_of_a_tree_is_the_same_machine(tree: tuple[Host, Machine]) -> None:
    host, machine = tree
    recording = RecordingHost(host)
    discover(recording)
    clean, manifest = anonymised(*recording.recorded(), people_of(recording))
    replayed = discover(ReplayHost(clean, manifest, name=machine.name))
    assert without_ids(replayed.to_json()) == without_ids(machine.to_json())


def without_ids(data: Any) -> Any:
    """Leave out what a record replaces: UUIDs, AMD's unique ids."""
    if isinstance(data, dict):
        return {name: without_ids(value) for name, value in data.items() if name not in {"uuid", "unique_id"}}
    return [without_ids(each) for each in data] if isinstance(data, list) else data


def test_the_order_of_listings_does_not_matter(tree: tuple[Host, Machine]) -> None:
    host, machine = tree
    assert discover(cast("Host", Turned(host))) == machine


class Turned:
    """A host whose folders list their names the other way round."""

    def __init__(self, inner: Host) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def list_dir(self, path: str) -> list[str]:
        return self._inner.list_dir(path)[::-1]

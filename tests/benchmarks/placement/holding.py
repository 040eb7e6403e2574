"""The conftest of a measured suite: gives devices to tests in one of several ways, and records who held what when.

It is copied into the suite and imports nothing of this project. `PLACEMENT_WAY` says how devices are had:

- `ours`: pytest-gpucoexist's fixtures.
- `lock`: a lock per device, taken by the test. One device is polled for; a test with several queues up for the right
  to gather them and keeps each that it got, so that none waits in a circle and small tests cannot starve it.
- `isolate`: pytest-isolate's `resources`; it knows no vendors and no memory, so there is a resource for each vendor,
  and a share is the next fraction of a card that it can express.
- `given`: whoever started this process holds the devices and says which.

A line is written when a hold ends: who, since when, until when (CLOCK_MONOTONIC), which devices, how much of each.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

WAY = os.environ["PLACEMENT_WAY"]
RUN = Path(os.environ["PLACEMENT_RUN"])
HERE = Path(__file__).parent
_SUITE = json.loads((HERE / "suite.json").read_text(encoding="utf-8"))
NEEDS: dict[str, dict[str, Any]] = _SUITE["needs"]  # of a test, or of a module with a model
DEVICES: list[dict[str, Any]] = _SUITE["devices"]
POLL_S = 0.002


def _write(kind: str, who: str, begin: float, devices: list[str]) -> None:
    need = NEEDS.get(who, {})
    line = [kind, who, begin, time.monotonic(), devices, need.get("memory_gib")]
    with (RUN / f"{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def _serving(need: dict[str, Any], vendor: str) -> list[str]:
    return [
        device["key"]
        for device in DEVICES
        if vendor in {"any", device["vendor"]} and device["memory_gib"] >= (need["memory_gib"] or 0)
    ]


@contextlib.contextmanager
def _locked(need: dict[str, Any]) -> Iterator[list[str]]:
    wanted = [(count, _serving(need, vendor)) for vendor, count in need["devices"]]
    with contextlib.ExitStack() as held:
        if sum(count for count, _ in wanted) == 1:
            yield [_one_of(wanted[0][1], [], held)]
            return
        with (RUN / "gathering.lock").open("w") as gathering:
            fcntl.flock(gathering, fcntl.LOCK_EX)
            got: list[str] = []
            for count, keys in wanted:
                for _ in range(count):
                    got.append(_one_of(keys, got, held))
        yield got


def _one_of(keys: list[str], but: list[str], held: contextlib.ExitStack) -> str:
    files = {key: (RUN / f"{key}.lock").open("w") for key in keys if key not in but}
    try:
        while True:
            for key, file in files.items():
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    held.push(files.pop(key))
                    return key
            time.sleep(POLL_S)
    finally:
        for file in files.values():
            file.close()


def _resources(need: dict[str, Any]) -> dict[str, float]:
    found: dict[str, float] = {}
    for vendor, count in need["devices"]:
        total = min(device["memory_gib"] for device in DEVICES)
        share = 1.0
        while need["memory_gib"] and share > 1 / 16 and need["memory_gib"] <= total * share / 2:
            share /= 2
        found["gpu" if vendor in {"nvidia", "any"} else vendor] = share if share < 1 else count
    return found


if WAY == "ours":
    _given: dict[str, list[str]] = {}
    _begun = [0.0]

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
        _begun[0] = time.monotonic()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
        try:
            return (yield)
        finally:  # devices go back here, before the report
            _write("test", item.nodeid, _begun[0], _given.pop(item.nodeid, []))

    @pytest.fixture
    def devices(request: pytest.FixtureRequest, gpus: Any) -> list[str]:
        keys = [gpu.pci_address for gpu in gpus]
        _given[request.node.nodeid] = keys
        return keys

    @pytest.fixture(scope="module")
    def module_device(request: pytest.FixtureRequest, module_gpu: Any) -> Iterator[str]:
        begin = time.monotonic()
        yield module_gpu.pci_address
        _write("module", request.node.nodeid, begin, [module_gpu.pci_address])

else:

    @contextlib.contextmanager
    def _had(need: dict[str, Any]) -> Iterator[list[str]]:
        if WAY == "lock":
            with _locked(need) as keys:
                yield keys
        elif WAY == "isolate":
            keys = []
            for variable, vendor in (("CUDA_VISIBLE_DEVICES", "nvidia"), ("HIP_VISIBLE_DEVICES", "amd")):
                ours = [device["key"] for device in DEVICES if device["vendor"] == vendor]
                if {"gpu": "nvidia"}.get(vendor, vendor) in _wanted(need):
                    keys += [ours[int(number)] for number in os.environ[variable].split(",")]
            yield keys
        else:
            yield os.environ["PLACEMENT_DEVICES"].split(",")

    def _wanted(need: dict[str, Any]) -> set[str]:
        return {{"gpu": "nvidia"}.get(name, name) for name in _resources(need)}

    @pytest.fixture
    def devices(request: pytest.FixtureRequest) -> Iterator[list[str]]:
        with _had(NEEDS[request.node.nodeid]) as keys:
            begin = time.monotonic()
            yield keys
            _write("test", request.node.nodeid, begin, keys)

    @pytest.fixture(scope="module")
    def module_device(request: pytest.FixtureRequest) -> Iterator[str]:
        with _had(NEEDS[request.node.nodeid]) as keys:
            begin = time.monotonic()
            yield keys[0]
            _write("module", request.node.nodeid, begin, keys)

    @pytest.fixture(autouse=True)
    def in_module(request: pytest.FixtureRequest) -> Iterator[None]:
        begin = time.monotonic()
        yield
        if "devices" not in request.fixturenames:
            _write("test", request.node.nodeid, begin, [])


@pytest.fixture(scope="module")
def load(request: pytest.FixtureRequest) -> Callable[[float], None]:
    """Load a model; each time counts."""

    def loaded(seconds: float) -> None:
        begin = time.monotonic()
        time.sleep(seconds)
        _write("setup", request.node.nodeid, begin, [])

    return loaded


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if WAY == "isolate":
        for item in items:
            need = NEEDS.get(item.nodeid) or NEEDS[item.nodeid.partition("::")[0]]
            item.add_marker(pytest.mark.isolate(resources=_resources(need)))


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    if WAY == "isolate" and "PYTEST_XDIST_WORKER" not in os.environ:
        from pytest_isolate.resource_management import register_resource_provider  # type: ignore[import-not-found]

        count = sum(device["vendor"] == "amd" for device in DEVICES)
        register_resource_provider("amd", "HIP_VISIBLE_DEVICES", lambda: list(range(count)))

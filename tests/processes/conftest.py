"""Vendor processes of this interpreter, and proof that they leave nothing behind."""

from __future__ import annotations

import gc
import os
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.host import local_host

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_gpucoexist.processes.process import VendorProcess

Starter = "Callable[..., VendorProcess]"


def children() -> set[int]:
    """Return this process's children, zombies too."""
    found: set[int] = set()
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/children", encoding="ascii") as file:
                found.update(map(int, file.read().split()))
        except FileNotFoundError:
            continue
    return found


def descriptors() -> dict[str, str]:
    """Return the open descriptors and what they are."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # that of the listing
            continue
    return found


def state() -> dict[str, object]:
    """Return what a process must leave as it was."""
    gc.collect()
    threads = {each.name for each in threading.enumerate()}
    return {
        "children": children(),
        "descriptors": descriptors(),
        "threads": threads,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "path": list(sys.path),
    }


@pytest.fixture
def start() -> Iterator[Callable[..., VendorProcess]]:
    """Start vendor processes that end with the test: `start(python=…, environment=…, send_signal=…)`."""
    pytest.importorskip("execnet", reason="needs execnet")
    from pytest_gpucoexist.processes.launch import LaunchOrder
    from pytest_gpucoexist.processes.process import VendorProcess

    before = state()
    running: list[VendorProcess] = []

    def starter(**changes: object) -> VendorProcess:
        host = local_host()
        extra = {name: changes.pop(name) for name in ("send_signal",) if name in changes}
        given: dict[str, object] = {"python": sys.executable, "environment": host.environ, **changes}
        process = VendorProcess(LaunchOrder(**given), host, **extra)  # type: ignore[arg-type]
        running.append(process)
        return process

    yield starter
    for process in running:
        assert process.close().stuck is None or not os.path.exists(f"/proc/{process.pid}")
    after = state()
    # PYTEST_CURRENT_TEST changes with each phase of a test.
    for each in (before, after):
        assert isinstance(each["environment"], dict)
        each["environment"].pop("PYTEST_CURRENT_TEST", None)
    assert after == before


@pytest.fixture
def process(start: Callable[..., VendorProcess]) -> VendorProcess:
    """One process of this interpreter, with this environment."""
    return start()

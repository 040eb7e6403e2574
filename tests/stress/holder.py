"""The conftest of the suite that runs: every holder of a device tells its referee, some leave a grandchild behind.

It is copied into the suite and imports nothing of this project. Every process of a session has `STRESS_TOKEN` in its
environment; `STRESS_RESULTS` is a folder of this session, `STRESS_WHERE` a word for where it runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RESULTS = Path(os.environ["STRESS_RESULTS"])
REFEREES = Path(os.environ["STRESS_REFEREES"])
WHERE = os.environ["STRESS_WHERE"]
MEMORY_MIB: dict[str, int] = json.loads((REFEREES / "memory.json").read_text(encoding="utf-8"))

_connections: set[socket.socket] = set()


def _after_fork() -> None:
    # A child holds nothing: the referee must not count it for its parent.
    for connection in _connections:
        connection.close()
    _connections.clear()


os.register_at_fork(after_in_child=_after_fork)


@contextlib.contextmanager
def _claimed(key: str, who: str, mib: int | None) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(str(REFEREES / key.replace(":", "-")))
        _connections.add(connection)
        claim = {"who": who, "mib": MEMORY_MIB[key] if mib is None else mib, "where": WHERE}
        _say(connection, json.dumps(claim))
        holding = RESULTS / "holding" / str(os.getpid())
        holding.touch()
        try:
            yield
        finally:
            holding.unlink(missing_ok=True)
            _say(connection, "bye")
            _connections.discard(connection)


def _say(connection: socket.socket, line: str) -> None:
    connection.sendall(f"{line}\n".encode())
    if not connection.recv(16):
        raise ConnectionError("the referee is gone")


def _share(item: Any) -> int | None:
    mark = item.get_closest_marker("share")
    return None if mark is None else int(mark.args[0])


@pytest.fixture
def held(request: pytest.FixtureRequest, gpus: Any) -> Iterator[None]:
    """What the test holds, said to the referees."""
    with contextlib.ExitStack() as stack:
        for gpu in gpus:
            stack.enter_context(_claimed(gpu.pci_address, request.node.nodeid, _share(request.node)))
        yield


@pytest.fixture(scope="module")
def module_held(request: pytest.FixtureRequest, module_gpu: Any) -> Iterator[None]:
    """What the module holds, from its first test to its last."""
    with _claimed(module_gpu.pci_address, request.node.nodeid, None):
        yield


@pytest.fixture
def leave() -> Callable[[str, float], None]:
    """Leave a grandchild behind, which lives for so many seconds longer than its parent waits."""

    def left(how: str, seconds: float) -> None:
        if how == "fork":
            _fork(seconds)
        elif how == "exec":
            os.system(f"sleep {seconds} &")  # every descriptor that can be inherited is

    return left


def _fork(seconds: float) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        if os.fork() == 0:
            os.write(writing, b"1")
            time.sleep(seconds)
        os._exit(0)
    os.waitpid(child, 0)
    os.read(reading, 1)
    os.close(reading)
    os.close(writing)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "share(mib): the part of each device's memory that this test says it holds")


def pytest_collection_finish() -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:  # from now on it may be killed
        (RESULTS / "workers" / str(os.getpid())).touch()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    line = [report.nodeid, report.when, report.outcome, "" if report.passed else str(report.longrepr)[-2000:]]
    with (RESULTS / "reports.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")

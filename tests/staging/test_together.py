"""Copies of several threads between the same processes take turns instead of waiting for each other until late."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("numpy", reason="needs NumPy")
pytest.importorskip("execnet", reason="needs execnet")

from pytest_gpucoexist.staging.memory import from_host, to_host
from pytest_gpucoexist.staging.service import Staging

if TYPE_CHECKING:
    from collections.abc import Callable

SIZE = (1 << 20) + 1
ROUNDS = 8


def test_both_directions_at_once_between_two_processes(devices: Callable[..., Any]) -> None:
    (one,), (other,) = devices("nvidia"), devices("amd")
    begin = threading.Barrier(2, timeout=60)
    failed: list[BaseException] = []
    arrived: dict[str, bytes] = {}

    def back_and_forth(name: str, source: Any, target: Any, byte: bytes) -> None:
        try:
            with Staging() as staging, source.allocate(SIZE) as given, target.allocate(SIZE) as taken:
                from_host(staging, byte * SIZE, given)
                begin.wait()
                for _ in range(ROUNDS):
                    assert staging.copy(given, taken).route == "staged"
                arrived[name] = to_host(staging, taken).tobytes()
        except BaseException as error:  # noqa: BLE001 - raised below
            failed.append(error)

    ways = [("there", one, other, b"\x55"), ("back", other, one, b"\xaa")]
    threads = [threading.Thread(target=back_and_forth, args=way) for way in ways]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert arrived == {"there": b"\x55" * SIZE, "back": b"\xaa" * SIZE}

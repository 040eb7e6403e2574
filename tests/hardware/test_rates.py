"""Rates of pinned copies beside what the link allowed meanwhile. They are written down; too fast is a fault of ours.

Measured by the device's own events, in pieces of 8 MiB, each of which the next one waits for.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

import pytest

from tests.hardware.asking import RATED_BYTES
from tests.hardware.links import LinkWatch

pytest.importorskip("numpy", reason="needs numpy")

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucoexist.model.machine import Gpu
    from tests.hardware.measured import Numbers

pytestmark = pytest.mark.hardware

WARM_UP, REPEATS = 1, 5
TOLERANCE = 1.02  # the clock of the device's events


def test_of_pinned_copies(each_gpu: Gpu, gpu_transfer: Any, numbers: Numbers) -> None:
    from pytest_gpucoexist.staging.memory import Bounce

    buffer = gpu_transfer.device_buffer(RATED_BYTES, each_gpu)
    pinned = Bounce(gpu_transfer.staging, buffer.endpoint)

    def to_device() -> None:
        pinned.load(buffer, 0, RATED_BYTES, lambda memory, at: None)

    def to_host() -> None:
        pinned.read(buffer, 0, RATED_BYTES, lambda memory, at: None)

    rows = [_row(way, copy, pinned, each_gpu) for way, copy in (("h2d", to_device), ("d2h", to_host))]
    numbers.add(device=each_gpu.id, name=each_gpu.name, rates=rows)
    for row in rows:
        assert row["gbps"] > 0
        assert row["link_gbps"] is None or row["gbps"] <= TOLERANCE * row["link_gbps"], row


def _row(way: str, copy: Callable[[], None], pinned: Any, gpu: Gpu) -> dict[str, Any]:
    seconds = []
    with LinkWatch(gpu.pci_address) as link:
        for _ in range(WARM_UP + REPEATS):
            before = pinned.seconds
            copy()
            seconds.append(pinned.seconds - before)
    rates = [RATED_BYTES / each / 1e9 for each in seconds[WARM_UP:]]
    allowed = None if link.best is None else link.best / 1e9
    return {
        "way": way, "size_bytes": RATED_BYTES, "gbps": median(rates), "lowest": min(rates), "highest": max(rates),
        "link_gbps": allowed, "of_link": None if allowed is None else median(rates) / allowed,
        "link_readings": link.readings, "pinned": pinned.unpinned or "yes",
    }  # fmt: skip

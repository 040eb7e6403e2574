"""The links between a device and the host, read while copies run: an idle link is slow, and says nothing.

What counts is the slowest hop. The switch inside AMD's cards is no hop: its links, and the one that the GPU itself
reports, are inside the card.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from pytest_gpucoexist.model.trials import LinkReading
from pytest_gpucoexist.probes.parse import link_speed, link_width, word
from pytest_gpucoexist.probes.reader import read_text

if TYPE_CHECKING:
    from types import TracebackType

    from pytest_gpucoexist.host.base import Host
    from pytest_gpucoexist.model.machine import Gpu

__all__ = ["LinkWatch", "allowed", "hops"]

_PERIOD_S = 0.05
_MOST = 64
_AMD = "0x1002"
# Bytes per second of a lane and GT/s, after line coding: 8b/10b up to 5 GT/s, 128b/130b up to 32 (PCIe base
# specification; drivers/pci/pci.h, PCIE_SPEED2MBS_ENC), flits of 242 in 256 bytes from 64 on.
_CODING = ((5.0, 8 / 10), (32.0, 128 / 130), (float("inf"), 242 / 256))


def allowed(speed_gts: float, width: int) -> float:
    """Return the bytes per second that a link allows in one direction, before packet headers."""
    coding = next(share for most, share in _CODING if speed_gts <= most)
    return speed_gts * 1e9 * width * coding / 8


def hops(host: Host, gpu: Gpu) -> tuple[str, ...]:
    """Return the addresses of the lower ends of the hops between a device and the host, nearest the host first."""
    chain = [*(gpu.upstream or ()), *([gpu.pci_address] if gpu.pci_address else [])]
    if gpu.vendor != "amd":
        return tuple(chain[-1:] if gpu.upstream is None else chain)
    inside = [at for at, address in enumerate(chain) if _vendor(host, address) == _AMD]
    return tuple(chain[: inside[0] + 1] if inside else chain)


class LinkWatch:
    """Reads a device's links until the block ends; `readings` are of the slowest hop at each time."""

    def __init__(self, host: Host, gpu: Gpu) -> None:
        """Look once at once: that is before the copies."""
        self._host = host
        self._hops = hops(host, gpu)
        self._stop = threading.Event()
        self._begun: float | None = None
        self.readings: list[LinkReading] = []
        self._look(-1.0)
        self._thread = threading.Thread(target=self._run, name="gpucoexist-links", daemon=True)

    def __enter__(self) -> LinkWatch:  # noqa: PYI034 - Self is of Python 3.11
        """Begin."""
        self._begun = time.monotonic()
        if self.readings:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(1.0)

    def _run(self) -> None:
        while len(self.readings) < _MOST:
            self._look(time.monotonic() - (self._begun or 0.0))  # at once: copies may take less than a period
            if self._stop.wait(_PERIOD_S):
                return

    def _look(self, at: float) -> None:
        found = []
        for address in self._hops:
            folder = f"/sys/bus/pci/devices/{address}"
            speed = read_text(self._host, f"{folder}/current_link_speed").reading("speed", link_speed).value
            width = read_text(self._host, f"{folder}/current_link_width").reading("width", link_width).value
            if speed and width:
                found.append(
                    LinkReading(at=at, hop=address, speed_gts=speed, width=width, bytes_per_s=allowed(speed, width))
                )
        if found:
            self.readings.append(min(found, key=lambda each: each.bytes_per_s))


def _vendor(host: Host, address: str) -> str | None:
    found = read_text(host, f"/sys/bus/pci/devices/{address}/vendor").reading("vendor", word).value
    return None if found is None else str(found)

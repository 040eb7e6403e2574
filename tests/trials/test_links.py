"""The slowest hop between a device and the host, read while copies run."""

from __future__ import annotations

import time

import pytest

from pytest_gpucoexist.model.machine import Gpu
from pytest_gpucoexist.trials.canary import Canary
from pytest_gpucoexist.trials.links import LinkWatch, allowed, hops


class Files:
    """A host with these files alone."""

    def __init__(self, files: dict[str, str]) -> None:
        self.files = files

    def read_text(self, path: str, limit: int = 65536) -> str:
        if path not in self.files:
            raise FileNotFoundError(2, "No such file or directory", path)
        return self.files[path][:limit]


def of_links(links: dict[str, tuple[str, int]], vendors: dict[str, str] | None = None) -> Files:
    files = {}
    for address, (speed, width) in links.items():
        files[f"/sys/bus/pci/devices/{address}/current_link_speed"] = f"{speed} GT/s PCIe\n"
        files[f"/sys/bus/pci/devices/{address}/current_link_width"] = f"{width}\n"
    for address, vendor in (vendors or {}).items():
        files[f"/sys/bus/pci/devices/{address}/vendor"] = f"{vendor}\n"
    return Files(files)


@pytest.mark.parametrize(
    ("speed", "width", "gbps"),
    # Gb/s as the kernel prints them: "126.016 Gb/s available PCIe bandwidth".
    [(8.0, 16, 126.03), (16.0, 16, 252.06), (16.0, 4, 63.02), (32.0, 16, 504.12), (5.0, 8, 32.0), (2.5, 1, 2.0)],
)
def test_what_a_link_allows(speed: float, width: int, gbps: float) -> None:
    assert allowed(speed, width) * 8 / 1e9 == pytest.approx(gbps, rel=1e-3)


def test_the_slowest_hop_counts() -> None:
    gpu = Gpu(id="nvidia0", vendor="nvidia", pci_address="0000:03:00.0", upstream=("0000:00:01.0", "0000:02:00.0"))
    host = of_links({"0000:00:01.0": ("16.0", 16), "0000:02:00.0": ("8.0", 4), "0000:03:00.0": ("16.0", 16)})
    with LinkWatch(host, gpu) as watch:  # type: ignore[arg-type]
        end = time.monotonic() + 60
        while len(watch.readings) < 3 and time.monotonic() < end:
            time.sleep(0.01)
    assert [each.at >= 0 for each in watch.readings][:2] == [False, True]
    assert {(each.hop, each.width) for each in watch.readings} == {("0000:02:00.0", 4)}


def test_copies_that_are_shorter_than_a_period_are_seen_too() -> None:
    gpu = Gpu(id="nvidia0", vendor="nvidia", pci_address="0000:03:00.0", upstream=())
    with LinkWatch(of_links({"0000:03:00.0": ("16.0", 16)}), gpu) as watch:  # type: ignore[arg-type]
        end = time.monotonic() + 60
        while len(watch.readings) < 2 and time.monotonic() < end:
            time.sleep(0.001)
    assert watch.readings[1].at >= 0


def test_the_switch_inside_an_amd_card_is_no_hop() -> None:
    chain = ("0000:00:01.0", "0000:01:00.0", "0000:02:00.0")
    gpu = Gpu(id="amd0", vendor="amd", pci_address="0000:03:00.0", upstream=chain)
    host = of_links({}, {"0000:00:01.0": "0x1022", **dict.fromkeys((*chain[1:], "0000:03:00.0"), "0x1002")})
    assert hops(host, gpu) == ("0000:00:01.0", "0000:01:00.0")  # type: ignore[arg-type]


def test_where_nothing_can_be_read_nothing_is_said() -> None:
    gpu = Gpu(id="nvidia0", vendor="nvidia", pci_address="0000:03:00.0", upstream=None)
    with LinkWatch(Files({}), gpu) as watch:  # type: ignore[arg-type]
        pass
    assert watch.readings == []


def test_a_canary_sings_when_somebody_writes() -> None:
    with Canary(16 << 20) as canary:
        assert canary.changed() == ()
        canary._memory[(5 << 20) + 77] ^= 1
        assert canary.changed() == (4 << 20,)

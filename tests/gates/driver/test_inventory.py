"""Promised GPUs against those on the bus."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.host import open_recording
from pytest_gpucoexist.testing.builder import a_machine
from tests.gates.judging import verdict, verdicts

if TYPE_CHECKING:
    from pathlib import Path

GATE = "drv.inventory"


@pytest.mark.proves(GATE, "PASS", on="tree")
def test_a_kept_promise() -> None:
    machine = a_machine().with_gpu("rtx4090").with_gpu("rx7900xtx").with_gpu("aspeed")
    said = verdicts(machine, GATE, promised={"cuda": 1, "rocm": 1, "gpu": 2})
    assert [each.status for each in said] == ["PASS"] * 3


@pytest.mark.proves(GATE, "FAIL", on="tree")
def test_a_card_is_missing() -> None:
    """pytorch/pytorch#98036: a runner with a GPU less than it should have ran half of its tests, and was green."""
    said = verdict(a_machine().with_gpu("rtx4090").with_gpu("rx7900xtx"), GATE, promised={"cuda": 2})
    assert said.status == "FAIL"
    assert said.reason == "cuda:2 is promised, and 1 NVIDIA GPU(s) are here"
    assert not said.blocks
    assert "reseat the card" in said.action


def test_without_a_promise_it_tells_what_is_here() -> None:
    assert verdict(a_machine().with_gpu("mi210").with_gpu("mi210"), GATE).reason == (
        "2 AMD GPU(s) are here; no number was promised"
    )
    assert verdict(a_machine(), GATE).status == "SKIP"


@pytest.mark.proves(GATE, "UNKNOWN", on="tree")
def test_a_bus_that_cannot_be_read_is_no_empty_bus() -> None:
    machine = a_machine().with_error("/sys/bus/pci/devices", errno.EACCES)
    assert verdict(machine, GATE, promised={"gpu": 1}).status == "UNKNOWN"


@pytest.mark.proves(GATE, "PASS", on="recording")
def test_eight_recorded_accelerators(shared: Path) -> None:
    host = open_recording(str(shared / "machines/kfd/topo-mi210-xgmi-pcie.tar.xz"))
    assert verdict(host, GATE, promised={"rocm": 8}).status == "PASS"
    assert verdict(host, GATE, promised={"rocm": 9}).status == "FAIL"

"""Device nodes that are missing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.vm.guest.drivers import load, unload_all
from tests.vm.guest.judging import said_of
from tests.vm.guest.system import RADEON0, RTX0, nvidia_minor

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _nodes() -> Iterator[None]:
    """Have the usual nodes, and make them anew after what a test does to them."""
    load()
    yield
    unload_all()


@pytest.mark.proves("dev.nv.minor", "PASS", on="vm")
@pytest.mark.proves("dev.nv.minor", "FAIL", on="vm")
def test_no_node_of_one_card() -> None:
    minor = nvidia_minor(RTX0)
    assert said_of("dev.nv.minor", RTX0).status == "PASS"
    os.unlink(f"/dev/nvidia{minor}")
    verdict = said_of("dev.nv.minor", RTX0)
    assert verdict.blocks
    assert f"no /dev/nvidia{minor}" in verdict.reason
    assert f"sudo nvidia-modprobe -c={minor}" in verdict.fix[0].lines


@pytest.mark.proves("dev.nv.ctl", "PASS", on="vm")
@pytest.mark.proves("dev.nv.ctl", "FAIL", on="vm")
def test_no_control_node() -> None:
    assert said_of("dev.nv.ctl", RTX0).status == "PASS"
    os.unlink("/dev/nvidiactl")
    verdict = said_of("dev.nv.ctl", RTX0)
    assert verdict.blocks
    assert "no /dev/nvidiactl" in verdict.reason


@pytest.mark.proves("dev.amd.kfd", "FAIL", on="vm")
def test_no_node_of_rocm() -> None:
    os.unlink("/dev/kfd")
    verdict = said_of("dev.amd.kfd", RADEON0)
    assert verdict.blocks
    assert "no /dev/kfd" in verdict.reason

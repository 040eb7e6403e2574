"""A link that is trained down, and a card that no longer answers, while the machine runs."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from tests.vm.guest.drivers import load, unload_all
from tests.vm.guest.judging import machine, said_of
from tests.vm.guest.port import ask
from tests.vm.guest.system import BUS, RADEON0, RTX2, kernel_log, nvidia_minor, read, run

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def narrow() -> Iterator[None]:
    """Train radeon0 down to four lanes of the first generation."""
    ask("train", card="radeon0", speed_gtps=2.5, width=4)
    yield
    ask("train", card="radeon0", speed_gtps=16.0, width=16)


@pytest.fixture
def lost() -> Iterator[None]:
    """Let rtx2 fall off the bus once the driver has it."""
    load()
    ask("fall_off", card="rtx2")
    yield
    ask("come_back", card="rtx2")
    unload_all()


@pytest.mark.proves("pcie.width", "PASS", on="vm")
def test_a_link_as_wide_as_card_and_port_allow() -> None:
    load()
    verdict = said_of("pcie.width", RADEON0)
    assert verdict.status == "PASS"
    assert "x16" in verdict.reason


@pytest.mark.proves("pcie.width", "WARN", on="vm")
def test_a_link_that_was_trained_down(narrow: None) -> None:
    load()
    (gpu,) = [gpu for gpu in machine().gpus if gpu.pci_address == RADEON0]
    assert (gpu.link.current_speed_gtps, gpu.link.current_width) == (2.5, 4)
    assert (gpu.link.max_speed_gtps, gpu.link.max_width) == (16.0, 16)
    verdict = said_of("pcie.width", RADEON0)
    assert verdict.status == "WARN"
    assert "4 of 16 lanes" in verdict.reason


@pytest.mark.proves("pcie.config_space", "FAIL", on="vm")
def test_a_card_that_fell_off_the_bus(lost: None) -> None:
    assert read(f"{BUS}/{RTX2}/vendor") == "0x10de"
    verdict = said_of("pcie.config_space", RTX2)
    assert verdict.status == "FAIL"
    assert verdict.blocks
    assert "does not answer on the bus any more although nvidia still holds it" in verdict.reason
    assert "Power the machine off" in verdict.action
    (gpu,) = [gpu for gpu in machine().gpus if gpu.pci_address == RTX2]
    assert not gpu.usable.cuda


def test_what_doctor_prints_about_it(lost: None) -> None:
    argv = (sys.executable, "-m", "pytest_gpucoexist", "doctor", "--level", "quick", "--deadline", "60")
    done = run(*argv, "--gate", "pcie.*", check=False)
    assert done.returncode == 1
    said = " ".join(done.stdout.split())
    assert "nvidia2 (0000:83:00.0) does not answer on the bus any more although nvidia still holds it" in said
    assert "Power the machine off completely" in said


@pytest.mark.proves("pcie.config_space", "PASS", on="vm")
def test_its_neighbours_answer(lost: None) -> None:
    load()
    assert said_of("pcie.config_space", RADEON0).status == "PASS"


@pytest.mark.proves("klog.nv.fallen", "FAIL", on="vm")
@pytest.mark.proves("klog.nv.xid", "FAIL", on="vm")
def test_what_the_driver_says_when_somebody_opens_it(lost: None) -> None:
    with pytest.raises(OSError, match="Input/output error"):
        os.open(f"/dev/nvidia{nvidia_minor(RTX2)}", os.O_RDWR)
    assert "GPU has fallen off the bus" in kernel_log()
    for gate in ("klog.nv.fallen", "klog.nv.xid"):
        verdict = said_of(gate, RTX2)
        assert verdict.status == "FAIL"
        assert verdict.blocks
        assert verdict.action


def test_a_driver_that_is_loaded_again_does_not_take_it() -> None:
    unload_all()
    ask("fall_off", card="rtx2")
    try:
        load()
        verdict = said_of("drv.bound_driver", RTX2)
        assert verdict.status == "FAIL"
    finally:
        ask("come_back", card="rtx2")
        unload_all()

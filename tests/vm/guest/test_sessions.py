"""A session of pytest goes on when a card is unplugged or falls off the bus, and says what happened to which test."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import pytest

from tests.vm.guest.drivers import load, unload_all
from tests.vm.guest.judging import judged, machine, said_of
from tests.vm.guest.port import ask
from tests.vm.guest.sessions import session
from tests.vm.guest.system import RADEON1, kernel_log, present, run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

UNFIT = """
import pytest


@pytest.mark.gpu(vendor="nvidia", count=3)
def test_all_of_nvidia(gpus):
    raise AssertionError("one of them is lost")


@pytest.mark.gpu(vendor="nvidia", count=2)
def test_those_that_answer(gpus):
    assert {gpu.id for gpu in gpus} == {"nvidia0", "nvidia1"}


@pytest.mark.gpu(vendor="nvidia")
def test_each(each_gpu):
    assert each_gpu.id in {"nvidia0", "nvidia1"}


@pytest.mark.gpu(vendor="amd")
def test_the_other_vendor(gpu):
    assert gpu.id == "amd0"
"""

UNPLUGGED = """
import os
import time

import pytest

from tests.vm.guest.port import ask


@pytest.mark.gpu(vendor="amd")
def test_before(each_gpu):
    assert os.path.exists(f"/dev/dri/{each_gpu.drm.card}")


def test_somebody_pulls_a_card():
    ask("unplug", card="radeon1")
    end = time.monotonic() + 60
    while os.path.exists("/sys/bus/pci/devices/0000:82:00.0"):
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.gpu(vendor="amd")
def test_after(each_gpu):
    assert os.path.exists(f"/dev/dri/{each_gpu.drm.card}")


@pytest.mark.gpu(vendor="nvidia")
def test_the_other_vendor(gpu):
    assert os.path.exists(f"/dev/dri/{gpu.drm.card}")
"""

FALLEN = '''
import os

import pytest

from tests.vm.guest.port import ask
from tests.vm.guest.system import nvidia_minor


def opened(gpu):
    """Open the node of an NVIDIA GPU, which touches it."""
    os.close(os.open(f"/dev/nvidia{nvidia_minor(gpu.pci_address)}", os.O_RDWR))


@pytest.mark.gpu(vendor="nvidia")
def test_before(each_gpu):
    opened(each_gpu)


def test_a_card_is_lost():
    ask("fall_off", card="rtx2")


@pytest.mark.gpu(vendor="nvidia")
def test_after(each_gpu):
    opened(each_gpu)


@pytest.mark.gpu(vendor="amd")
def test_the_other_vendor(gpu):
    assert os.path.exists(f"/dev/dri/{gpu.drm.card}")
'''


def outcomes(folder: Path, source: str, *arguments: str) -> tuple[dict[str, str], str]:
    """Run a session that must end by itself; return the outcome of each test, and what was printed."""
    done = session(folder, source, "-rA", "-o", "gpu_helper_deadline=60", *arguments)
    print(done.stdout, done.stderr)
    assert done.returncode == 1
    assert "INTERNALERROR" not in done.stdout
    told = re.findall(r"^(PASSED|FAILED|ERROR|SKIPPED) .*?::(\S+)", done.stdout, re.MULTILINE)
    return {name: outcome for outcome, name in told}, done.stdout


@pytest.fixture
def lost_again() -> Iterator[None]:
    """Put rtx2 back on the bus, and have the driver start it anew."""
    load()
    yield
    ask("come_back", card="rtx2")
    unload_all()


def test_a_card_that_is_lost_before_the_session(tmp_path: Path, lost_again: None) -> None:
    ask("fall_off", card="rtx2")
    found, text = outcomes(tmp_path, UNFIT)
    words = (
        "pcie.config_space: nvidia2 (0000:83:00.0) does not answer on the bus any more although nvidia still holds it"
    )
    assert {name for name, outcome in found.items() if outcome == "ERROR"} == {
        "test_all_of_nvidia",
        "test_each[nvidia2]",
    }
    assert {name for name, outcome in found.items() if outcome == "PASSED"} == {
        "test_those_that_answer",
        "test_each[nvidia0]",
        "test_each[nvidia1]",
        "test_the_other_vendor",
    }
    assert "FAIL    pcie.config_space  nvidia2 (0000:83:00.0)  blocks" in text
    assert "Power the machine off completely" in text
    assert f"0000:44:00.0 (fits), 0000:83:00.0 ({words})" in text.partition("ERROR at setup of test_all_of_nvidia")[2]
    assert words in text.partition("ERROR at setup of test_each[nvidia2]")[2]
    assert "1 test (unfit): needs 3 NVIDIA GPUs" in text


def test_a_card_that_falls_off_the_bus_during_a_session(tmp_path: Path, lost_again: None) -> None:
    found, text = outcomes(tmp_path, FALLEN)
    assert found.pop("test_after[nvidia2]") == "ERROR"
    assert set(found.values()) == {"PASSED"}
    assert len(found) == 7
    words = (
        "pcie.config_space: nvidia2 (0000:83:00.0) does not answer on the bus any more although nvidia still holds it"
    )
    assert words in text.partition("ERROR at setup of test_after[nvidia2]")[2]
    assert f"ERROR: nvidia2 (0000:83:00.0) was lost during the session. {words}" in text
    assert "1 test (unfit): needs 1 NVIDIA GPU" in text
    assert "NVRM: Xid (PCI:0000:83:00): 79" in kernel_log()


@pytest.mark.proves("pcie.config_space", "FAIL", on="vm")
@pytest.mark.proves("topo.baseline", "FAIL", on="vm")
@pytest.mark.proves("drv.inventory", "FAIL", on="vm")
@pytest.mark.proves("klog.map_bdf", "WARN", on="vm")
def test_a_card_that_is_unplugged_during_a_session(tmp_path: Path) -> None:
    load()
    before = machine()
    run(sys.executable, "-m", "pytest_gpucoexist", "baseline", "save")
    found, text = outcomes(tmp_path, UNPLUGGED)
    assert not present(RADEON1)
    assert found.pop("test_after[amd1]") == "ERROR"
    words = f"pcie.config_space: amd1 ({RADEON1}) is gone from the bus"
    assert words in text.partition("ERROR at setup of test_after[amd1]")[2]
    assert f"was lost during the session. {words}" in text
    assert set(found.values()) == {"PASSED"}
    assert len(found) == 5
    assert RADEON1 not in {gpu.pci_address for gpu in machine().gpus}
    known = said_of("pcie.config_space", RADEON1, machine=before)
    assert known.blocks
    assert f"amd1 ({RADEON1}) is gone from the bus" in known.reason
    said = {
        verdict.id: verdict
        for verdict in judged("topo.baseline", "drv.inventory", "klog.map_bdf", promised={"amd": 2}).verdicts
    }
    assert (said["topo.baseline"].status, said["drv.inventory"].status) == ("FAIL", "FAIL")
    assert f"{RADEON1} (Navi 31 [Radeon RX 7900 XT/7900 XTX]) is missing" in said["topo.baseline"].reason
    assert "amd:2 is promised, and 1 AMD GPU(s) are here" in said["drv.inventory"].reason
    assert "speaks of an AMD GPU at 0000:82:00, and nothing is there on the bus now" in said["klog.map_bdf"].reason

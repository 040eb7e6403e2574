"""The example with both vendors in one test, word for word, on the demo machine and on both vendors' fake drivers."""

from __future__ import annotations

import importlib.util
import sys
import venv
from typing import TYPE_CHECKING

import pytest

import tests.transfer.needs_numpy  # noqa: F401
from tests.conftest import ROOT
from tests.proofs.on_fakes import run_on_fakes, run_pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.machine import FakeMachine

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux"),
    pytest.mark.skipif(importlib.util.find_spec("execnet") is None, reason="needs execnet"),
]

EXAMPLE = str(ROOT / "examples" / "cross_vendor")
TESTS = 4

_TWO_INTERPRETERS = """
from where import where

def test_each_vendor_has_its_interpreter(gpu_pair, gpu_process):
    nvidia, amd = gpu_pair
    assert gpu_process(nvidia).run(where) == {nvidia!r}
    assert gpu_process(amd).run(where) == {amd!r}
"""


@pytest.fixture(autouse=True)
def leases_of_this_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "leases").mkdir()
    monkeypatch.setenv("PYTEST_GPU_LEASE_DIR", str(tmp_path / "leases"))


def test_it_runs_on_the_demo_machine() -> None:
    done = run_pytest(EXAMPLE, "--gpu-machine=demo", "--gpu-simulate")
    assert done.returncode == 0, done.stdout
    assert f"{TESTS} passed" in done.stdout
    assert f"{TESTS} GPU tests ran on stand-ins" in done.stdout


def test_it_runs_on_both_vendors_drivers(
    fake_gpus: FakeMachine, fake_cuda: dict[str, str], fake_hip: dict[str, str], tmp_path: Path
) -> None:
    done = run_on_fakes(fake_gpus, tmp_path, EXAMPLE)
    assert done.returncode == 0, done.stdout
    assert f"{TESTS} passed" in done.stdout
    assert "ran on stand-ins" not in done.stdout
    contexts = fake_gpus.contexts()
    of_vendor = {vendor: {pid for pid, device in contexts if device.startswith(vendor)} for vendor in ("nvidia", "amd")}
    assert all(of_vendor.values())
    assert not of_vendor["nvidia"] & of_vendor["amd"]
    for vendor in ("nvidia", "amd"):
        moved = [sum(fake_gpus.copied(f"{vendor}.{number}.{way}")[1] for number in (0, 1)) for way in ("h2d", "d2h")]
        assert min(moved) >= 8_000_024  # the array, and the verified sizes


def test_a_corrupting_hop_fails_it(
    fake_gpus: FakeMachine, fake_cuda: dict[str, str], fake_hip: dict[str, str], tmp_path: Path
) -> None:
    for number in (0, 1):
        fake_gpus.order(f"amd.{number}.copy.h2d", "flip 2", each=True)
    done = run_on_fakes(fake_gpus, tmp_path, EXAMPLE, "-k", "every_byte")
    assert done.returncode == 1, done.stdout
    assert "flipped" in done.stdout


def test_each_vendor_runs_its_own_interpreter(
    fake_gpus: FakeMachine, fake_cuda: dict[str, str], fake_hip: dict[str, str], tmp_path: Path
) -> None:
    pythons = {}
    for vendor in ("nvidia", "amd"):
        folder = tmp_path / vendor
        venv.create(folder, with_pip=False, symlinks=True)
        pythons[vendor] = str(folder)
    suite = tmp_path / "suite"
    suite.mkdir()
    (suite / "where.py").write_text("import sys\n\ndef where():\n    return sys.prefix\n")
    (suite / "test_two.py").write_text(_TWO_INTERPRETERS.format(**pythons))
    (suite / "pytest.ini").write_text(
        "[pytest]\n" + "".join(f"gpu_python_{vendor} = {path}/bin/python\n" for vendor, path in pythons.items())
    )
    done = run_on_fakes(fake_gpus, tmp_path, str(suite))
    assert done.returncode == 0, done.stdout

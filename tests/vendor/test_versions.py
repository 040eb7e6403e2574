"""Older and newer clients, and other people's programs, on the fake drivers."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.testing.vendor_replies import amdsmi_reply, nvml_reply
from tests.fakes.build import amdsmi_library
from tests.vendor.environments import installed
from tests.vendor.machines import A100, MI210, RTX_4090, W7900
from tests.vendor.test_provenance import ask

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.machine import FakeMachine

pytestmark = pytest.mark.slow


def values(reply: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in reply.items() if key != "client"}


@pytest.mark.parametrize("version", ["12.535.161", "12.575.51"])
def test_older_nvidia_ml_py(machine: FakeMachine, fake_drivers_cache: Path, version: str) -> None:
    machine.nvidia(RTX_4090, A100)
    reply = ask("nvml", installed(fake_drivers_cache, f"nvidia-ml-py=={version}"))
    assert reply.status == "ok", reply.detail
    assert reply.data["client"]["version"] == version
    expected = nvml_reply([RTX_4090, A100])
    for device, other in zip(reply.data["devices"], expected["devices"], strict=True):
        told = {name: cell for name, cell in device.items() if name != "memory_numa_node"}
        assert told == {name: cell for name, cell in other.items() if name != "memory_numa_node"}
        assert device["memory_numa_node"]["status"] == "unsupported"


@pytest.mark.parametrize("version", ["6.2.4", "6.3.3", "6.4.4", "7.0.0"])
def test_other_amdsmi(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, fake_drivers_cache: Path, version: str
) -> None:
    """Each version has structures, names and defaults of its own; the fake is built for it."""
    site = installed(fake_drivers_cache, f"amdsmi=={version}")
    library = amdsmi_library(fake_drivers_cache, site / "amdsmi")
    monkeypatch.setenv("ROCM_PATH", str(library))
    monkeypatch.setenv("ROCM_HOME", str(library))
    machine.amd(W7900, replace(MI210, name="AMD Instinct MI210"), p2p=[(0, 1)])
    if version == "6.3.3":  # the number in decimal, and 9010 for gfx90a
        machine.put({"amd.0.target_graphics_version": 1100, "amd.1.target_graphics_version": 9010})
    reply = ask("amdsmi", site)
    assert reply.status == "ok", reply.detail
    assert reply.data["client"]["version"] == version
    expected = amdsmi_reply([W7900, replace(MI210, name="AMD Instinct MI210")], p2p=[(0, 1)])
    for device, other in zip(reply.data["devices"], expected["devices"], strict=True):
        assert device.keys() == other.keys()
        for name in ("bdf", "uuid", "memory", "driver", "vbios", "numa_node", "ecc", "processes", "compute_partition"):
            assert device[name] == other[name], name
        asic = device["asic"]["value"]
        assert asic["market_name"] == other["asic"]["value"]["market_name"]
        if version != "6.2.4":
            assert asic["target"] == other["asic"]["value"]["target"]
            assert device["kfd"] == other["kfd"]
        assert [link["p2p"] for link in device["links"]["value"]] == [{"value": True}]
        assert [link["type"] for link in device["links"]["value"]] == [{"value": "pcie"}]


def test_amdsmi_of_one_release_and_the_library_of_another(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, fake_drivers_cache: Path
) -> None:
    older = amdsmi_library(fake_drivers_cache, installed(fake_drivers_cache, "amdsmi==6.2.4") / "amdsmi")
    monkeypatch.setenv("ROCM_PATH", str(older))
    monkeypatch.setenv("ROCM_HOME", str(older))
    machine.amd(W7900)
    reply = ask("amdsmi", installed(fake_drivers_cache, "amdsmi==7.0.2"))
    assert reply.status == "broken"
    assert "amdsmi 7.0.2 does not match" in (reply.detail or "")


def test_the_old_fork_of_pynvml_beside_nvidia_ml_py(machine: FakeMachine, fake_drivers_cache: Path) -> None:
    machine.nvidia(RTX_4090)
    fork = installed(fake_drivers_cache, "pynvml==11.5.3")
    alone = ask("nvml", fork)
    assert alone.status == "broken"
    assert "which is not nvidia-ml-py" in (alone.detail or "")
    both = ask("nvml", fork, installed(fake_drivers_cache, "nvidia-ml-py==12.575.51"))
    assert both.status == "ok", both.detail
    assert both.data["client"]["shadowed_by"] == str(fork / "pynvml" / "__init__.py")


def test_nvitop_draws_the_fake_machine(machine: FakeMachine, fake_drivers_cache: Path) -> None:
    python, environ = sys.executable, dict(os.environ)
    if "GPUCOEXIST_VENDOR_PYTHON" in os.environ:  # an environment that has it
        python = os.environ["GPUCOEXIST_VENDOR_PYTHON"]
    else:
        environ["PYTHONPATH"] = str(installed(fake_drivers_cache, "nvitop==1.7.2", dependencies=True))
    machine.nvidia(RTX_4090, replace(A100, mig=None))
    machine.put({"nvidia.0.temperature": 52, "nvidia.0.fan": 33, "nvidia.0.power_mw": 87000})
    environ |= {"TERM": "dumb", "COLUMNS": "120"}
    done = subprocess.run(
        [python, "-m", "nvitop", "-1", "--ascii"], env=environ, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    for text in ("Driver Version: 570.133.07", "CUDA", "12.8", "4090", "A100-SXM4-40GB", "2048MiB / 24.00GiB", "52C"):
        assert text in done.stdout, done.stdout
    assert "nvmlDeviceGetMemoryInfo_v2" in machine.calls() or "nvmlDeviceGetMemoryInfo" in machine.calls()

"""A board's health by the real clients, of several releases, on fake drivers."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.helpers.amdsmi_health import HEALTH as AMD_HEALTH
from pytest_gpucoexist.helpers.nvml_health import HEALTH as NVML_HEALTH
from pytest_gpucoexist.host.helpers import ask_helpers
from tests.fakes.build import amdsmi_library
from tests.vendor.environments import installed
from tests.vendor.machines import A100, RTX_4090, W7900

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.machine import FakeMachine

NOT_SUPPORTED = {"status": "unsupported", "detail": "NVML: Not Supported"}

NVML_KEYS = {
    "ecc_corrected_volatile": 5,
    "ecc_uncorrected_aggregate": 2,
    "rows_correctable": 1,
    "rows_pending": 1,
    "banks_max": 640,
    "banks_low": 1,
    "pages_single_bit": 3,
    "pages_double_bit": 0,
    "pages_pending": 0,
    "inforom": 1,
    "field.230": 2,
    "field.82": 61,
    "temperature": 55,
    "threshold.1": 92,
    "power_limit_mw": 400000,
    "power_enforced_mw": 400000,
    "power_default_mw": 400000,
    "power_mw": 60000,
    "clocks_event_reasons": 1,
    "nvlink.0.up": 1,
    "nvlink.0.crc": 9,
    "nvlink.1.up": 0,
    "mps_processes": "77:0",
    "gsp_firmware": "570.133.07",
    "pstate": 0,
    "pcie_replays": 4,
    "display_active": 1,
}


def health_of(helper: str, *folders: Path) -> dict[str, Any]:
    """Ask for health, with the packages of these folders before the installed ones."""
    import os

    path = [*map(str, folders), *sys.path]
    reply = ask_helpers([helper], {"health": True}, environ=os.environ, python_path=path, deadline_s=60)[helper]
    assert reply.status == "ok", reply.detail
    health: dict[str, Any] = reply.data["devices"][0]["health"]
    return health


def described(machine: FakeMachine) -> None:
    machine.nvidia(A100)
    machine.put({f"nvidia.0.{name}": value for name, value in NVML_KEYS.items()})


def check_nvml(health: dict[str, Any]) -> None:
    assert set(health) == set(NVML_HEALTH)
    known = {name: cell["value"] for name, cell in health.items() if "value" in cell}
    assert known["ecc_errors"] == {
        "corrected_volatile": 5,
        "uncorrected_volatile": 0,
        "corrected_aggregate": 0,
        "uncorrected_aggregate": 2,
    }
    assert known["remapped_rows"] == {"correctable": 1, "uncorrectable": 0, "pending": True, "failure": False}
    assert known["row_histogram"] == {"max": 640, "high": 0, "partial": 0, "low": 1, "none": 0}
    assert known["retired_pages"] == {"single_bit": 3, "double_bit": 0}
    assert (known["retired_pending"], known["inforom"], known["recovery_action"]) == (False, "valid", 2)
    assert (known["temperature"], known["memory_temperature"]) == (55, 61)
    assert known["thresholds"]["slowdown"] == {"value": 92}
    assert known["power"]["default_mw"] == {"value": 400000}
    assert known["nvlinks"] == [{"link": 0, "replay": {"value": 0}, "recovery": {"value": 0}, "crc": {"value": 9}}]
    assert known["gsp_firmware"] == "570.133.07"
    assert (known["mps_processes"], known["pcie_replays"], known["display_active"]) == ([77], 4, True)


def test_every_value_of_nvml(machine: FakeMachine) -> None:
    described(machine)
    machine.put({"nvidia.0.sram_threshold_exceeded": 1, "nvidia.0.sram_uncorrectable_aggregate": 6})
    health = health_of("nvml")
    check_nvml(health)
    assert health["clocks_event_reasons"] == {"value": 1}
    assert health["sram"] == {
        "value": {
            "threshold_exceeded": True,
            "uncorrectable_aggregate": 6,
            "uncorrectable_volatile": 0,
            "correctable": 0,
        }
    }


def test_a_board_without_any_of_it(machine: FakeMachine) -> None:
    """Consumer boards say NOT_SUPPORTED, old drivers lack the function: neither is broken."""
    machine.nvidia(RTX_4090)
    health = health_of("nvml")
    assert {cell.get("status") for cell in health.values() if "value" not in cell} == {"unsupported"}
    told = {name for name, cell in health.items() if "value" in cell}
    assert told == {"thresholds", "power", "clocks", "violations", "utilization", "reserved_memory", "mps_processes"}
    assert health["remapped_rows"] == NOT_SUPPORTED
    assert "this board has no NVLink" in health["nvlinks"]["detail"]


@pytest.mark.parametrize("flag", [0, 1])
def test_the_flag_that_the_clients_structure_misses(machine: FakeMachine, flag: int) -> None:
    """nvml.h has one word, nvidia-ml-py 13 a version before it: its own wrapper says 0 whatever the driver wrote."""
    machine.nvidia(A100)
    machine.put({"nvidia.0.unrepairable_memory": flag})
    assert health_of("nvml")["unrepairable_memory"] == {"value": bool(flag)}


@pytest.mark.parametrize(("code", "status"), [(15, "broken"), (4, "denied"), (13, "unsupported"), (25, "unsupported")])
def test_one_function_that_fails_hides_nothing_else(machine: FakeMachine, code: int, status: str) -> None:
    described(machine)
    machine.fault("nvidia.0.nvmlDeviceGetRemappedRows", f"status {code}")
    health = health_of("nvml")
    assert health["remapped_rows"]["status"] == status
    assert health["remapped_rows"].get("code") == (15 if status == "broken" else None)
    assert health["row_histogram"]["value"]["max"] == 640


def test_health_is_asked_for_only_when_wanted(machine: FakeMachine) -> None:
    machine.nvidia(A100)
    machine.amd(W7900)
    import os

    replies = ask_helpers(["nvml", "amdsmi"], {}, environ=os.environ, python_path=sys.path, deadline_s=60)
    assert all("health" not in device for reply in replies.values() for device in reply.data["devices"])
    assert "nvmlDeviceGetRemappedRows" not in machine.calls()


def check_amd(machine: FakeMachine, *folders: Path) -> None:
    machine.amd(W7900)
    # amdsmi.h: sensor 0 is the edge, 1 the hotspot, 2 the memory; metric 0 is now, 5 or 6 the critical one.
    temperatures = {f"amd.0.temperature.{sensor}.0": 40 + sensor for sensor in range(4)}
    machine.put({**temperatures, "amd.0.power_cap": 241, "amd.0.power_cap_default": 295, "amd.0.activity": 7})
    machine.put({"amd.0.xgmi_error": 1, "amd.0.bad_page_threshold": 128})
    health = health_of("amdsmi", *folders)
    assert set(health) == set(AMD_HEALTH)
    known = {name: cell["value"] for name, cell in health.items() if "value" in cell}
    assert known["temperatures"]["edge"]["now"] == 40
    assert {sensor["now"] for sensor in known["temperatures"].values()} <= {40, 41, 42, 43}
    assert (known["power_cap"], known["activity"]["gfx"]) == ({"now": 241, "default": 295}, 7)
    assert known["xgmi_error"] == 1
    broken = {name: cell for name, cell in health.items() if cell.get("status") not in {None, "unsupported"}}
    assert not broken


def test_every_value_of_amdsmi(machine: FakeMachine) -> None:
    check_amd(machine)


@pytest.mark.slow
@pytest.mark.parametrize("version", ["12.535.161", "12.575.51"])
def test_older_nvidia_ml_py(machine: FakeMachine, fake_drivers_cache: Path, version: str) -> None:
    described(machine)
    health = health_of("nvml", installed(fake_drivers_cache, f"nvidia-ml-py=={version}"))
    check_nvml(health)
    assert not [name for name, cell in health.items() if cell.get("status") == "broken"]


@pytest.mark.slow
@pytest.mark.parametrize("version", ["6.2.4", "6.3.3", "6.4.4", "7.0.0"])
def test_other_amdsmi(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, fake_drivers_cache: Path, version: str
) -> None:
    site = installed(fake_drivers_cache, f"amdsmi=={version}")
    library = amdsmi_library(fake_drivers_cache, site / "amdsmi")
    monkeypatch.setenv("ROCM_PATH", str(library))
    monkeypatch.setenv("ROCM_HOME", str(library))
    check_amd(machine, site)

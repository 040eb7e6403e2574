"""What NVML and AMD SMI say about the health of boards that are well, in the form of the helpers' `health`.

A board says `unsupported` for what it does not have: a GeForce knows neither ECC nor remapped rows, a Radeon neither
violations nor bad pages. The values are those of idle boards (captures of nvidia-smi and rocm-smi).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucoexist.testing.catalogue import GpuModel

__all__ = ["amdsmi_health", "nvml_health"]

_BANKS = {"max": 640, "high": 0, "partial": 0, "low": 0, "none": 0}
_NO_ERRORS = {
    "corrected_volatile": 0,
    "uncorrected_volatile": 0,
    "corrected_aggregate": 0,
    "uncorrected_aggregate": 0,
}


def nvml_health(model: GpuModel, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the health cells of an idle board; `changes` are values (None: unsupported) by name."""
    sram = {"threshold_exceeded": False, "uncorrectable_aggregate": 0, "uncorrectable_volatile": 0, "correctable": 0}
    rows = {"correctable": 0, "uncorrectable": 0, "pending": False, "failure": False}
    values: dict[str, Any] = {
        "ecc_errors": _NO_ERRORS if model.ecc else None,
        "sram": sram if model.ecc else None,
        "remapped_rows": rows if model.ecc else None,
        "row_histogram": _BANKS if model.ecc else None,
        "retired_pages": None,
        "retired_pending": None,
        "repair": None,
        "unrepairable_memory": None,
        "recovery_action": 0,
        "inforom": "valid",
        "temperature": 38,
        "memory_temperature": None,
        "temperature_margin": None,
        "thresholds": _cells(_nvml, {"shutdown": 100, "slowdown": 97, "memory_max": None, "gpu_max": 90}),
        "power": _cells(_nvml, {"limit_mw": 450000, "enforced_mw": 450000, "default_mw": 450000, "used_mw": 21000}),
        "clocks": _cells(_nvml, {"applications_mhz": None, "default_applications_mhz": None}),
        "clocks_event_reasons": 1,
        "violations": _cells(_nvml, {"power": 0, "thermal": 0, "board_limit": 0, "reliability": 0}),
        "nvlinks": None,
        "reserved_memory": 400 * 2**20,
        "utilization": {"gpu": 0, "memory": 0},
        "mps_processes": [],
        "gsp_firmware": None,
        "pstate": 8,
        "pcie_replays": 0,
        "display_active": False,
    }
    return _cells(_nvml, {**values, **changes})


def amdsmi_health(model: GpuModel, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the health cells of an idle board; `changes` are values (None: unsupported) by name."""
    temperature = {"edge": (41, 100), "hotspot": (44, 110), "vram": (46, 105)}
    values: dict[str, Any] = {
        "bad_page_threshold": 128 if model.ecc else None,
        "xgmi_error": None,
        "violations": None,
        "throttle_status": 0,
        "temperatures": {name: {"now": now, "critical": critical} for name, (now, critical) in temperature.items()},
        "power_cap": {"now": 300, "default": 300},
        "pcie": {"replays": 0, "nak_sent": 0, "nak_received": 0},
        "activity": {"gfx": 0, "memory": 0},
        "perf_level": "AUTO",
    }
    return _cells(_amd, {**values, **changes})


def _cells(cell: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Make cells of values; what is a cell already (`{"status", "detail"}`) stays one."""
    return {
        name: dict(value) if isinstance(value, dict) and set(value) >= {"status", "detail"} else cell(value)
        for name, value in values.items()
    }


def _nvml(value: Any) -> dict[str, Any]:
    return {"status": "unsupported", "detail": "NVML: Not Supported"} if value is None else {"value": value}


def _amd(value: Any) -> dict[str, Any]:
    detail = "AMD SMI: AMDSMI_STATUS_NOT_SUPPORTED - Feature not supported"
    return {"status": "unsupported", "detail": detail} if value is None else {"value": value}

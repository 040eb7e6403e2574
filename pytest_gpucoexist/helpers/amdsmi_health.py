"""What AMD SMI knows about a board's health, a part of helper `amdsmi`. Every value is a CELL (`helpers/cells.py`).

bad_page_threshold  pages after which the driver asks for another board
xgmi_error          0 no error, 1 one, 2 several since the last reset of the counter
violations          {"prochot", "power", "socket", "regulator", "memory"}: bool or null, limits that hold it back now
throttle_status     bit mask, the same on every generation (kernel: amdgpu_smu.h, SMU_THROTTLER_…)
temperatures        {"edge", "hotspot", "vram"}: {"now", "critical"} CELL each, degrees C
power_cap           {"now", "default"} in the library's own unit, which changed between releases
pcie                {"replays", "nak_sent", "nak_received"}
activity            {"gfx", "memory"} in percent
perf_level          "AUTO", "LOW", "MANUAL", …
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.helpers.cells import NotKnown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["HEALTH"]


def _known(value: Any) -> Any:
    """Return a number, or None for amdsmi's ways of writing that there is none: "N/A" and all bits set."""
    if isinstance(value, bool):
        return value
    numbers = {0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF}
    return value if isinstance(value, int) and value not in numbers else None


def _violations(smi: Any, device: Any) -> dict[str, bool | None]:
    status = smi.amdsmi_get_violation_status(device)
    names = {
        "prochot": "active_prochot_thrm",
        "power": "active_ppt_pwr",
        "socket": "active_socket_thrm",
        "regulator": "active_vr_thrm",
        "memory": "active_hbm_thrm",
    }
    return {name: value if isinstance(value := status.get(key), bool) else None for name, key in names.items()}


def _throttle_status(smi: Any, device: Any) -> int:
    value = _known(smi.amdsmi_get_gpu_metrics_info(device).get("indep_throttle_status"))
    if value is None:
        raise NotKnown("unsupported", "this board's metrics have no such mask")
    return int(value)


def _temperatures(smi: Any, device: Any) -> dict[str, dict[str, Any]]:
    sensors = {"edge": "EDGE", "hotspot": "HOTSPOT", "vram": "VRAM"}
    metrics = {"now": "CURRENT", "critical": "CRITICAL"}

    def read(sensor: str, metric: str) -> int | None:
        kinds, values = smi.AmdSmiTemperatureType, smi.AmdSmiTemperatureMetric
        try:
            return int(smi.amdsmi_get_temp_metric(device, getattr(kinds, sensor), getattr(values, metric)))
        except (AttributeError, smi.AmdSmiException):
            return None

    found = {name: {each: read(sensor, metrics[each]) for each in metrics} for name, sensor in sensors.items()}
    if all(sensor["now"] is None for sensor in found.values()):
        smi.amdsmi_get_temp_metric(device, smi.AmdSmiTemperatureType.EDGE, smi.AmdSmiTemperatureMetric.CURRENT)
    return found


def _power_cap(smi: Any, device: Any) -> dict[str, int]:
    info = smi.amdsmi_get_power_cap_info(device)
    now, default = _known(info.get("power_cap")), _known(info.get("default_power_cap"))
    if not now or not default:
        raise NotKnown("unsupported", "this board tells no power cap")
    return {"now": now, "default": default}


def _pcie(smi: Any, device: Any) -> dict[str, int | None]:
    metric = smi.amdsmi_get_pcie_info(device).get("pcie_metric", {})
    names = {
        "replays": "pcie_replay_count",
        "nak_sent": "pcie_nak_sent_count",
        "nak_received": "pcie_nak_received_count",
    }
    return {name: _known(metric.get(key)) for name, key in names.items()}


def _activity(smi: Any, device: Any) -> dict[str, int | None]:
    activity = smi.amdsmi_get_gpu_activity(device)
    return {"gfx": _known(activity.get("gfx_activity")), "memory": _known(activity.get("umc_activity"))}


HEALTH: Mapping[str, Callable[[Any, Any], Any]] = {
    "bad_page_threshold": lambda smi, device: smi.amdsmi_get_gpu_bad_page_threshold(device),
    "xgmi_error": lambda smi, device: int(smi.amdsmi_gpu_xgmi_error_status(device)),
    "violations": _violations,
    "throttle_status": _throttle_status,
    "temperatures": _temperatures,
    "power_cap": _power_cap,
    "pcie": _pcie,
    "activity": _activity,
    "perf_level": lambda smi, device: str(smi.amdsmi_get_gpu_perf_level(device)).rpartition("_PERF_LEVEL_")[2],
}
"""How each value is read."""

"""What NVML knows about a board's health, a part of helper `nvml`. Every value is a CELL (`helpers/cells.py`).

ecc_errors          {"corrected_volatile", "uncorrected_volatile", "corrected_aggregate", "uncorrected_aggregate"}
sram                {"threshold_exceeded": bool, "uncorrectable_aggregate", "uncorrectable_volatile", "correctable"}
remapped_rows       {"correctable", "uncorrectable", "pending": bool, "failure": bool}
row_histogram       banks by spare rows left: {"max", "high", "partial", "low", "none"}
retired_pages       {"single_bit", "double_bit"};  retired_pending  bool
repair              {"channel_pending": bool, "tpc_pending": bool};  unrepairable_memory  bool
recovery_action     nvml.h, nvmlDeviceGpuRecoveryAction_t: 0 none, 1 reset, 2 reboot, …
inforom             "valid" | "corrupted"
temperature         degrees C;  memory_temperature  likewise;  temperature_margin  degrees to the slowdown
thresholds          {"shutdown", "slowdown", "memory_max", "gpu_max"}: CELL each, degrees C
power               {"limit_mw", "enforced_mw", "default_mw", "used_mw"}: CELL each
clocks              {"applications_mhz", "default_applications_mhz"}: CELL each, of the multiprocessors
clocks_event_reasons  bit mask of nvml.h;  violations  {"power", "thermal", …}: CELL each, ns since the driver loaded
nvlinks             [{"link", "crc", "replay", "recovery"}]: CELL each, of the links that are up
reserved_memory     bytes that driver and firmware keep;  utilization  {"gpu", "memory"} in percent
mps_processes       [pid, …];  gsp_firmware  version;  pstate, pcie_replays, display_active
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.helpers.cells import Cell, NotKnown, plain_text
from pytest_gpucoexist.helpers.nvml_cells import nvml_cell

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["HEALTH", "confidential_compute", "health_of"]

_MAX_LINKS = 18  # of any GPU so far (GH100, GB100); nvml.h has room for more
_SENSOR_GPU = 0
_CLOCK_SM = 1
# nvml.h; numbers, because older clients lack the names of newer fields.
_FIELD_MEMORY_TEMPERATURE = 82
_FIELD_RECOVERY_ACTION = 230
_UNTOUCHED = 0xA5A5A5A5


def health_of(nvml: Any, device: Any) -> dict[str, Cell]:
    """Read every name of `HEALTH`. Never raises."""
    return {name: nvml_cell(nvml, _old_drivers_lack, nvml, read, device) for name, read in HEALTH.items()}


def confidential_compute(nvml: Any) -> dict[str, int]:
    """Return whether the system runs confidential computing, as nvml.h numbers it."""
    state = nvml.nvmlSystemGetConfComputeState()
    return {"environment": state.environment, "feature": state.ccFeature}


def _old_drivers_lack(nvml: Any, read: Callable[[Any, Any], Any], device: Any) -> Any:
    """Call `read`; a function that the driver's library is too old to have is no fault of the board."""
    try:
        return read(nvml, device)
    except nvml.NVMLError as error:
        if error.value in {
            nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
            getattr(nvml, "NVML_ERROR_ARGUMENT_VERSION_MISMATCH", 25),
        }:
            raise NotKnown("unsupported", f"this driver is too old to tell: {error}") from None
        raise


def _each(nvml: Any, reads: Mapping[str, Callable[[], Any]]) -> dict[str, Cell]:
    return {name: nvml_cell(nvml, read) for name, read in reads.items()}


def _ecc_errors(nvml: Any, device: Any) -> dict[str, int]:
    kinds = {"corrected": 0, "uncorrected": 1}
    periods = {"volatile": 0, "aggregate": 1}
    return {
        f"{kind}_{period}": nvml.nvmlDeviceGetTotalEccErrors(device, kinds[kind], periods[period])
        for kind in kinds
        for period in periods
    }


def _sram(nvml: Any, device: Any) -> dict[str, Any]:
    status = nvml.c_nvmlEccSramErrorStatus_v1_t()
    nvml.nvmlDeviceGetSramEccErrorStatus(device, ctypes.byref(status))
    return {
        "threshold_exceeded": bool(status.bThresholdExceeded),
        "uncorrectable_aggregate": status.aggregateUncParity + status.aggregateUncSecDed,
        "uncorrectable_volatile": status.volatileUncParity + status.volatileUncSecDed,
        "correctable": status.volatileCor,
    }


def _remapped_rows(nvml: Any, device: Any) -> dict[str, Any]:
    correctable, uncorrectable, pending, failure = nvml.nvmlDeviceGetRemappedRows(device)
    return {
        "correctable": correctable,
        "uncorrectable": uncorrectable,
        "pending": bool(pending),
        "failure": bool(failure),
    }


def _row_histogram(nvml: Any, device: Any) -> dict[str, int]:
    banks = nvml.nvmlDeviceGetRowRemapperHistogram(device)
    return {name: getattr(banks, name) for name in ("max", "high", "partial", "low", "none")}


def _retired_pages(nvml: Any, device: Any) -> dict[str, int]:
    causes = {"single_bit": 0, "double_bit": 1}
    return {name: len(nvml.nvmlDeviceGetRetiredPages(device, cause)) for name, cause in causes.items()}


def _repair(nvml: Any, device: Any) -> dict[str, bool]:
    channel, tpc = nvml.nvmlDeviceGetRepairStatus(device)
    return {"channel_pending": bool(channel), "tpc_pending": bool(tpc)}


def _unrepairable_memory(nvml: Any, device: Any) -> bool:
    """Return the flag wherever the driver writes it.

    nvml.h 13 has a structure of the flag alone, nvidia-ml-py 13 one with a version before it: the client's own wrapper
    would show 0 whatever the driver said. So both words are given, and the one that changed is the answer.
    """
    words = (ctypes.c_uint * 2)(getattr(nvml, "nvmlUnrepairableMemory_v1", 0x1000008), _UNTOUCHED)
    version = words[0]
    function = nvml._nvmlGetFunctionPointer("nvmlDeviceGetUnrepairableMemoryFlag_v1")  # noqa: SLF001
    code = function(device, ctypes.byref(words))
    if code != nvml.NVML_SUCCESS:
        raise nvml.NVMLError(code)
    if words[1] != _UNTOUCHED:
        return bool(words[1])
    if words[0] != version:
        return bool(words[0])
    raise NotKnown("broken", "the driver returned without writing the flag")


def _field(nvml: Any, device: Any, number: int) -> int:
    """Return a field value of nvml.h. Raises NVMLError with the field's own code."""
    value = nvml.nvmlDeviceGetFieldValues(device, [number])[0]
    if value.nvmlReturn != nvml.NVML_SUCCESS:
        # A field that the driver does not know is an invalid argument to it.
        unknown = value.nvmlReturn == nvml.NVML_ERROR_INVALID_ARGUMENT
        raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED if unknown else value.nvmlReturn)
    members = {1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
    member = members.get(value.valueType)
    if member is None:
        raise NotKnown("broken", f"field {number} has a value of type {value.valueType}")
    return int(getattr(value.value, member))


def _inforom(nvml: Any, device: Any) -> str:
    try:
        nvml.nvmlDeviceValidateInforom(device)
    except nvml.NVMLError as error:
        if error.value != nvml.NVML_ERROR_CORRUPTED_INFOROM:
            raise
        return "corrupted"
    return "valid"


def _temperature(nvml: Any, device: Any) -> int:
    """Return degrees C. The newer function is not in every driver, the older one not in every future client."""
    newer = getattr(nvml, "nvmlDeviceGetTemperatureV", None)
    if newer is not None:
        try:
            return int(newer(device, _SENSOR_GPU))
        except nvml.NVMLError as error:
            if error.value not in {nvml.NVML_ERROR_FUNCTION_NOT_FOUND, nvml.NVML_ERROR_NOT_SUPPORTED}:
                raise
    return int(nvml.nvmlDeviceGetTemperature(device, _SENSOR_GPU))


def _thresholds(nvml: Any, device: Any) -> dict[str, Cell]:
    kinds = {"shutdown": 0, "slowdown": 1, "memory_max": 2, "gpu_max": 3}
    return {name: nvml_cell(nvml, nvml.nvmlDeviceGetTemperatureThreshold, device, kind) for name, kind in kinds.items()}


def _power(nvml: Any, device: Any) -> dict[str, Cell]:
    return _each(
        nvml,
        {
            "limit_mw": lambda: nvml.nvmlDeviceGetPowerManagementLimit(device),
            "enforced_mw": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(device),
            "default_mw": lambda: nvml.nvmlDeviceGetPowerManagementDefaultLimit(device),
            "used_mw": lambda: nvml.nvmlDeviceGetPowerUsage(device),
        },
    )


def _clocks(nvml: Any, device: Any) -> dict[str, Cell]:
    return _each(
        nvml,
        {
            "applications_mhz": lambda: nvml.nvmlDeviceGetApplicationsClock(device, _CLOCK_SM),
            "default_applications_mhz": lambda: nvml.nvmlDeviceGetDefaultApplicationsClock(device, _CLOCK_SM),
        },
    )


def _event_reasons(nvml: Any, device: Any) -> int:
    read = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    if read is not None:
        try:
            return int(read(device))
        except nvml.NVMLError as error:
            if error.value != nvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                raise
    return int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(device))


def _violations(nvml: Any, device: Any) -> dict[str, Cell]:
    policies = {"power": 0, "thermal": 1, "board_limit": 3, "reliability": 5}
    return {
        name: nvml_cell(nvml, lambda policy: nvml.nvmlDeviceGetViolationStatus(device, policy).violationTime, policy)
        for name, policy in policies.items()
    }


def _nvlinks(nvml: Any, device: Any) -> list[dict[str, Any]]:
    """Read the counters of the links that are up. A board without NVLink has none."""
    counters = {"replay": 0, "recovery": 1, "crc": 2}
    found = []
    for link in range(_MAX_LINKS):
        try:
            if not nvml.nvmlDeviceGetNvLinkState(device, link):
                continue
        except nvml.NVMLError as error:
            if error.value not in {nvml.NVML_ERROR_INVALID_ARGUMENT, nvml.NVML_ERROR_NOT_SUPPORTED}:
                raise
            if link == 0:
                raise NotKnown("unsupported", "this board has no NVLink") from None
            break
        cells = {
            name: nvml_cell(nvml, nvml.nvmlDeviceGetNvLinkErrorCounter, device, link, number)
            for name, number in counters.items()
        }
        found.append({"link": link, **cells})
    return found


def _reserved_memory(nvml: Any, device: Any) -> int:
    version = getattr(nvml, "nvmlMemory_v2", 0x2000028)
    return int(nvml.nvmlDeviceGetMemoryInfo(device, version=version).reserved)


def _utilization(nvml: Any, device: Any) -> dict[str, int]:
    rates = nvml.nvmlDeviceGetUtilizationRates(device)
    return {"gpu": rates.gpu, "memory": rates.memory}


def _gsp_firmware(nvml: Any, device: Any) -> str:
    buffer = ctypes.create_string_buffer(80)  # NVML_GSP_FIRMWARE_VERSION_BUF_SIZE; older clients want it given
    nvml.nvmlDeviceGetGspFirmwareVersion(device, buffer)
    return plain_text(buffer.value)


HEALTH: Mapping[str, Callable[[Any, Any], Any]] = {
    "ecc_errors": _ecc_errors,
    "sram": _sram,
    "remapped_rows": _remapped_rows,
    "row_histogram": _row_histogram,
    "retired_pages": _retired_pages,
    "retired_pending": lambda nvml, device: bool(nvml.nvmlDeviceGetRetiredPagesPendingStatus(device)),
    "repair": _repair,
    "unrepairable_memory": _unrepairable_memory,
    "recovery_action": lambda nvml, device: _field(nvml, device, _FIELD_RECOVERY_ACTION),
    "inforom": _inforom,
    "temperature": _temperature,
    "memory_temperature": lambda nvml, device: _field(nvml, device, _FIELD_MEMORY_TEMPERATURE),
    "temperature_margin": lambda nvml, device: nvml.nvmlDeviceGetMarginTemperature(device),
    "thresholds": _thresholds,
    "power": _power,
    "clocks": _clocks,
    "clocks_event_reasons": _event_reasons,
    "violations": _violations,
    "nvlinks": _nvlinks,
    "reserved_memory": _reserved_memory,
    "utilization": _utilization,
    "mps_processes": lambda nvml, device: [each.pid for each in nvml.nvmlDeviceGetMPSComputeRunningProcesses(device)],
    "gsp_firmware": _gsp_firmware,
    "pstate": lambda nvml, device: nvml.nvmlDeviceGetPerformanceState(device),
    "pcie_replays": lambda nvml, device: nvml.nvmlDeviceGetPcieReplayCounter(device),
    "display_active": lambda nvml, device: bool(nvml.nvmlDeviceGetDisplayActive(device)),
}
"""How each value is read."""

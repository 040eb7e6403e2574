"""Machines out of what `nvidia-smi -q` (text or XML) printed on real ones: NVML's values, in the helper's form."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.host.base import HelperReply
from pytest_gpucoexist.model.identity import normal_pci_address
from pytest_gpucoexist.testing.builder import MachineBuilder, a_machine

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["machine_of", "sections_of"]

Values = dict[str, str]
_REASONS = {
    "Idle": 0x1,
    "Applications Clocks Setting": 0x2,
    "SW Power Cap": 0x4,
    "HW Slowdown": 0x8,
    "Sync Boost": 0x10,
    "SW Thermal Slowdown": 0x20,
    "HW Thermal Slowdown": 0x40,
    "HW Power Brake Slowdown": 0x80,
}
_XML = {
    "Persistence Mode": "persistence_mode",
    "Display Active": "display_active",
    "Compute Mode": "compute_mode",
    "Product Name": "product_name",
    "MIG Mode/Current": "mig_mode/current_mig",
    "MIG Mode/Pending": "mig_mode/pending_mig",
    "ECC Mode/Current": "ecc_mode/current_ecc",
    "ECC Mode/Pending": "ecc_mode/pending_ecc",
    "ECC Errors/Volatile/DRAM Uncorrectable": "ecc_errors/volatile/dram_uncorrectable",
    "ECC Errors/Volatile/SRAM Uncorrectable": "ecc_errors/volatile/sram_uncorrectable",
    "ECC Errors/Volatile/DRAM Correctable": "ecc_errors/volatile/dram_correctable",
    "ECC Errors/Aggregate/DRAM Uncorrectable": "ecc_errors/aggregate/dram_uncorrectable",
    "Remapped Rows/Correctable Error": "remapped_rows/remapped_row_corr",
    "Remapped Rows/Uncorrectable Error": "remapped_rows/remapped_row_unc",
    "Remapped Rows/Pending": "remapped_rows/remapped_row_pending",
    "Remapped Rows/Remapping Failure Occurred": "remapped_rows/remapped_row_failure",
    "Retired Pages/Single Bit ECC": "retired_pages/multiple_single_bit_retirement/retired_count",
    "Retired Pages/Double Bit ECC": "retired_pages/double_bit_retirement/retired_count",
    "Retired Pages/Pending Page Blacklist": "retired_pages/pending_blacklist",
    "Temperature/GPU Current Temp": "temperature/gpu_temp",
    "Temperature/GPU Slowdown Temp": "temperature/gpu_temp_slow_threshold",
    "Temperature/Memory Current Temp": "temperature/memory_temp",
    "FB Memory Usage/Total": "fb_memory_usage/total",
    "FB Memory Usage/Reserved": "fb_memory_usage/reserved",
    "FB Memory Usage/Used": "fb_memory_usage/used",
}


def machine_of(text: str) -> MachineBuilder:
    """Build the machine whose NVML said this: the whole text of `nvidia-smi -q`, or its XML."""
    boards = _from_xml(text) if text.lstrip().startswith("<?xml") else _from_text(text)
    assert boards, "no GPU in this capture"
    version = re.search(r"Driver Version\s*: (\S+)|<driver_version>(.*?)<", text)
    machine = a_machine().with_nvidia_driver((version[1] or version[2]) if version else "535.86.10")
    for address, values in boards:
        ecc = values.get("ECC Mode/Current", "N/A") != "N/A" or "Retired Pages/Single Bit ECC" in values
        machine = machine.with_gpu("a100" if ecc else "rtx4090", address=address, name=values.get("Product Name"))
    data = machine.host().ask("nvml").data
    for device, (_, values) in zip(data["devices"], boards, strict=True):
        _describe(device, values)
    return machine.with_reply("nvml", HelperReply(status="ok", data=data, duration_s=0.1))


def sections_of(capture: str) -> dict[str, str]:
    """Return the parts of a capture of nvidia_gpu_exporter that are `nvidia-smi -q`, by their state: idle, load."""
    found = re.findall(r"^# (\w+) :: query \(-q\)\n#[^\n]*\n#+\n(.*?)(?=^#{20}|\Z)", capture, re.MULTILINE | re.DOTALL)
    return dict(found)


def _from_text(text: str) -> list[tuple[str, Values]]:
    boards: list[tuple[str, Values]] = []
    path: list[tuple[int, str]] = []
    for line in text.splitlines():
        start = re.match(r"GPU ([0-9A-Fa-f:.]+)\s*$", line)
        if start:
            address = normal_pci_address(start[1])
            assert address is not None
            boards.append((address, {}))
            path = []
            continue
        if not boards or not line.strip() or not line.startswith(" "):
            continue
        depth = len(line) - len(line.lstrip())
        path = [each for each in path if each[0] < depth]
        name, colon, value = (part.strip() for part in line.partition(" : "))
        if colon:
            boards[-1][1]["/".join([*(each for _, each in path), name])] = value
        if not colon or name == "HW Slowdown":
            path.append((depth, name))
    return boards


def _from_xml(text: str) -> list[tuple[str, Values]]:
    boards = []
    for gpu in ET.fromstring(text).iter("gpu"):
        values = {name: found for name, path in _XML.items() if (found := gpu.findtext(path)) is not None}
        for reason in gpu.iter():
            match = re.fullmatch(r"clocks_(?:event|throttle)_reasons?_(\w+)", reason.tag)
            for name in _REASONS:
                if match and match[1].replace("gpu_", "") == name.lower().replace(" ", "_"):
                    values[f"Clocks Event Reasons/{name}"] = reason.text or ""
        address = normal_pci_address(gpu.attrib["id"])
        assert address is not None
        boards.append((address, values))
    return boards


def _describe(device: dict[str, Any], values: Values) -> None:
    health = device["health"]
    words = {"Enabled": True, "Disabled": False, "Yes": True, "No": False}

    def cell(name: str, convert: Callable[[str], Any]) -> dict[str, Any]:
        text = values.get(name, "N/A").strip("[]")
        if text in {"N/A", "Not Supported"}:
            return {"status": "unsupported", "detail": "NVML: Not Supported"}
        if text in {"Unknown Error", "ERR!", "GPU requires reset"}:
            code = {"code": 16} if "reset" in text else {"code": 999}
            return {"status": "broken", "detail": f"NVML: {text}", **code}
        return {"value": convert(text)}

    def number(text: str) -> int:
        return round(float(text.split(maxsplit=1)[0]))

    def group(holder: dict[str, Any], key: str, parts: dict[str, tuple[str, Callable[[str], Any]]]) -> None:
        cells = {name: cell(path, convert) for name, (path, convert) in parts.items()}
        bad = next((each for each in cells.values() if "value" not in each), None)
        holder[key] = bad or {"value": {name: each["value"] for name, each in cells.items()}}

    switch = words.__getitem__
    group(device, "ecc", {"current": ("ECC Mode/Current", switch), "pending": ("ECC Mode/Pending", switch)})
    group(device, "mig", {"current": ("MIG Mode/Current", switch), "pending": ("MIG Mode/Pending", switch)})
    if device["mig"] == {"value": {"current": True, "pending": True}}:
        device["mig_devices"] = {"value": [{"uuid": {"value": "MIG-x"}}]}
    device["persistence"] = cell("Persistence Mode", switch)
    modes = {"Default": "default", "Exclusive_Process": "exclusive process", "Prohibited": "prohibited"}
    device["compute_mode"] = cell("Compute Mode", modes.__getitem__)
    mib = {name: cell(f"FB Memory Usage/{name.capitalize()}", number) for name in ("total", "used", "reserved")}
    if "value" in mib["total"] and "value" in mib["used"]:
        reserved = mib["reserved"].get("value", 0)
        used, total = (mib["used"]["value"] + reserved) << 20, mib["total"]["value"] << 20
        device["memory"] = {"value": {"total": total, "used": used, "free": total - used}}
        health["reserved_memory"] = {"value": reserved << 20}

    def errors(period: str, kind: str) -> dict[str, Any]:
        """Add DRAM and SRAM, as nvmlDeviceGetTotalEccErrors does; older boards print one total."""
        names = [name for name in values if re.fullmatch(rf"ECC Errors/{period}/[DS]RAM {kind}.*", name)]
        counts = [cell(name, number) for name in names]
        known = [each["value"] for each in counts if "value" in each]
        return {"value": sum(known)} if known else {"status": "unsupported", "detail": "NVML: Not Supported"}

    counts = {
        f"{word}_{period.lower()}": errors(period, kind)
        for word, kind in (("corrected", "Correctable"), ("uncorrected", "Uncorrectable"))
        for period in ("Volatile", "Aggregate")
    }
    if all("value" in each for each in counts.values()):
        health["ecc_errors"] = {"value": {name: each["value"] for name, each in counts.items()}}
    else:
        health["ecc_errors"] = {"status": "unsupported", "detail": "NVML: Not Supported"}
    threshold = cell("ECC Errors/Aggregate/SRAM Threshold Exceeded", switch)
    sram = {"uncorrectable_aggregate": 0, "uncorrectable_volatile": 0, "correctable": 0}
    health["sram"] = (
        threshold if "value" not in threshold else {"value": {"threshold_exceeded": threshold["value"], **sram}}
    )
    rows = "Remapped Rows"
    group(
        health,
        "remapped_rows",
        {
            "correctable": (f"{rows}/Correctable Error", number),
            "uncorrectable": (f"{rows}/Uncorrectable Error", number),
            "pending": (f"{rows}/Pending", switch),
            "failure": (f"{rows}/Remapping Failure Occurred", switch),
        },
    )
    histogram = f"{rows}/Bank Remap Availability Histogram"
    names = ("Max", "High", "Partial", "Low", "None")
    group(health, "row_histogram", {name.lower(): (f"{histogram}/{name}", number) for name in names})
    pages = {"single_bit": "Single Bit ECC", "double_bit": "Double Bit ECC"}
    group(health, "retired_pages", {name: (f"Retired Pages/{path}", number) for name, path in pages.items()})
    health["retired_pending"] = cell("Retired Pages/Pending Page Blacklist", switch)
    actions = {"None": 0, "Reset": 1, "Reboot": 2, "Drain P2P": 3, "Drain and Reset": 4}
    health["recovery_action"] = cell("GPU Recovery Action", actions.__getitem__)
    health["temperature"] = cell("Temperature/GPU Current Temp", number)
    health["memory_temperature"] = cell("Temperature/Memory Current Temp", number)
    health["temperature_margin"] = cell("Temperature/GPU T.Limit Temp", number)
    slowdown = cell("Temperature/GPU Slowdown Temp", number)
    health["thresholds"] = {"value": {"slowdown": slowdown}}
    health["display_active"] = cell("Display Active", switch)
    reasons = ("Clocks Event Reasons", "Clocks Throttle Reasons")
    active = [
        bit
        for name, bit in _REASONS.items()
        for path in reasons
        if values.get(f"{path}/{name}", values.get(f"{path}/HW Slowdown/{name}")) == "Active"
    ]
    health["clocks_event_reasons"] = {"value": sum(active)}
    watts = {
        "limit_mw": "Requested Power Limit",
        "enforced_mw": "Current Power Limit",
        "default_mw": "Default Power Limit",
    }
    power = {
        name: cell(f"GPU Power Readings/{path}", lambda text: round(1000 * float(text.split(maxsplit=1)[0])))
        for name, path in watts.items()
    }
    health["power"] = {"value": power}

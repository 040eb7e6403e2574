"""Helper `amdsmi`: what AMD's management library knows, as JSON. Runs in a process of its own.

    {"client": {"distribution", "version", "path"},
     "library_version": CELL, "rocm_version": CELL,                                      "26.0.2", "7.0.2"
     "count": 2,
     "devices": [{"index": 0, "fault": null, "bdf": CELL, "uuid": CELL, …}, …]}          every name in `FIELDS`

CELL is `{"value": …}` or `{"status", "detail"}`. Of the fields that are not plain numbers or texts:

    uuid          ROCr's and HIP's own: "GPU-" and 16 hexadecimal digits of KFD's `unique_id`
    asic          {"market_name", "target": "gfx1100", "device_id": "0x7448", "compute_units"}; null where unknown
    memory        {"total": bytes, "used": bytes} of VRAM
    kfd           {"kfd_id", "node_id", "partition_id"}
    ecc           {"enabled_blocks": bit mask, "correctable", "uncorrectable", "deferred"}; the counts are null without
    processes     [{"pid", "memory": bytes | null, "name": text | null}]
    links         [{"peer": index, "type": "pcie" | "xgmi" | …, "hops", "p2p": bool}]: CELL each; one per other device

The request `{"health": true}` adds `health` to each device (`helpers/amdsmi_health.py`). A refusal carries `{"cause"}`:
`no-client`, `client`, `no-library`, `library`, `not-loaded`, `denied` or `unknown`.

Versions 6.2 to 7.x differ in names, units and defaults. What a version does not have is `unsupported`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from pytest_gpucoexist.helpers.amdsmi_client import load_amdsmi_client
from pytest_gpucoexist.helpers.amdsmi_health import HEALTH
from pytest_gpucoexist.helpers.cells import Cell, NotKnown, cell, plain_text
from pytest_gpucoexist.helpers.protocol import HelperBroken, HelperDenied, HelperUnsupported

__all__ = ["FIELDS", "answer"]

Read = Callable[[Any, Any], Any]

_STATUSES = {
    "AMDSMI_STATUS_NOT_SUPPORTED": "unsupported",
    "AMDSMI_STATUS_NOT_YET_IMPLEMENTED": "unsupported",
    "AMDSMI_STATUS_NO_DATA": "unsupported",
    "AMDSMI_STATUS_SETTING_UNAVAILABLE": "unsupported",
    "AMDSMI_STATUS_FILE_NOT_FOUND": "unsupported",
    "AMDSMI_STATUS_DIRECTORY_NOT_FOUND": "unsupported",
    "AMDSMI_STATUS_NO_PERM": "denied",
    "AMDSMI_STATUS_NOT_FOUND": "absent",
}


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Ask AMD SMI for everything. Raises HelperAbsent, HelperUnsupported, HelperDenied or HelperBroken."""
    smi, client = load_amdsmi_client()
    try:
        smi.amdsmi_init()
    except smi.AmdSmiLibraryException as error:
        _refuse(error)
    try:
        handles = smi.amdsmi_get_processor_handles()
        return {
            "client": client,
            "library_version": _cell(_library_version, smi),
            "rocm_version": _cell(_rocm_version, smi),
            "count": len(handles),
            "devices": [
                _device(smi, index, handles, health=bool(request.get("health"))) for index in range(len(handles))
            ],
        }
    finally:
        with contextlib.suppress(smi.AmdSmiException):
            smi.amdsmi_shut_down()


def _device(smi: Any, index: int, handles: list[Any], *, health: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {name: _cell(read, smi, handles[index]) for name, read in FIELDS.items()}
    if health:
        fields["health"] = {name: _cell(read, smi, handles[index]) for name, read in HEALTH.items()}
    return {"index": index, "fault": None, **fields, "links": _cell(_links, smi, index, handles)}


def _refuse(error: Any) -> None:
    words = _words(error)
    if words.startswith("AMDSMI_STATUS_DRIVER_NOT_LOADED"):
        raise HelperUnsupported(
            "AMD SMI is installed, but the amdgpu driver is not loaded", cause="not-loaded"
        ) from None
    if words.startswith("AMDSMI_STATUS_NO_PERM"):
        raise HelperDenied("AMD SMI: no permission to talk to the amdgpu driver", cause="denied") from None
    raise HelperBroken(f"AMD SMI did not initialise: {words}", cause="unknown") from None


def _words(error: Any) -> str:
    return " ".join(str(getattr(error, "err_info", None) or error).split())


def _cell(read: Callable[..., Any], *arguments: Any) -> Cell:
    return cell(_explain, read, *arguments)


def _explain(error: Exception) -> NotKnown:
    if isinstance(error, AttributeError) and "amdsmi_" in str(error):
        return NotKnown("unsupported", f"this version of amdsmi has no such function: {error}")
    if not hasattr(error, "err_code"):
        return NotKnown("broken", f"{type(error).__name__}: {error}")
    words = _words(error)
    return NotKnown(_STATUSES.get(words.split(" ", 1)[0], "broken"), f"AMD SMI: {words}")


def _known(value: Any) -> Any:
    """Return a value, or None for amdsmi's ways of writing that there is none: "N/A", "" and all bits set."""
    return None if value in {"N/A", "", 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF} else value


def _library_version(smi: Any) -> str:
    version = smi.amdsmi_get_lib_version()
    return ".".join(str(version[name]) for name in ("major", "minor", "release"))


def _rocm_version(smi: Any) -> str:
    known, text = smi.amdsmi_get_rocm_version()
    if not known:
        raise NotKnown("absent", str(text))
    return plain_text(text)


def _uuid(smi: Any, device: Any) -> str:
    """HIP's UUID; before amdsmi 6.4 from the serial of the chip, which is the same number."""
    try:
        text = str(smi.amdsmi_get_gpu_enumeration_info(device)["hip_uuid"])
        if text.startswith("GPU-"):
            return text
    except (AttributeError, KeyError, smi.AmdSmiException):
        pass
    number = int(plain_text(smi.amdsmi_get_gpu_asic_info(device)["asic_serial"]), 16)
    if number == 0:
        raise NotKnown("unsupported", "this GPU has no unique number")
    return f"GPU-{number:016x}"


def _asic(smi: Any, device: Any) -> dict[str, Any]:
    info = smi.amdsmi_get_gpu_asic_info(device)
    name = _known(info.get("market_name"))
    return {
        # A card that libdrm's table does not know has its device id for a name.
        "market_name": None if name is None or name.lower().startswith("0x") else name,
        "target": _target(_known(info.get("target_graphics_version"))),
        "device_id": _known(info.get("device_id")),
        "compute_units": _known(info.get("num_compute_units")),
    }


def _target(text: str | None) -> str | None:
    """Gfx target. amdsmi 6.3 writes the step of gfx90a in decimal ("gfx9010") unless it knows the card's name."""
    if text in {None, "gfx0"}:
        return None
    return "gfx90a" if text == "gfx9010" else text


def _memory(smi: Any, device: Any) -> dict[str, int]:
    """VRAM in bytes. `amdsmi_get_gpu_vram_usage` counts in MiB, so it comes second."""
    vram = smi.AmdSmiMemoryType.VRAM
    try:
        return {
            "total": smi.amdsmi_get_gpu_memory_total(device, vram),
            "used": smi.amdsmi_get_gpu_memory_usage(device, vram),
        }
    except (AttributeError, smi.AmdSmiException):
        usage = smi.amdsmi_get_gpu_vram_usage(device)
        return {"total": usage["vram_total"] << 20, "used": usage["vram_used"] << 20}


def _driver(smi: Any, device: Any) -> dict[str, str | None]:
    info = smi.amdsmi_get_gpu_driver_info(device)
    return {"name": _known(info.get("driver_name")), "version": _known(info.get("driver_version"))}


def _vbios(smi: Any, device: Any) -> dict[str, str | None]:
    info = smi.amdsmi_get_gpu_vbios_info(device)
    return {"version": _known(info.get("version")), "part_number": _known(info.get("part_number"))}


def _kfd(smi: Any, device: Any) -> dict[str, int | None]:
    info = smi.amdsmi_get_gpu_kfd_info(device)
    return {
        "kfd_id": _known(info.get("kfd_id")),
        "node_id": _known(info.get("node_id")),
        "partition_id": _known(info.get("current_partition_id")),
    }


def _numa_node(smi: Any, device: Any) -> int | None:
    """Return the NUMA node, or None where the machine does not say (the kernel's -1, here read as unsigned)."""
    node: int | None = _known(smi.amdsmi_topo_get_numa_node_number(device))
    return node


def _ecc(smi: Any, device: Any) -> dict[str, int | None]:
    enabled = smi.amdsmi_get_gpu_ecc_enabled(device)
    try:
        counts = smi.amdsmi_get_gpu_total_ecc_count(device)
    except smi.AmdSmiException:
        counts = {}
    names = {"correctable": "correctable_count", "uncorrectable": "uncorrectable_count", "deferred": "deferred_count"}
    return {"enabled_blocks": enabled} | {name: counts.get(key) for name, key in names.items()}


def _pcie(smi: Any, device: Any) -> dict[str, Any]:
    info = smi.amdsmi_get_pcie_info(device)
    metric, static = info.get("pcie_metric", {}), info.get("pcie_static", {})
    return {
        "speed_mtps": _known(metric.get("pcie_speed", "N/A")),
        "width": _known(metric.get("pcie_width", "N/A")),
        "max_speed_mtps": _known(static.get("max_pcie_speed", "N/A")),
        "max_width": _known(static.get("max_pcie_width", "N/A")),
    }


def _processes(smi: Any, device: Any) -> list[dict[str, Any]]:
    found = []
    for process in smi.amdsmi_get_gpu_process_list(device):
        usage = process.get("memory_usage") or {}
        found.append(
            {"pid": process["pid"], "memory": _known(usage.get("vram_mem", "N/A")), "name": _known(process.get("name"))}
        )
    return found


def _links(smi: Any, index: int, handles: list[Any]) -> list[dict[str, Any]]:
    links = []
    for peer, handle in enumerate(handles):
        if peer == index:
            continue
        link = _cell(smi.amdsmi_topo_get_link_type, handles[index], handle)
        known = link.get("value")
        links.append(
            {
                "peer": peer,
                "type": {"value": _link_type(smi, known["type"])} if known else link,
                "hops": {"value": known["hops"]} if known else link,
                "p2p": _cell(smi.amdsmi_is_P2P_accessible, handles[index], handle),
            }
        )
    return links


def _link_type(smi: Any, number: int) -> str:
    """Name a link's type through the client's own enumeration: its numbers and names changed in 7.0."""
    kinds = getattr(smi, "AmdSmiIoLinkType", None) or getattr(smi, "AmdSmiLinkType", None)
    try:
        name = kinds(number).name.upper()  # type: ignore[misc]
    except (TypeError, ValueError):
        return f"type {number}"
    return "xgmi" if "XGMI" in name else "pcie" if "PCI" in name else name.rsplit("_", 1)[-1].lower()


FIELDS: Mapping[str, Read] = {
    "bdf": lambda smi, device: plain_text(smi.amdsmi_get_gpu_device_bdf(device)),
    "uuid": _uuid,
    "asic": _asic,
    "memory": _memory,
    "driver": _driver,
    "vbios": _vbios,
    "compute_partition": lambda smi, device: plain_text(smi.amdsmi_get_gpu_compute_partition(device)),
    "memory_partition": lambda smi, device: plain_text(smi.amdsmi_get_gpu_memory_partition(device)),
    "kfd": _kfd,
    "numa_node": _numa_node,
    "ecc": _ecc,
    "pcie": _pcie,
    "processes": _processes,
}
"""How each field of a device is read (`links` stands apart: it needs the other devices)."""

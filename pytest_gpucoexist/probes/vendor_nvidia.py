"""What NVML says about each GPU and each MIG instance (the reply's shape: `helpers/nvml.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.model.identity import normal_pci_address
from pytest_gpucoexist.model.machine import Conflict, Runtime
from pytest_gpucoexist.model.readings import Observation, Reading
from pytest_gpucoexist.probes.cells import Answer, devices_of, fault_of, processes_of, reading_of, value_of
from pytest_gpucoexist.probes.pci import BUS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_gpucoexist.host.base import Host

__all__ = ["FIELDS", "read_reply"]

_SOURCE = "nvml"

FIELDS = ("uuid", "memory_total_bytes", "memory_free_bytes", "arch", "driver_version", "vbios_version", "processes")
"""The fields of a Gpu that nobody else can answer when NVML does not."""

# Double precision at half the rate of single: "Arithmetic Instructions" of the CUDA C++ Programming Guide (32 or 64
# results per clock and multiprocessor; consumer chips have 2).
_FP64 = {"6.0", "7.0", "8.0", "9.0", "10.0"}


def read_reply(host: Host, data: object) -> Answer:
    """Understand the reply of helper `nvml`. Raises ValueError when it is no such reply."""
    devices = devices_of(data)
    assert isinstance(data, dict)  # devices_of has checked it
    answer = Answer(runtimes=list(_runtimes(data)))
    client = data.get("client")
    if isinstance(client, dict) and client.get("shadowed_by"):
        answer.conflicts.append(_shadowed(client, str(client["shadowed_by"])))
    for device in devices:
        fault = fault_of(device)
        if fault is not None:
            answer.faults.append(fault)
            answer.conflicts.append(_lost(device, fault))
            answer.observations.append(Observation(probe=_SOURCE))
            continue
        whole = _whole(host, data, device, answer)
        answer.observations.append(whole)
        answer.observations += _instances(host, data, device, whole)
    return answer


def _runtimes(data: Mapping[str, Any]) -> Iterator[Runtime]:
    nvml, cuda = value_of(data, "nvml_version"), value_of(data, "cuda_driver_version")
    if isinstance(nvml, str):
        yield Runtime(name="nvml", kind="runtime", version=nvml, vendors=("nvidia",), source=_SOURCE)
    if isinstance(cuda, int) and cuda > 0:
        version = f"{cuda // 1000}.{cuda % 1000 // 10}"  # cuda.h: 1000 * major + 10 * minor
        yield Runtime(name="cuda", kind="runtime", version=version, vendors=("nvidia",), source=_SOURCE)


def _shadowed(client: Mapping[str, Any], shadow: str) -> Conflict:
    return Conflict(
        subject="pynvml",
        kind="import",
        message=f"`import pynvml` gives {shadow} in place of {client.get('distribution')}'s {client.get('path')}",
        claims={"pynvml": shadow, str(client.get("distribution")): client.get("path")},
    )


def _lost(device: Mapping[str, Any], fault: tuple[str, str]) -> Conflict:
    return Conflict(
        subject="nvidia",
        kind="device-fault",
        message=f"NVML counts device {device.get('index')} and cannot ask it: {fault[1]}",
        claims={"index": device.get("index"), "status": fault[0], "detail": fault[1]},
    )


def _whole(host: Host, data: Mapping[str, Any], device: Mapping[str, Any], answer: Answer) -> Observation:
    readings = [
        reading_of("uuid", device, "uuid", _SOURCE, str),
        reading_of("name", device, "name", _SOURCE, str),
        reading_of("vbios_version", device, "vbios_version", _SOURCE, str),
        *_common(host, data, device, device),
        reading_of("features.ecc", device, "ecc", _SOURCE, lambda mode: bool(mode["current"])),
        reading_of("features.mig", device, "mig", _SOURCE, lambda mode: bool(mode["current"])),
        reading_of("features.p2p", device, "p2p", _SOURCE, _p2p),
        reading_of("features.large_bar", device, "bar1", _SOURCE, lambda bar: _large_bar(bar, device)),
    ]
    address, uuid = _address(device), value_of(device, "uuid")
    if address is not None and (host.exists(f"{BUS}/{address}") or not host.exists(BUS)):
        creates = not host.exists(BUS)
        return Observation(
            probe=_SOURCE,
            pci_address=address,
            uuid=uuid,
            creates=creates,
            readings=(*readings, *(_identity(device) if creates else ())),
        )
    if address is not None:
        answer.conflicts.append(
            Conflict(
                subject=uuid or address,
                kind="no-pci-function",
                message=f"NVML shows a GPU at {address}, where the PCI bus of this system has nothing",
                claims={_SOURCE: address, "pci": None},
            )
        )
    return Observation(probe=_SOURCE, uuid=uuid, creates=uuid is not None, readings=(*readings, *_identity(device)))


def _identity(device: Mapping[str, Any]) -> list[Reading]:
    """Say what PCI would have said, of a GPU that only NVML shows."""
    readings = [Reading(field="vendor", value="nvidia", source=_SOURCE)]
    pci = value_of(device, "pci")
    if isinstance(pci, dict) and str(pci.get("device", ""))[6:] == "10de":
        readings.append(Reading(field="vendor_id", value="0x10de", source=_SOURCE))
        readings.append(Reading(field="device_id", value=str(pci["device"])[:6], source=_SOURCE))
    return readings


def _address(device: Mapping[str, Any]) -> str | None:
    pci = value_of(device, "pci")
    return normal_pci_address(str(pci.get("address"))) if isinstance(pci, dict) else None


def _common(host: Host, data: Mapping[str, Any], device: Mapping[str, Any], part: Mapping[str, Any]) -> list[Reading]:
    """Read what a GPU and an instance of it have alike; architecture and driver are the GPU's."""
    return [
        reading_of("memory_total_bytes", part, "memory", _SOURCE, lambda memory: int(memory["total"]) or None),
        reading_of("memory_free_bytes", part, "memory", _SOURCE, lambda memory: int(memory["free"])),
        reading_of("arch", device, "compute_capability", _SOURCE, str),
        reading_of("driver_version", data, "driver_version", _SOURCE, str),
        reading_of("features.fp64", device, "compute_capability", _SOURCE, lambda capability: capability in _FP64),
        reading_of("processes", part, "processes", _SOURCE, lambda found: processes_of(host, _SOURCE, found)),
    ]


def _p2p(peers: list[Mapping[str, Any]]) -> bool | None:
    """Whether the driver offers reads and writes to at least one peer; that data arrives is not proven by it."""
    return any(peer["read"] == "ok" and peer["write"] == "ok" for peer in peers) if peers else None


def _large_bar(bar: Mapping[str, Any], device: Mapping[str, Any]) -> bool:
    return int(bar["total"]) >= int(value_of(device, "memory")["total"])


def _instances(
    host: Host, data: Mapping[str, Any], device: Mapping[str, Any], whole: Observation
) -> Iterator[Observation]:
    """Observe each MIG instance: a device of its own, with the address of its GPU."""
    instances = value_of(device, "mig_devices")
    for instance in instances if isinstance(instances, list) else ():
        gi, ci, uuid = (value_of(instance, name) for name in ("gi", "ci", "uuid"))
        if gi is None or ci is None or uuid is None:
            continue
        readings = [
            reading_of("uuid", instance, "uuid", _SOURCE, str),
            reading_of("name", instance, "name", _SOURCE, str),
            *_common(host, data, device, instance),
            reading_of("features.ecc", device, "ecc", _SOURCE, lambda mode: bool(mode["current"])),
            Reading(field="features.mig", value=True, source=_SOURCE),
            # CUDA gives a process one instance at a time, and no peer access between instances (MIG User Guide).
            Reading(field="features.p2p", value=False, source=_SOURCE, detail="a MIG instance has no peers"),
        ]
        yield Observation(
            probe=_SOURCE,
            pci_address=whole.pci_address,
            partition=f"mig{gi}.{ci}",
            uuid=uuid,
            creates=True,
            readings=tuple(readings),
        )

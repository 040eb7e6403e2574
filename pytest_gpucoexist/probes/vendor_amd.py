"""What AMD SMI says about each GPU and each partition of one (the reply's shape: `helpers/amdsmi.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.model.identity import normal_pci_address
from pytest_gpucoexist.model.machine import Runtime
from pytest_gpucoexist.model.readings import Observation
from pytest_gpucoexist.probes.cells import Answer, devices_of, processes_of, reading_of, value_of
from pytest_gpucoexist.probes.pci import BUS, is_gpu

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_gpucoexist.host.base import Host
    from pytest_gpucoexist.model.readings import Reading

__all__ = ["FIELDS", "read_reply"]

_SOURCE = "amdsmi"

FIELDS = ("uuid", "memory_total_bytes", "memory_free_bytes", "driver_version", "vbios_version", "processes")
"""The fields of a Gpu that AMD SMI answers."""

# Double precision at half the rate of single or better: AMD's data centre chips (CDNA white papers).
_FP64 = {"gfx906", "gfx908", "gfx90a", "gfx940", "gfx941", "gfx942", "gfx950"}

_UMC = 1  # amdsmi.h, AMDSMI_GPU_BLOCK_UMC: the memory controller's block in the mask of enabled ECC blocks


def read_reply(host: Host, data: object) -> Answer:
    """Understand the reply of helper `amdsmi`. Raises ValueError when it is no such reply."""
    devices = devices_of(data)
    assert isinstance(data, dict)  # devices_of has checked it
    return Answer(runtimes=list(_runtimes(data)), observations=[_observation(host, device) for device in devices])


def _runtimes(data: Mapping[str, Any]) -> Iterator[Runtime]:
    version = value_of(data, "library_version")
    if isinstance(version, str):
        yield Runtime(name="amdsmi", kind="runtime", version=version, vendors=("amd",), source=_SOURCE)


def _observation(host: Host, device: Mapping[str, Any]) -> Observation:
    readings = (
        reading_of("uuid", device, "uuid", _SOURCE, str),
        *_asic(device),
        reading_of("memory_total_bytes", device, "memory", _SOURCE, lambda memory: int(memory["total"]) or None),
        reading_of("memory_free_bytes", device, "memory", _SOURCE, _free),
        reading_of("driver_version", device, "driver", _SOURCE, lambda driver: driver["version"]),
        reading_of("vbios_version", device, "vbios", _SOURCE, _vbios),
        reading_of("features.ecc", device, "ecc", _SOURCE, lambda ecc: bool(ecc["enabled_blocks"] & _UMC)),
        reading_of("features.p2p", device, "links", _SOURCE, _p2p),
        reading_of("processes", device, "processes", _SOURCE, lambda found: processes_of(host, _SOURCE, found)),
    )
    address, partition = _address(host, device)
    return Observation(
        probe=_SOURCE, pci_address=address, partition=partition, readings=readings, creates=partition is not None
    )


def _asic(device: Mapping[str, Any]) -> list[Reading]:
    readings = [
        reading_of("arch", device, "asic", _SOURCE, lambda asic: asic["target"]),
        reading_of("features.fp64", device, "asic", _SOURCE, lambda asic: asic["target"] and asic["target"] in _FP64),
    ]
    name = reading_of("name", device, "asic", _SOURCE, lambda asic: asic["market_name"])
    return [name, *readings]


def _free(memory: Mapping[str, Any]) -> int:
    return max(int(memory["total"]) - int(memory["used"]), 0)


def _vbios(vbios: Mapping[str, Any]) -> str | None:
    """Return the part number, such as `113-D7030100-100`: amdgpu's own `vbios_version` is that and not the version."""
    part: str | None = vbios["part_number"] or vbios["version"]
    return part


def _p2p(links: list[Mapping[str, Any]]) -> bool | None:
    """Whether the driver offers access to at least one peer; that data arrives is not proven by it."""
    answers = [value_of(link, "p2p") for link in links]
    return any(answers) if any(answer is not None for answer in answers) else None


def _address(host: Host, device: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return address and partition, which is None for a whole GPU.

    In CPX, DPX, TPX and QPX mode AMD SMI lists each partition, and may write its number in place of the function.
    """
    address = normal_pci_address(str(value_of(device, "bdf")))
    kfd = value_of(device, "kfd")
    number = (kfd.get("partition_id") if isinstance(kfd, dict) else None) or 0
    if address is None or (number == 0 and value_of(device, "compute_partition") in {None, "SPX"}):
        return address, None
    return (address if _is_gpu_function(host, address) else f"{address[:-1]}0"), str(number)


def _is_gpu_function(host: Host, address: str) -> bool:
    """Whether PCI has a GPU there; function 1 of many boards is the sound of their display outputs."""
    try:
        return is_gpu(host.read_text(f"{BUS}/{address}/class"), "0x1002")
    except OSError:
        return False

"""The leased device as a `torch.device`, current while a test runs."""

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.session.pins.ordinals import Enumerated, ordinal_of
from pytest_gpucoexist.session.pins.unsuitable import Unsuitable, first_of_vendor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_gpucoexist.model.machine import Gpu, Machine

__all__ = ["built_for", "current_torch_device"]


@contextlib.contextmanager
def current_torch_device(gpus: Sequence[Gpu], machine: Machine) -> Iterator[Any]:
    """Make a leased device torch's current one and yield it; at the end empty its cache and put the former one back.

    It is the first of `gpus` whose vendor this build of torch is for. Raises Unsuitable where torch is absent or
    built for something else. With a simulated machine the device is the CPU.
    """
    torch = _import()
    if machine.simulated:
        yield torch.device("cpu")
        return
    vendor = built_for(torch)
    built = {"nvidia": "CUDA", "amd": "ROCm", "intel": "Intel XPU"}.get(vendor or "", "the CPU only")
    gpu = first_of_vendor(gpus, vendor, f"torch {torch.__version__}", built)
    if vendor == "intel":
        raise Unsuitable(f"torch's XPU devices cannot be told apart by UUID or PCI address; leased is {gpu.id}")
    index = ordinal_of(gpu, _enumerate(torch), f"torch {torch.__version__}")
    # `torch.cuda.device` exchanges the device without a context on the former one, which may be another test's.
    with torch.cuda.device(index):
        try:
            yield torch.device("cuda", index)
        finally:
            torch.cuda.set_device(index)  # the test may have moved on; the cache to empty is this device's
            torch.cuda.empty_cache()


def built_for(torch: Any) -> str | None:
    """Return the vendor that a build of torch is for; None for the CPU.

    A ROCm build also calls its devices `cuda`, so `torch.version.hip` is asked first.
    """
    if getattr(torch.version, "hip", None):
        return "amd"
    if getattr(torch.version, "cuda", None):
        return "nvidia"
    return "intel" if getattr(torch.version, "xpu", None) else None


def _import() -> Any:
    try:
        return importlib.import_module("torch")
    except ModuleNotFoundError as error:
        # A torch that is here and broken must not pass for one that is absent.
        if error.name != "torch":
            raise
        raise Unsuitable("torch is not installed") from None


def _enumerate(torch: Any) -> list[Enumerated]:
    devices = []
    for ordinal in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(ordinal)
        uuid = getattr(properties, "uuid", None)
        devices.append(
            Enumerated(
                ordinal=ordinal,
                uuid=None if uuid is None else str(uuid),
                pci_address=_pci_address(properties),
                name=getattr(properties, "name", None),
            )
        )
    return devices


def _pci_address(properties: Any) -> str | None:
    """Bus, device and domain are numbers, from torch 2.8 on."""
    bus = getattr(properties, "pci_bus_id", None)
    if isinstance(bus, str):
        return bus
    device = getattr(properties, "pci_device_id", None)
    if bus is None or device is None:
        return None
    return f"{getattr(properties, 'pci_domain_id', 0) or 0:04x}:{bus:02x}:{device:02x}.0"

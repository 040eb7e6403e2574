"""The leased device as a `cupy.cuda.Device`, current while a test runs."""

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.session.pins.ordinals import Enumerated, ordinal_of
from pytest_gpucoexist.session.pins.unsuitable import Unsuitable, first_of_vendor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_gpucoexist.model.machine import Gpu, Machine

__all__ = ["built_for", "current_cupy_device"]


@contextlib.contextmanager
def current_cupy_device(gpus: Sequence[Gpu], machine: Machine) -> Iterator[Any]:
    """Make a leased device CuPy's current one and yield it; at the end free its pools and put the former one back.

    It is the first of `gpus` whose vendor this build of CuPy is for. Raises Unsuitable where CuPy is absent or
    built for the other vendor, and where the machine is simulated.
    """
    if machine.simulated:
        raise Unsuitable(f"CuPy has no device that stands for a simulated {gpus[0].id}")
    cupy = _import()
    vendor = built_for(cupy)
    built = {"nvidia": "CUDA", "amd": "ROCm"}[vendor]
    gpu = first_of_vendor(gpus, vendor, f"CuPy {cupy.__version__}", built)
    index = ordinal_of(gpu, _enumerate(cupy), f"CuPy {cupy.__version__}")
    with cupy.cuda.Device(index) as device:
        try:
            yield device
        finally:
            with cupy.cuda.Device(index):  # the test may have moved on; the pools are per device
                cupy.get_default_memory_pool().free_all_blocks()
                cupy.get_default_pinned_memory_pool().free_all_blocks()


def built_for(cupy: Any) -> str:
    """Return the vendor that a build of CuPy is for: `cupy.cuda.runtime.is_hip` tells."""
    return "amd" if cupy.cuda.runtime.is_hip else "nvidia"


def _import() -> Any:
    try:
        return importlib.import_module("cupy")
    except ModuleNotFoundError as error:
        if error.name != "cupy":
            raise
        raise Unsuitable("CuPy is not installed") from None


def _enumerate(cupy: Any) -> list[Enumerated]:
    runtime = cupy.cuda.runtime
    devices = []
    for ordinal in range(runtime.getDeviceCount()):
        properties = runtime.getDeviceProperties(ordinal)
        name = properties.get("name")
        devices.append(
            Enumerated(
                ordinal=ordinal,
                uuid=properties.get("uuid"),
                pci_address=runtime.deviceGetPCIBusId(ordinal),
                name=name.decode(errors="replace") if isinstance(name, bytes) else name,
            )
        )
    return devices

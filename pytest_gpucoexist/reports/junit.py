"""What a JUnit file says about a test's devices, as (name, value) properties of builtin types."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_gpucoexist.reports.model import DeviceUse, TestRecord

__all__ = ["describe_device", "junit_properties"]


def junit_properties(record: TestRecord) -> list[tuple[str, str]]:
    """Give `gpu_requirement`, one `gpu_device` for each device, `gpu_numa_node`, `gpu_outcome`, `gpu_reason`.

    Nothing for a test that needs no GPU. Values are of exact builtin types, since they cross to xdist's controller.
    """
    if record.requirement is None:
        return []
    properties = [("gpu_requirement", str(record.requirement))]
    properties += [("gpu_device", describe_device(device)) for device in record.devices]
    if record.numa_node is not None:
        properties.append(("gpu_numa_node", str(record.numa_node)))
    if record.gpu_outcome is not None:
        properties.append(("gpu_outcome", str(record.gpu_outcome)))
    if record.reason:
        properties.append(("gpu_reason", str(record.reason)))
    return properties


def describe_device(device: DeviceUse) -> str:
    """Write a device so that it is known on any machine: `0000:41:00.0 GPU-… NVIDIA A40 nvidia 570.86.15`."""
    words = ["SIMULATED" if device.simulated else None, device.pci_address, device.uuid, device.name, device.driver]
    if device.driver:
        words.append(device.driver_version)
    return " ".join(word for word in words if word) or device.key

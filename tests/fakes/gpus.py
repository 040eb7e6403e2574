"""The devices of `fake_gpus`: two of each vendor, unlike each other."""

from __future__ import annotations

from pytest_gpucoexist.testing.vendor_replies import AmdGpu, NvmlGpu

__all__ = ["AMD_GPUS", "NVIDIA_GPUS"]

GIB = 2**30

NVIDIA_GPUS = (
    NvmlGpu(
        pci_address="0000:41:00.0",
        uuid="GPU-11111111-2222-3333-4444-555555555555",
        name="NVIDIA RTX 6000 Ada Generation",
        memory_total_bytes=48 * GIB,
        compute_capability="8.9",
        device_id="0x26b1",
    ),
    NvmlGpu(
        pci_address="0000:c1:00.0",
        uuid="GPU-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee",
        name="NVIDIA GeForce RTX 4090",
        memory_total_bytes=24 * GIB,
        compute_capability="8.9",
        minor=1,
        device_id="0x2684",
    ),
)

AMD_GPUS = (
    AmdGpu(
        pci_address="0000:81:00.0",
        uuid="GPU-d40123456789abcd",
        name="AMD Radeon PRO W7900",
        target="gfx1100",
        device_id="0x7448",
        memory_total_bytes=45 * GIB,
    ),
    AmdGpu(
        pci_address="0000:e1:00.0",
        uuid="GPU-ba98765432100123",
        name="AMD Instinct MI210",
        target="gfx90a",
        device_id="0x740f",
        memory_total_bytes=64 * GIB,
    ),
)

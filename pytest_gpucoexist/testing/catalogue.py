"""GPUs by name, with the ids that their PCI functions really carry.

Ids, classes and names are those of the PCI ID Repository (`pci.ids`, as Debian's `pci.ids` package installs it), those
of the Arc B580 and the MI300X what recorded machines carry; compute capabilities are NVIDIA's (CUDA C++ Programming
Guide), gfx targets LLVM's (AMDGPU usage), memory sizes and links the vendors' product pages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["CATALOGUE", "GpuModel"]

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuModel:
    """A GPU as a product.

    `name` is what the driver calls it, `listed` the line of `pci.ids`. `place` says where it sits: a slot of its own,
    inside the processor, or behind a server's management controller. `bridges` are the ids of the switch on the card
    itself, upstream port first (AMD puts one on its larger cards).
    """

    vendor_id: str
    device_id: str
    subsystem_id: str
    name: str
    listed: str
    driver: str
    class_id: str = "0x030000"
    memory_bytes: int = 0
    arch: str | None = None
    speed_gtps: float = 16.0
    width: int = 16
    place: Literal["slot", "processor", "bmc"] = "slot"
    audio_id: str | None = None
    bridges: tuple[str, ...] = ()
    compute_units: int = 0
    large_bar: bool = False
    ecc: bool = False


_NAVI_BRIDGES = ("0x1002:0x1478", "0x1002:0x1479")

CATALOGUE: dict[str, GpuModel] = {
    "rtx3090": GpuModel(
        vendor_id="0x10de",
        device_id="0x2204",
        subsystem_id="0x10de:0x147d",
        name="NVIDIA GeForce RTX 3090",
        listed="GA102 [GeForce RTX 3090]",
        driver="nvidia",
        memory_bytes=24 * GIB,
        arch="8.6",
        audio_id="0x1aef",
    ),
    "rtx4090": GpuModel(
        vendor_id="0x10de",
        device_id="0x2684",
        subsystem_id="0x10de:0x16f4",
        name="NVIDIA GeForce RTX 4090",
        listed="AD102 [GeForce RTX 4090]",
        driver="nvidia",
        memory_bytes=24564 * 2**20,
        arch="8.9",
        audio_id="0x22ba",
        large_bar=True,
    ),
    "rtx6000ada": GpuModel(
        vendor_id="0x10de",
        device_id="0x26b1",
        subsystem_id="0x10de:0x16a1",
        name="NVIDIA RTX 6000 Ada Generation",
        listed="AD102GL [L6000 / RTX 6000 Ada Generation]",
        driver="nvidia",
        memory_bytes=49140 * 2**20,
        arch="8.9",
        audio_id="0x22ba",
        large_bar=True,
        ecc=True,
    ),
    "a100": GpuModel(
        vendor_id="0x10de",
        device_id="0x20b5",
        subsystem_id="0x10de:0x1533",
        name="NVIDIA A100 80GB PCIe",
        listed="GA100 [A100 PCIe 80GB]",
        driver="nvidia",
        class_id="0x030200",
        memory_bytes=80 * GIB,
        arch="8.0",
        large_bar=True,
        ecc=True,
    ),
    "h100": GpuModel(
        vendor_id="0x10de",
        device_id="0x2331",
        subsystem_id="0x10de:0x1626",
        name="NVIDIA H100 PCIe",
        listed="GH100 [H100 PCIe]",
        driver="nvidia",
        class_id="0x030200",
        memory_bytes=80 * GIB,
        arch="9.0",
        speed_gtps=32.0,
        large_bar=True,
        ecc=True,
    ),
    "rx7900xtx": GpuModel(
        vendor_id="0x1002",
        device_id="0x744c",
        subsystem_id="0x1002:0x0e3b",
        name="Radeon RX 7900 XTX",
        listed="Navi 31 [Radeon RX 7900 XT/7900 XTX]",
        driver="amdgpu",
        memory_bytes=24560 * 2**20,
        arch="gfx1100",
        audio_id="0xab30",
        bridges=_NAVI_BRIDGES,
        compute_units=96,
        large_bar=True,
    ),
    "mi210": GpuModel(
        vendor_id="0x1002",
        device_id="0x740f",
        subsystem_id="0x1002:0x0c34",
        name="AMD Instinct MI210",
        listed="Aldebaran/MI200 [Instinct MI210]",
        driver="amdgpu",
        class_id="0x038000",
        memory_bytes=65520 * 2**20,
        arch="gfx90a",
        bridges=_NAVI_BRIDGES,
        compute_units=104,
        large_bar=True,
        ecc=True,
    ),
    "mi300x": GpuModel(
        vendor_id="0x1002",
        device_id="0x74a1",
        subsystem_id="0x1002:0x74a1",
        name="AMD Instinct MI300X",
        listed="Aqua Vanjaram [Instinct MI300X]",
        driver="amdgpu",
        class_id="0x120000",
        memory_bytes=196592 * 2**20,
        arch="gfx942",
        speed_gtps=32.0,
        compute_units=304,
        large_bar=True,
        ecc=True,
    ),
    "radeon-780m": GpuModel(
        vendor_id="0x1002",
        device_id="0x15bf",
        subsystem_id="0x17aa:0x50da",
        name="AMD Radeon 780M Graphics",
        listed="Phoenix1",
        driver="amdgpu",
        memory_bytes=512 * 2**20,
        arch="gfx1103",
        place="processor",
        compute_units=12,
        large_bar=True,
    ),
    "arc-b580": GpuModel(
        vendor_id="0x8086",
        device_id="0xe20b",
        subsystem_id="0x8086:0x1100",
        name="Intel Arc B580 Graphics",
        listed="Battlemage G21 [Arc B580]",
        driver="xe",
        memory_bytes=12216 * 2**20,
        # The function behind the card's own switch says Gen1 x1; the real link is the upstream port's.
        speed_gtps=2.5,
        width=1,
        bridges=("0x8086:0xe2ff", "0x8086:0xe2f0"),
        large_bar=True,
    ),
    "uhd770": GpuModel(
        vendor_id="0x8086",
        device_id="0xa780",
        subsystem_id="0x1043:0x8882",
        name="Intel UHD Graphics 770",
        listed="Raptor Lake-S GT1 [UHD Graphics 770]",
        driver="i915",
        place="processor",
    ),
    "aspeed": GpuModel(
        vendor_id="0x1a03",
        device_id="0x2000",
        subsystem_id="0x1a03:0x2000",
        name="ASPEED Graphics Family",
        listed="ASPEED Graphics Family",
        driver="ast",
        place="bmc",
    ),
}
"""Names for `with_gpu`."""

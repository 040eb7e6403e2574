"""Machines that several tests describe to the fake drivers and to the reply builders."""

from __future__ import annotations

from pytest_gpucoexist.testing.vendor_replies import AmdGpu, GpuUser, MigInstance, NvmlGpu

GIB = 2**30

RTX_4090 = NvmlGpu(
    pci_address="0000:41:00.0",
    uuid="GPU-11111111-2222-3333-4444-555555555555",
    name="NVIDIA GeForce RTX 4090",
    memory_total_bytes=24 * GIB,
    memory_used_bytes=2 * GIB,
    compute_capability="8.9",
    device_id="0x2684",
    subsystem_id="0x10de:0x16f4",
    vbios_version="95.02.3C.40.B5",
    bar1_total_bytes=32 * GIB,
    bar1_used_bytes=GIB,
    memory_nodes=(0,),
    pcie_generation=4,
    pcie_max_generation=4,
    pcie_width=16,
    pcie_max_width=16,
    persistence=False,
    processes=(GpuUser(pid=1, memory_bytes=GIB), GpuUser(pid=4194303, kind="graphics")),
)

A100 = NvmlGpu(
    pci_address="0000:c1:00.0",
    uuid="GPU-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee",
    name="NVIDIA A100-SXM4-40GB",
    memory_total_bytes=40 * GIB,
    compute_capability="8.0",
    minor=1,
    device_id="0x20b0",
    bar1_total_bytes=256 * 2**20,
    ecc=True,
    mig=True,
    instances=(
        MigInstance(
            uuid="MIG-11111111-1111-5111-8111-111111111111",
            name="NVIDIA A100-SXM4-40GB MIG 3g.20gb",
            gi=2,
            memory_total_bytes=20 * GIB,
            memory_used_bytes=GIB,
            slices=3,
            multiprocessors=42,
            processes=(GpuUser(pid=1, memory_bytes=GIB // 2),),
        ),
        MigInstance(
            uuid="MIG-22222222-2222-5222-8222-222222222222",
            name="NVIDIA A100-SXM4-40GB MIG 1g.5gb",
            gi=5,
            memory_total_bytes=5 * GIB,
        ),
    ),
)

W7900 = AmdGpu(
    pci_address="0000:81:00.0",
    uuid="GPU-d40123456789abcd",
    name="AMD Radeon PRO W7900",
    target="gfx1100",
    memory_total_bytes=48 * GIB,
    memory_used_bytes=3 * GIB + 1,
    device_id="0x7448",
    compute_units=96,
    vbios_version="022.001.002",
    vbios_part_number="113-D7070100-125",
    kfd_id=51545,
    kfd_node=1,
    numa_node=1,
    ecc_blocks=0x2001,
    pcie_mtps=16000,
    pcie_width=16,
    pcie_max_mtps=16000,
    pcie_max_width=16,
    processes=(GpuUser(pid=1, memory_bytes=2 * GIB),),
)

MI210 = AmdGpu(
    pci_address="0000:e1:00.0",
    uuid=None,
    name=None,
    target="gfx90a",
    memory_total_bytes=64 * GIB,
    device_id="0x740f",
    compute_partition="SPX",
    memory_partition="NPS1",
)

"""Machines made by hand: each has something that is awkward to draw."""

from __future__ import annotations

from pytest_gpucoexist.model.machine import (
    Accelerator,
    Bridge,
    Conflict,
    Driver,
    Gpu,
    GpuProcess,
    KfdLink,
    KfdNode,
    Link,
    Machine,
    Mask,
    NumaNode,
    Runtime,
    Usable,
)
from pytest_gpucoexist.model.readings import Fact

GIB = 1 << 30
GEN4 = Link(current_speed_gtps=16.0, current_width=16, max_speed_gtps=16.0, max_width=16)
IDLE = Link(current_speed_gtps=2.5, current_width=16, max_speed_gtps=16.0, max_width=16)
NARROW = Link(current_speed_gtps=16.0, current_width=8, max_speed_gtps=16.0, max_width=16)


def chain(*addresses: str, link: Link = GEN4) -> dict[str, tuple[str, ...] | tuple[Bridge, ...]]:
    return {
        "upstream": addresses,
        "upstream_links": tuple(Bridge(pci_address=address, driver="pcieport", link=link) for address in addresses),
    }


def nvidia(number: int, address: str, **changes: object) -> Gpu:
    values: dict[str, object] = {
        "id": f"nvidia{number}",
        "pci_address": address,
        "vendor": "nvidia",
        "kind": "discrete",
        "vendor_id": "0x10de",
        "device_id": "0x2684",
        "class_id": "0x030000",
        "name": "NVIDIA GeForce RTX 4090",
        "uuid": f"GPU-1a2b3c4d-0000-4000-8000-00000000000{number}",
        "numa_node": 0,
        "driver": "nvidia",
        "driver_version": "570.86.15",
        "memory_total_bytes": 24564 << 20,
        "arch": "8.9",
        "link": GEN4,
        "usable": Usable(cuda=True),
    }
    return Gpu(**(values | changes))  # type: ignore[arg-type]


def amd(number: int, address: str, **changes: object) -> Gpu:
    values: dict[str, object] = {
        "id": f"amd{number}",
        "pci_address": address,
        "vendor": "amd",
        "kind": "discrete",
        "vendor_id": "0x1002",
        "device_id": "0x744c",
        "class_id": "0x030000",
        "name": "AMD Radeon PRO W7900",
        "uuid": f"GPU-00000000000000a{number}",
        "numa_node": 1,
        "driver": "amdgpu",
        "driver_version": "6.12.12",
        "memory_total_bytes": 48 * GIB,
        "arch": "gfx1100",
        "link": GEN4,
        "usable": Usable(rocm=True),
    }
    return Gpu(**(values | changes))  # type: ignore[arg-type]


def bmc(address: str = "0000:c4:00.0", **changes: object) -> Gpu:
    values: dict[str, object] = {
        "id": "other0",
        "pci_address": address,
        "kind": "bmc",
        "vendor_id": "0x1a03",
        "device_id": "0x2000",
        "class_id": "0x030000",
        "name": "ASPEED Graphics Family",
        "driver": "ast",
    }
    return Gpu(**(values | changes))  # type: ignore[arg-type]


def workstation() -> Machine:
    """Two NVIDIA behind a switch, an AMD that this user may not open, an iGPU, a BMC; masks, conflicts, processes."""
    return Machine(
        name="workstation",
        simulated=True,
        gpus=(
            nvidia(
                0,
                "0000:43:00.0",
                **chain("0000:40:01.1", "0000:41:00.0", "0000:42:00.0"),
                processes=(
                    GpuProcess(pid=4711, source="nvml", memory_bytes=6 * GIB, name="python3"),
                    GpuProcess(pid=9, source="nvml", visible=False),
                ),
            ),
            nvidia(
                1,
                "0000:44:00.0",
                **chain("0000:40:01.1", "0000:41:00.0", "0000:42:01.0"),
                link=IDLE,
                visible=False,
            ),
            amd(
                0,
                "0000:c1:00.0",
                **chain("0000:c0:01.1", link=NARROW),
                link=NARROW,
                usable=Usable(),
                facts={
                    "usable.rocm": Fact(source="access", status="denied", detail="user not in group render (gid 105)")
                },
            ),
            amd(
                1,
                "0000:c3:00.0",
                kind="integrated",
                name="Raphael",
                arch="gfx1036",
                memory_total_bytes=512 << 20,
                **chain("0000:c0:08.1"),
                driver_version=None,
            ),
            bmc("0000:c5:00.0", **chain("0000:c0:02.1", "0000:c4:00.0")),
        ),
        numa_nodes=(
            NumaNode(id=0, cpulist="0-15,32-47", memory_bytes=64 * GIB, distances=(10, 21)),
            NumaNode(id=1, cpulist="16-31,48-63", memory_bytes=64 * GIB, distances=(21, 10)),
        ),
        drivers=(
            Driver(name="nvidia", version="570.86.15", flavour="open", source="/proc/driver/nvidia/version"),
            Driver(name="amdgpu", version="6.12.12", source="/sys/module/amdgpu/version"),
        ),
        runtimes=(
            Runtime(name="cuda", kind="runtime", version="12.8", vendors=("nvidia",), path="/usr/lib/libcuda.so.1"),
            Runtime(name="rocm", kind="runtime", version="6.3.1", vendors=("amd",), path="/opt/rocm-6.3.1"),
            Runtime(
                name="torch",
                kind="framework",
                version="2.6.0",
                vendors=("nvidia",),
                built_for="CUDA 12.4",
                path="/v/torch",
            ),
            Runtime(name="onnxruntime", kind="framework", version="1.20", built_for="CPU only"),
        ),
        conflicts=(Conflict(subject="gpus", kind="count", message="NVML counts 3 NVIDIA GPUs, PCI 2"),),
        masks=(
            Mask(
                variable="CUDA_VISIBLE_DEVICES",
                value="0",
                runtime="cuda",
                devices=("0000:43:00.0",),
                warning="CUDA_VISIBLE_DEVICES=0 also hides AMD GPUs: HIP reads it because HIP_VISIBLE_DEVICES is empty",
            ),
            Mask(
                variable="ROCR_VISIBLE_DEVICES",
                value="2",
                runtime="rocr",
                devices=("0000:c1:00.0",),
                translated_from="Slurm's node-wide index 2",
            ),
        ),
        accelerators=(
            Accelerator(pci_address="0000:65:00.0", vendor_id="0x1bcf", device_id="0x001c", class_id="0x0b4000"),
        ),
        pci_functions=64,
        notes=("the recording has no /dev",),
    )


def partitioned() -> Machine:
    """One MI300X in CPX mode, a GPU with two MIG instances, XGMI between two MI210."""
    link = (KfdLink(kind="io", type=11, node_to=4),)
    xgmi = [KfdNode(node=3, links=link), KfdNode(node=4, links=(KfdLink(kind="io", type=11, node_to=3),))]
    return Machine(
        name="partitioned",
        gpus=(
            *(
                amd(
                    number,
                    "0000:05:00.0",
                    partition=str(number),
                    name="AMD Instinct MI300X",
                    arch="gfx942",
                    memory_total_bytes=24 * GIB,
                    numa_node=0,
                    **chain("0000:00:01.1", "0000:03:00.0", "0000:04:00.0"),
                )
                for number in range(8)
            ),
            nvidia(0, "0000:81:00.0", name="NVIDIA A100-SXM4-40GB", arch="8.0", numa_node=1, **chain("0000:80:01.1")),
            *(
                nvidia(
                    number,
                    "0000:81:00.0",
                    partition=f"{number}/0",
                    uuid=f"MIG-0000000{number}",
                    name="MIG 3g.20gb",
                    arch="8.0",
                    memory_total_bytes=20 * GIB,
                    numa_node=1,
                    **chain("0000:80:01.1"),
                )
                for number in (1, 2)
            ),
            amd(8, "0000:c1:00.0", kfd=xgmi[0], name="AMD Instinct MI210", **chain("0000:c0:01.1")),
            amd(9, "0000:c6:00.0", kfd=xgmi[1], name="AMD Instinct MI210", **chain("0000:c0:02.1")),
        ),
        numa_nodes=(NumaNode(id=0, cpulist="0-7"), NumaNode(id=1, cpulist="8-15")),
    )


def unplaced() -> Machine:
    """GPUs of which nobody tells the node, the chain or the PCI address; a name that would move the cursor."""
    return Machine(
        name="laptop",
        gpus=(
            nvidia(
                0,
                "0000:01:00.0",
                numa_node=None,
                upstream=None,
                name="RTX\x1b[2J 4070",
                driver="nouveau",
                driver_version=None,
                arch=None,
                usable=Usable(),
                facts={"usable.cuda": Fact(source="access", status="absent", detail="bound to nouveau")},
            ),
            amd(0, "0000:05:00.0", numa_node=None, upstream=(), link=Link()),
            Gpu(
                id="nvidia1", vendor="nvidia", kind="integrated", uuid="tegra-gpu", name="Orin (Jetson)", driver="nvgpu"
            ),
            Gpu(
                id="intel0",
                vendor="intel",
                kind="integrated",
                pci_address="0000:00:02.0",
                vendor_id="0x8086",
                device_id="0x46a6",
                driver="i915",
                granted=False,
                upstream=(),
            ),
        ),
    )

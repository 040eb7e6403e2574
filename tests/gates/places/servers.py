"""Servers: NVSwitch, XGMI, Grace, partitions, hypervisors that pass cards through."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.testing.builder import MachineBuilder, a_machine
from tests.gates.places.ground import attributes, boot_log, cuda, files, limits, model, rocm, with_nvml_of

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PLACES"]

_SXM = model(
    "h100",
    device_id="0x2330",
    name="NVIDIA H100 80GB HBM3",
    listed="GH100 [H100 SXM5 80GB]",
    subsystem_id="0x10de:0x16c1",
)
_GB200 = model(
    "h100",
    device_id="0x2941",
    name="NVIDIA GB200",
    listed="GB100 [HGX GB200]",
    memory_bytes=189471 * 2**20,
    arch="10.0",
)
_A100_NVSWITCH = "0x068000"


def hgx() -> MachineBuilder:
    """8 H100 SXM with NVSwitches, two sockets, nobody at a display but the management controller's."""
    machine = a_machine("hgx").with_numa_nodes(2, cpus=56, memory_bytes=1024 * 2**30).with_gpu("aspeed", boot_vga=True)
    for number in range(8):
        machine = machine.with_switch(f"plx{number}", numa_node=number // 4, speed_gtps=32.0)
        machine = machine.with_gpu(_SXM, under=f"plx{number}")
    machine = cuda(limits(machine.with_running_system(), open_files="1048576", memlock="unlimited"))
    machine = machine.with_file("/proc/sys/kernel/numa_balancing", "0\n")
    for number in range(8):
        machine = machine.with_health(
            f"nvidia{number}",
            temperature=29,
            memory_temperature=38,
        )
    lines = [
        "nvidia-nvswitch: Probing device 0000:c3:00.0, Vendor Id = 0x10de, Device Id = 0x22a3, Class = 0x68000",
        "nvidia-nvswitch 0000:c3:00.0: using MSI-X",
        "nvidia-nvswitch0: using MSI-X",
        "nvidia-nvswitch0: open (major=234)",
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.133.07  Release Build",
        "mlx5_core 0000:17:00.0: firmware version: 28.39.2048",
        "ast 0000:04:00.0: [drm] Using analog VGA",
        "nvidia-nvswitch1: SXid (PCI:0000:c3:00.0): 22013, Non-fatal, Link 48 Minion Link DLREQ interrupt",
        "nvidia-fabricmanager[2101]: Successfully configured all the available NVSwitches to route NVLink traffic.",
    ]
    folder = "/sys/devices/pci0000:c0/0000:c3:00.0"
    machine = files(
        machine,
        {
            f"{folder}/{name}": f"{value}\n"
            for name, value in (
                ("vendor", "0x10de"),
                ("device", "0x22a3"),
                ("class", _A100_NVSWITCH),
                ("numa_node", "1"),
                ("current_link_speed", "16.0 GT/s PCIe"),
                ("current_link_width", "2"),
                ("max_link_speed", "16.0 GT/s PCIe"),
                ("max_link_width", "2"),
                ("power/runtime_status", "active"),
            )
        },
    )
    machine = machine.with_link("/sys/bus/pci/devices/0000:c3:00.0", folder)
    machine = machine.with_link(f"{folder}/driver", "/sys/bus/pci/drivers/nvidia-nvswitch")
    return boot_log(machine, *lines)


def mi210s() -> MachineBuilder:
    """4 MI210 with XGMI bridges in a server of two sockets."""
    machine = a_machine("mi210").with_numa_nodes(2, cpus=64, memory_bytes=512 * 2**30).with_gpu("aspeed", boot_vga=True)
    for number in range(4):
        machine = machine.with_gpu("mi210", numa_node=number // 2)
    machine = rocm(limits(machine.with_running_system()))
    return boot_log(
        machine,
        "amdgpu 0000:04:00.0: amdgpu: MEM ECC is active.",
        "amdgpu 0000:04:00.0: amdgpu: SRAM ECC is active.",
        "amdgpu 0000:04:00.0: amdgpu: RAS INFO: ras initialized successfully, hardware ability[1ffff] ras_mask[1ffff]",
        "amdgpu 0000:04:00.0: amdgpu: XGMI: Add node 0, hive 0x59c4f62b1a04e3d8.",
        "amdgpu: XGMI: Set topology done",
        "kfd kfd: amdgpu: added device 1002:740f",
        "EDAC amd64: F19h_M00h detected (node 0).",
        "EDAC MC0: Giving out device to module amd64_edac controller F19h_M00h: DEV 0000:00:18.3 (INTERRUPT)",
        "ast 0000:02:00.0: [drm] Using analog VGA",
    )


def mi300x() -> MachineBuilder:
    """8 MI300X as one piece each (SPX, NPS1)."""
    machine = a_machine("mi300x").with_numa_nodes(2, cpus=96, memory_bytes=1024 * 2**30)
    machine = machine.with_gpu("aspeed", boot_vga=True)
    for number in range(8):
        machine = machine.with_gpu("mi300x", numa_node=number // 4)
    machine = rocm(limits(machine.with_running_system(), open_files="1048576"), "6.4.1")
    for gpu in machine.host().list_dir("/sys/bus/pci/drivers/amdgpu"):
        if gpu.startswith("0000:"):
            machine = attributes(
                machine,
                gpu,
                {
                    "current_compute_partition": "SPX",
                    "available_compute_partition": "SPX, DPX, QPX, CPX",
                    "current_memory_partition": "NPS1",
                    "available_memory_partition": "NPS1, NPS4",
                },
            )
    return machine


def grace() -> MachineBuilder:
    """A GB200 tray on arm64: the GPU's memory is a NUMA node without CPUs, and the kernel has 64 KiB pages."""
    machine = a_machine("grace").with_numa_nodes(2, cpus=72, memory_bytes=480 * 2**30, distance=40)
    machine = machine.with_gpu(_GB200, address="0008:01:00.0").with_gpu(_GB200, numa_node=1, address="0018:01:00.0")
    machine = cuda(limits(machine.with_running_system()), "/usr/lib/aarch64-linux-gnu", "580.95.05")
    nodes: dict[str, str] = {}
    for number in range(2, 18):
        folder = f"/sys/devices/system/node/node{number}"
        size = 189_000_000 if number in {2, 10} else 0
        nodes |= {
            f"{folder}/cpulist": "\n",
            f"{folder}/cpumap": "0000,00000000,00000000,00000000,00000000\n",
            f"{folder}/distance": " ".join("10" if each == number else "80" for each in range(18)) + "\n",
            f"{folder}/meminfo": f"Node {number} MemTotal:       {size} kB\nNode {number} MemFree:        {size} kB\n",
        }
    nodes |= {
        "/sys/devices/system/node/online": "0-17\n",
        "/sys/devices/system/node/possible": "0-33\n",
        "/sys/devices/system/node/has_cpu": "0-1\n",
        "/sys/devices/system/node/has_memory": "0-2,10\n",
        "/sys/devices/system/node/node0/distance": " ".join(["10", "40", *["80"] * 16]) + "\n",
        "/sys/devices/system/node/node1/distance": " ".join(["40", "10", *["80"] * 16]) + "\n",
        "/proc/sys/kernel/osrelease": "6.8.0-1028-nvidia-64k\n",
        "/proc/cpuinfo": "processor\t: 0\nBogoMIPS\t: 2000.00\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n",
        "/proc/driver/nvidia/version": (
            "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release Build  (dvs-builder@U22)\n"
            "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)\n"
        ),
    }
    return boot_log(files(machine, nodes), "NVRM: loading NVIDIA UNIX Open Kernel Module for aarch64  580.95.05")


def proxmox() -> MachineBuilder:
    """A hypervisor that keeps one card for itself and its containers, and gives the other to a machine."""
    machine = a_machine("pve").with_gpu("rtx4090", driver="vfio-pci").with_gpu("rtx4090")
    machine = cuda(limits(machine.with_running_system()))
    return boot_log(
        files(
            machine,
            {
                "/etc/modprobe.d/vfio.conf": (
                    "options vfio-pci disable_vga=1\nsoftdep nvidia pre: vfio-pci\noptions kvm ignore_msrs=1\n"
                ),
                "/proc/sys/kernel/osrelease": "6.8.12-9-pve\n",
                "/etc/os-release": 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nID=debian\nVERSION_ID="12"\n',
            },
        ),
        "VFIO - User Level meta-driver version: 0.3",
        "vfio-pci 0000:01:00.0: vgaarb: VGA decodes changed: olddecodes=io+mem,decodes=none:owns=none",
        "vfio-pci 0000:01:00.0: enabling device (0002 -> 0003)",
        "vfio-pci 0000:01:00.0: vfio_bar_restore: reset recovery - restoring BARs",
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.133.07  Release Build",
        kernel="6.8.12-9-pve",
    )


def passes_all() -> MachineBuilder:
    """A hypervisor that gives all cards away and has no vendor's software."""
    machine = a_machine("kvm").with_gpu("rtx4090", driver="vfio-pci").with_gpu("rx7900xtx", driver="vfio-pci")
    return limits(machine.with_gpu("aspeed", boot_vga=True).with_running_system())


def vgpu_host() -> MachineBuilder:
    """A host of virtual GPUs: `sriov-manage -e` made functions of an A100; nvidia holds them and lists none."""
    machine = cuda(limits(a_machine("esx").with_gpu("a100").with_running_system()))
    host = machine.host()
    own = host.resolve("/sys/bus/pci/devices/0000:01:00.0")
    for number in (4, 5):
        address = f"0000:01:00.{number}"
        folder = f"{own[:-1]}{number}"
        for name in ("vendor", "device", "subsystem_vendor", "subsystem_device", "class", "numa_node", "config"):
            machine = machine.with_file(f"{folder}/{name}", host.read_bytes(f"{own}/{name}"))
        machine = machine.with_link(f"{folder}/driver", "/sys/bus/pci/drivers/nvidia")
        machine = machine.with_link(f"{folder}/physfn", own).with_link(f"/sys/bus/pci/devices/{address}", folder)
    return machine


def one_excluded() -> MachineBuilder:
    """A workstation whose admin keeps CUDA off one of two cards by NVreg_ExcludedGpus."""
    machine = cuda(limits(a_machine("lab").with_gpu("rtx4090").with_gpu("rtx4090").with_running_system()))
    path = "/proc/driver/nvidia/gpus/0000:02:00.0/information"
    text = machine.host().read_text(path).replace("GPU Excluded:\t No", "GPU Excluded:\t Yes")
    return with_nvml_of(machine.with_file(path, f"{text}\n"), machine.without_nodes("nvidia1"))


PLACES: dict[str, Callable[[], MachineBuilder]] = {
    "hgx-8-h100": hgx,
    "4-mi210-xgmi": mi210s,
    "8-mi300x-spx": mi300x,
    "grace-gb200": grace,
    "proxmox-one-each": proxmox,
    "kvm-gives-all": passes_all,
    "vgpu-host": vgpu_host,
    "one-gpu-excluded": one_excluded,
}

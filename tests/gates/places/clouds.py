"""Virtual machines in clouds, and computers whose GPU is no PCI device: WSL, Jetson."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.host.base import HelperReply
from pytest_gpucoexist.testing.builder import MachineBuilder, a_machine
from pytest_gpucoexist.testing.health import nvml_health
from pytest_gpucoexist.testing.vendor_replies import NvmlGpu, nvml_reply
from tests.gates.places.ground import boot_log, cuda, files, limits, model, node, rocm

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PLACES"]

_A10G = model(
    "a100", device_id="0x2237", name="NVIDIA A10G", listed="GA102GL [A10G]", arch="8.6", memory_bytes=24 * 2**30
)
_T4 = model(
    "a100",
    device_id="0x1eb8",
    name="Tesla T4",
    listed="TU104GL [Tesla T4]",
    arch="7.5",
    memory_bytes=15 * 2**30,
    speed_gtps=8.0,
    large_bar=False,
)
_VGPU = model(
    "a100",
    device_id="0x20b5",
    name="GRID A100D-10C",
    subsystem_id="0x10de:0x1599",
    memory_bytes=10 * 2**30,
    ecc=False,
)
_MI300X_VF = model(
    "mi300x", device_id="0x74b5", listed="Aqua Vanjaram [Instinct MI300X VF]", name="AMD Instinct MI300X VF"
)
_BARE = (
    *("current_link_speed", "current_link_width", "max_link_speed", "max_link_width"),
    *("iommu_group", "aer_dev_correctable", "aer_dev_nonfatal", "aer_dev_fatal"),
)


def _guest(machine: MachineBuilder, address: str, at: str | None = None) -> MachineBuilder:
    """Take the port above a GPU away, and what a hypervisor does not show: link, IOMMU group, AER, a NUMA node."""
    old = machine.host().resolve(f"/sys/bus/pci/devices/{address}")
    root = "/".join(old.split("/")[:4])
    new = f"{at or root}/{address}"
    host = machine.host()
    machine = limits(machine.with_running_system())
    for name in host.list_dir(old):
        path = f"{old}/{name}"
        if name in _BARE:
            continue
        kind = host.stat(path).kind
        if kind == "file":
            machine = machine.with_file(f"{new}/{name}", host.read_bytes(path))
    for name in ("driver", "subsystem"):
        machine = machine.with_link(f"{new}/{name}", host.resolve(f"{old}/{name}"))
    for name in host.list_dir(f"{old}/drm") if host.exists(f"{old}/drm") else ():
        for each in ("dev", "uevent"):
            machine = machine.with_file(f"{new}/drm/{name}/{each}", host.read_bytes(f"{old}/drm/{name}/{each}"))
        machine = machine.with_link(f"{new}/drm/{name}/device", new).with_link(
            f"/sys/class/drm/{name}", f"{new}/drm/{name}"
        )
    machine = machine.with_link(f"/sys/bus/pci/devices/{address}", new)
    machine = files(machine, {f"{new}/power/runtime_status": "active\n", f"{new}/numa_node": "-1\n"})
    top = old.split("/")[4]
    machine = machine.without("/sys/kernel/iommu_groups").without(f"{root}/{top}") if top != address else machine
    return machine.without(f"/sys/bus/pci/devices/{top}")


def _one_by_cuda(path: str) -> HelperReply:
    data = {"library": "libcuda.so.1", "path": path, "init": {"value": 0}, "driver_version": {"value": 12080}}
    return HelperReply(status="ok", data={**data, "count": {"value": 1}}, duration_s=0.1)


def aws() -> MachineBuilder:
    """An AWS g5: the A10G sits on the root bus, its configuration space is that of conventional PCI."""
    machine = cuda(_guest(a_machine("ip-10-0-0-7").with_gpu(_A10G, address="0000:00:1e.0"), "0000:00:1e.0"))
    return boot_log(
        machine,
        "Command line: BOOT_IMAGE=/boot/vmlinuz-6.8.0-1029-aws root=PARTUUID=1 ro console=tty1 console=ttyS0"
        " nvme_core.io_timeout=4294967295 panic=-1",
        "pci 0000:00:1e.0: [10de:2237] type 00 class 0x030200 PCIe Endpoint",
        "nvidia 0000:00:1e.0: enabling device (0000 -> 0002)",
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.133.07  Release Build",
        "nvidia_drm: module verification failed",
        kernel="6.8.0-1029-aws",
    )


def gcp() -> MachineBuilder:
    """A GCP n1 with a T4 on the proprietary modules; the link says what the host's was, or nothing."""
    machine = cuda(_guest(a_machine("gcp").with_gpu(_T4, address="0000:00:04.0"), "0000:00:04.0"), driver="535.183.01")
    folder = machine.host().resolve("/sys/bus/pci/devices/0000:00:04.0")
    machine = files(
        machine,
        {
            f"{folder}/current_link_speed": "8.0 GT/s PCIe\n",
            f"{folder}/current_link_width": "16\n",
            f"{folder}/max_link_speed": "8.0 GT/s PCIe\n",
            f"{folder}/max_link_width": "16\n",
            "/proc/driver/nvidia/version": (
                "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\n"
                "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n"
            ),
        },
    )
    return boot_log(
        machine, "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.183.01", kernel="6.1.0-28-cloud-amd64"
    )


def azure() -> MachineBuilder:
    """An Azure NC: Hyper-V gives the card a PCI domain of its own, with a link of which nothing is known."""
    bus = "/sys/devices/LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/47505500-0001-0000-3130-444532304235/pci0001:00"
    machine = _guest(a_machine("nc").with_gpu("a100", address="0001:00:00.0"), "0001:00:00.0", bus)
    machine = cuda(machine)
    return boot_log(
        files(
            machine,
            {
                f"{bus}/0001:00:00.0/current_link_speed": "Unknown\n",
                f"{bus}/0001:00:00.0/current_link_width": "0\n",
                f"{bus}/0001:00:00.0/max_link_speed": "Unknown\n",
                f"{bus}/0001:00:00.0/max_link_width": "0\n",
                f"{bus}/0001:00:00.0/numa_node": "0\n",
                "/sys/class/infiniband/mlx5_0/ports/1/link_layer": "Ethernet\n",
            },
        ),
        "hv_pci 47505500-0001-0000-3130-444532304235: PCI VMBus probing: Using version 0x10004",
        "hv_pci 47505500-0001-0000-3130-444532304235: PCI host bridge to bus 0001:00",
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.133.07  Release Build",
    )


def vgpu() -> MachineBuilder:
    """A guest with a tenth of an A100 (vGPU): NVIDIA's GRID driver, few of NVML's functions."""
    machine = cuda(
        _guest(a_machine("vgpu").with_gpu(_VGPU, address="0000:02:00.0"), "0000:02:00.0"), driver="550.144.03"
    )
    machine = machine.with_health(
        "nvidia0",
        temperature=None,
        thresholds=None,
        power=None,
        violations=None,
        inforom=None,
        recovery_action=None,
        pcie_replays=None,
        clocks_event_reasons=None,
        utilization={"gpu": 0, "memory": 0},
        pstate=0,
    )
    return boot_log(
        files(machine, {"/etc/nvidia/gridd.conf": "FeatureType=4\n"}),
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  550.144.03  Release Build",
        "NVRM: GPU 0000:02:00.0: Unlicensed vGPU",
    )


def sriov() -> MachineBuilder:
    """A guest with a virtual function of an MI300X."""
    machine = _guest(a_machine("mi300x-vf").with_gpu(_MI300X_VF, address="0000:00:05.0"), "0000:00:05.0")
    return boot_log(
        rocm(machine),
        "[drm] initializing kernel modesetting (IP DISCOVERY 0x1002:0x74B5 0x1002:0x74A1 0x00).",
        "amdgpu 0000:00:05.0: amdgpu: Using VF (SR-IOV)",
        "amdgpu 0000:00:05.0: amdgpu: GPU mode1 reset is not supported in SR-IOV",
        "kfd kfd: amdgpu: added device 1002:74b5",
    )


def wsl() -> MachineBuilder:
    """WSL 2: the GPU is `/dev/dxg`, its libraries lie in /usr/lib/wsl/lib, the PCI bus shows Hyper-V's adapter."""
    machine = limits(a_machine("wsl").with_running_system()).without("/etc/modprobe.d").without("/sys/bus/pci/devices")
    adapter = "/sys/devices/LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/MSFT1000:00/8f1b/pci8f1b:00/8f1b:00:00.0"
    machine = files(
        machine,
        {
            f"{adapter}/vendor": "0x1414\n",
            f"{adapter}/device": "0x008e\n",
            f"{adapter}/class": "0x030200\n",
            f"{adapter}/numa_node": "0\n",
            "/usr/lib/wsl/lib/libcuda.so": "",
            "/usr/lib/wsl/lib/libcuda.so.1": "",
            "/usr/lib/wsl/lib/libcuda.so.1.1": "",
            "/usr/lib/wsl/lib/libnvidia-ml.so.1": "",
            "/usr/lib/wsl/lib/libdxcore.so": "",
            "/usr/lib/wsl/lib/nvidia-smi": "",
            "/etc/ld.so.conf.d/ld.wsl.conf": "# This file was automatically generated by WSL.\n/usr/lib/wsl/lib\n",
            "/proc/sys/kernel/osrelease": "5.15.167.4-microsoft-standard-WSL2\n",
            "/proc/version": "Linux version 5.15.167.4-microsoft-standard-WSL2 (root@f9c826d3017f) (gcc 11.2.0)\n",
            "/proc/cmdline": "initrd=\\initrd.img WSL_ROOT_INIT=1 panic=-1 nr_cpus=16 hv_utils.timesync_implicit=1\n",
            "/proc/modules": "",
        },
    )
    machine = machine.with_link("/sys/bus/pci/devices/8f1b:00:00.0", adapter)
    machine = machine.with_link(f"{adapter}/driver", "/sys/bus/pci/drivers/dxgkrnl").with_node(
        "/dev/dxg", node(10, 125)
    )
    # NVML gives the address that Windows knows; nothing is there on the bus of Linux.
    gpu = NvmlGpu(
        pci_address="0000:01:00.0",
        uuid="GPU-12345678-1234-1234-1234-123456789abc",
        name="NVIDIA GeForce RTX 4090",
        memory_total_bytes=24564 * 2**20,
        memory_used_bytes=1500 * 2**20,
        compute_capability="8.9",
    )
    reply = nvml_reply([gpu], driver_version="572.83")
    reply["nvml_version"] = {"value": "12.570.133.07"}
    reply["devices"][0]["health"] = nvml_health(model("rtx4090"), {"display_active": True})
    machine = machine.with_reply("nvml", HelperReply(status="ok", data=reply, duration_s=0.1))
    machine = machine.with_reply("cuda", _one_by_cuda("/usr/lib/wsl/lib/libcuda.so.1.1"))
    return boot_log(
        machine,
        "hv_vmbus: registering driver dxgkrnl",
        "misc dxg: dxgk: dxgkio_query_adapter_info: Ioctl failed: -22",
        "misc dxg: dxgk: dxgkio_query_adapter_info: Ioctl failed: -2",
        kernel="5.15.167.4-microsoft-standard-WSL2",
    )


def jetson() -> MachineBuilder:
    """A Jetson Orin: the GPU is a platform device (nvgpu); nvidia.ko drives the display, there is no NVML."""
    machine = limits(a_machine("orin").with_running_system()).without("/etc/modprobe.d")
    folder = "/usr/lib/aarch64-linux-gnu"
    machine = files(
        machine,
        {
            f"{folder}/nvidia/libcuda.so.1.1": "",
            "/etc/ld.so.conf.d/nvidia-tegra.conf": f"{folder}/nvidia\n",
            "/etc/nv_tegra_release": "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64\n",
            "/proc/sys/kernel/osrelease": "5.15.148-tegra\n",
            "/proc/version": "Linux version 5.15.148-tegra (buildbrain@mobile-u64) (aarch64-buildroot-linux-gnu-gcc)\n",
            "/proc/modules": (
                "nvgpu 2654208 4 - Live 0x0000000000000000 (O)\nnvidia_modeset 1277952 3 - Live 0x0 (O)\n"
                "nvidia 1503232 6 nvidia_modeset, Live 0x0000000000000000 (O)\n"
            ),
            "/sys/module/nvgpu/initstate": "live\n",
            "/sys/module/nvidia/initstate": "live\n",
            "/sys/module/nvidia/version": "540.4.0\n",
            "/sys/module/nvidia/refcnt": "6\n",
            "/proc/driver/nvidia/version": (
                "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  540.4.0  Release Build  (buildbrain)\n"
                "GCC version:  collect2: error: ld returned 1 exit status\n"
            ),
            "/sys/devices/platform/bus@0/17000000.gpu/uevent": "DRIVER=gk20a\nOF_NAME=gpu\n",
        },
    )
    for name, minor in (("nvidiactl", 255), ("nvidia0", 0), ("nvidia-modeset", 254)):
        machine = machine.with_node(f"/dev/{name}", node(195, minor, mode=0o660, gid=44))
    machine = machine.with_node("/dev/nvmap", node(10, 119, mode=0o440, gid=44))
    absent = HelperReply(status="absent", data={"cause": "no-library"}, detail="libnvidia-ml.so.1: cannot open")
    machine = machine.with_reply("nvml", absent).with_reply("cuda", _one_by_cuda(f"{folder}/nvidia/libcuda.so.1.1"))
    return boot_log(
        machine,
        "nvgpu: loading out-of-tree module taints kernel.",
        "nvgpu 17000000.gpu: Adding to iommu group 48",
        "NVRM: loading NVIDIA UNIX Open Kernel Module for aarch64  540.4.0  Release Build",
        "tegra-hda 3510000.hda: azx_get_response timeout, switching to polling mode",
        "nvgpu: 17000000.gpu gk20a_scale_init:541  [INFO]  enabled scaling for GPU",
        kernel="5.15.148-tegra",
    )


def vm_two_nodes() -> MachineBuilder:
    """A virtual machine of two NUMA nodes whose GPU says numa_node -1."""
    machine = cuda(limits(a_machine("vm").with_numa_nodes(2, cpus=8).with_gpu("a100").with_running_system()))
    folder = machine.host().resolve("/sys/bus/pci/devices/0000:01:00.0")
    cpus = "processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t\t: fpu vme de pse hypervisor lahf_lm\n"
    return files(
        machine.with_file("/proc/cpuinfo", cpus),
        {f"{folder}/numa_node": "-1\n", f"{folder}/local_cpulist": "0-15\n", f"{folder}/local_cpus": "0000ffff\n"},
    )


PLACES: dict[str, Callable[[], MachineBuilder]] = {
    "aws-g5": aws,
    "gcp-t4": gcp,
    "azure-nc": azure,
    "vgpu-guest": vgpu,
    "mi300x-vf": sriov,
    "wsl2": wsl,
    "jetson-orin": jetson,
    "vm-without-places": vm_two_nodes,
}

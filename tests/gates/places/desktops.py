"""Desktops: compositors on the compute card, old cards, GPUs of three vendors, an idle APU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.testing.builder import MachineBuilder, a_machine
from tests.gates.places.ground import attributes, boot_log, cuda, files, limits, model, rocm, without_rocm

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PLACES"]

_GT710 = model(
    "rtx3090",
    device_id="0x128b",
    name="NVIDIA GeForce GT 710",
    listed="GK208B [GeForce GT 710]",
    arch="3.5",
    memory_bytes=2 * 2**30,
    speed_gtps=5.0,
    width=8,
    audio_id="0x0e0f",
)
_PITCAIRN = model(
    "rx7900xtx",
    device_id="0x6818",
    name="Radeon HD 7870",
    listed="Pitcairn XT [Radeon HD 7870 GHz Edition]",
    arch=None,
    memory_bytes=2 * 2**30,
    speed_gtps=8.0,
    bridges=(),
    large_bar=False,
    audio_id="0xaab0",
    driver="radeon",
)
_VEGA = model(
    "rx7900xtx",
    device_id="0x687f",
    name="Radeon RX Vega 64",
    listed="Vega 10 XL/XT [Radeon RX Vega 56/64]",
    arch="gfx900",
    memory_bytes=8176 * 2**20,
    speed_gtps=8.0,
    bridges=("0x1022:0x1470", "0x1022:0x1471"),
    compute_units=64,
    large_bar=False,
    audio_id="0xaaf8",
)


def _shown(machine: MachineBuilder) -> MachineBuilder:
    """Connect a monitor to the first card."""
    card = machine.host().resolve("/sys/class/drm/card0")
    machine = machine.with_file(f"{card}/card0-DP-1/status", "connected\n")
    return machine.with_link("/sys/class/drm/card0-DP-1", f"{card}/card0-DP-1")


def compositor() -> MachineBuilder:
    """GNOME and a browser run on the only card, an RTX 4090."""
    machine = limits(a_machine("desk").with_gpu("rtx4090", boot_vga=True, memory_used_bytes=1900 * 2**20))
    machine = cuda(machine.with_running_system())
    for pid, size in ((2511, 310), (2794, 120), (4180, 640)):
        machine = machine.with_process("nvidia0", pid, size * 2**20, "graphics")
    machine = machine.with_process("nvidia0", 5120, 180 * 2**20, "compute")
    machine = machine.with_health(
        "nvidia0", display_active=True, utilization={"gpu": 14, "memory": 6}, pstate=5, clocks_event_reasons=0
    )
    machine = _shown(machine)
    for pid, name in ((2511, "Xorg"), (2794, "gnome-shell"), (4180, "firefox"), (5120, "obs")):
        stat = f"{pid} ({name}) S 1 {pid} {pid} 0 -1 4194560 " + " ".join(["0"] * 12) + f" 20 0 1 0 {pid} 0 0\n"
        machine = files(machine, {f"/proc/{pid}/comm": f"{name}\n", f"/proc/{pid}/stat": stat})
    return boot_log(
        machine,
        "nvidia: loading out-of-tree module taints kernel.",
        "nvidia: module verification failed: signature and/or required key missing - tainting kernel",
        "nvidia-nvlink: Nvlink Core is being initialized, major device number 235",
        "nvidia 0000:01:00.0: vgaarb: VGA decodes changed: olddecodes=io+mem,decodes=none:owns=io+mem",
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.133.07  Release Build",
        "nvidia_uvm: module uses symbols nvUvmInterfaceDisableAccessCntr from proprietary module nvidia,"
        " inheriting taint.",
        "nvidia-uvm: Loaded the UVM driver, major device number 511.",
        "NVRM: GPU at PCI:0000:01:00: GPU-0c4ac5ba-ea2c-5f1c-9d0c-1d1f1b2cbe0c",
        "snd_hda_intel 0000:01:00.1: azx_get_response timeout, switching to polling mode: last cmd=0x004f0015",
        "nvidia-gpu 0000:01:00.3: i2c timeout error e0000000",
        "ucsi_ccg 0-0008: i2c_transfer failed -110",
        "usb 1-3: device descriptor read/64, error -110",
    )


def apu_only() -> MachineBuilder:
    """A small PC with an AMD APU and no ROCm."""
    machine = limits(without_rocm(a_machine("nuc").with_gpu("radeon-780m", boot_vga=True)).with_running_system())
    return boot_log(
        machine,
        "[drm] amdgpu kernel modesetting enabled.",
        "amdgpu: Virtual CRAT table created for CPU",
        "amdgpu: Topology: Add CPU node",
        "amdgpu 0000:01:00.0: amdgpu: Trusted Memory Zone (TMZ) feature enabled",
        "amdgpu 0000:01:00.0: amdgpu: RAS: optional ras ta ucode is not available",
        "amdgpu 0000:01:00.0: amdgpu: RAP: optional rap ta ucode is not available",
        "amdgpu 0000:01:00.0: amdgpu: SECUREDISPLAY: optional securedisplay ta ucode is not available",
        "amdgpu: HMM registered 512MB device memory",
        "kfd kfd: amdgpu: Allocated 3969056 bytes on gart",
        "kfd kfd: amdgpu: added device 1002:15bf",
        "[drm] Initialized amdgpu 3.57.0 for 0000:01:00.0 on minor 0",
        "fbcon: amdgpudrmfb (fb0) is primary device",
        "amdgpu 0000:01:00.0: [drm] fb0: amdgpudrmfb frame buffer device",
        "perf: interrupt took too long (2502 > 2500), lowering kernel.perf_event_max_sample_rate to 79750",
    )


def xe_and_i915() -> MachineBuilder:
    """An Arc B580 on xe beside the processor's own GPU on i915, with Intel's compute runtime."""
    machine = limits(a_machine("arc").with_gpu("uhd770", boot_vga=True).with_gpu("arc-b580").with_running_system())
    machine = machine.with_file("/usr/lib/x86_64-linux-gnu/libze_loader.so.1.21.1", b"\x7fELF")
    machine = machine.with_link("/usr/lib/x86_64-linux-gnu/libze_loader.so.1", "libze_loader.so.1.21.1")
    machine = files(
        machine.without("/etc/modprobe.d"),
        {
            "/usr/lib/x86_64-linux-gnu/libze_intel_gpu.so.1.6.33276": "",
            "/etc/OpenCL/vendors/intel.icd": "/usr/lib/x86_64-linux-gnu/intel-opencl/libigdrcl.so\n",
            "/usr/lib/x86_64-linux-gnu/intel-opencl/libigdrcl.so": "",
        },
    )
    return boot_log(
        machine,
        "i915 0000:00:02.0: [drm] Found alderlake_s (device ID a780) integrated display version 12.00 stepping N/A",
        "i915 0000:00:02.0: [drm] VT-d active for gfx access",
        "i915 0000:00:02.0: [drm] GT0: GuC firmware i915/tgl_guc_70.bin version 70.29.2",
        "xe 0000:03:00.0: [drm] Found battlemage (device ID e20b) discrete display version 14.01 stepping B0",
        "xe 0000:03:00.0: [drm] VISIBLE VRAM: 0x0000004000000000, 0x0000000300000000",
        "xe 0000:03:00.0: [drm] Using GuC firmware from xe/bmg_guc_70.bin version 70.44.1",
        "xe 0000:03:00.0: [drm] Using HuC firmware from xe/bmg_huc.bin version 8.2.10",
        "xe 0000:03:00.0: [drm] Tile0: GT1: vcs1 fused off",
        "[drm] Initialized xe 1.1.0 for 0000:03:00.0 on minor 1",
        kernel="6.14.0-15-generic",
    )


def old_nvidia_nouveau() -> MachineBuilder:
    """A GT 710 that shows the desktop on nouveau."""
    machine = limits(a_machine("office").with_gpu(_GT710, driver="nouveau", boot_vga=True).with_running_system())
    return boot_log(
        machine.without("/etc/modprobe.d"),
        "nouveau 0000:01:00.0: NVIDIA GK208B (b06070b1)",
        "nouveau 0000:01:00.0: bios: version 80.28.a6.00.10",
        "nouveau 0000:01:00.0: fb: 2048 MiB DDR3",
        "nouveau 0000:01:00.0: DRM: MM: using COPY for buffer copies",
        "nouveau 0000:01:00.0: disp: ERROR 5 [INVALID_STATE] 06 [] chid 1 mthd 0080 data 00000000",
    )


def old_nvidia_legacy() -> MachineBuilder:
    """The same card on NVIDIA's legacy driver 470, as Debian packs it: proprietary modules."""
    machine = limits(a_machine("office").with_gpu(_GT710, boot_vga=True).with_running_system())
    machine = cuda(machine, driver="470.256.02")
    version = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.256.02  Thu May  2 14:37:44 UTC 2024\n"
    machine = machine.with_file("/proc/driver/nvidia/version", f"{version}GCC version:  gcc version 12.2.0 (Debian)\n")
    return boot_log(
        machine,
        "nvidia: loading out-of-tree module taints kernel.",
        "nvidia: module license 'NVIDIA' taints kernel.",
        "Disabling lock debugging due to kernel taint",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  470.256.02  Thu May  2 14:37:44 UTC 2024",
    )


def radeon_driver() -> MachineBuilder:
    """An HD 7870 on radeon, the kernel's default for it."""
    machine = limits(a_machine("attic").with_gpu(_PITCAIRN, boot_vga=True).with_running_system())
    return boot_log(
        machine,
        "[drm] radeon kernel modesetting enabled.",
        "[drm] initializing kernel modesetting (PITCAIRN 0x1002:0x6818 0x174B:0xE211 0x00).",
        "radeon 0000:01:00.0: VRAM: 2048M 0x0000000000000000 - 0x000000007FFFFFFF (2048M used)",
        "[drm] ring test on 0 succeeded in 1 usecs",
        "[drm] ib test on ring 0 succeeded in 0 usecs",
        "radeon 0000:01:00.0: fence driver on ring 5 use gpu addr 0x0000000000075a18",
        "[drm:radeon_dp_link_train [radeon]] *ERROR* displayport link status failed",
    )


def vega() -> MachineBuilder:
    """A Vega 64 with ROCm in an older board: 256 MiB of BAR, PCIe 3.0."""
    machine = limits(a_machine("vega").with_gpu(_VEGA, boot_vga=True).with_running_system())
    return boot_log(
        rocm(machine, "6.2.4"),
        "[drm] initializing kernel modesetting (VEGA10 0x1002:0x687F 0x1002:0x0B36 0xC1).",
        "amdgpu 0000:03:00.0: amdgpu: VRAM: 8176M 0x000000F400000000 - 0x000000F5FEFFFFFF (8176M used)",
        "amdgpu 0000:03:00.0: amdgpu: [drm] Unknown EDID CEA parser results",
        "kfd kfd: amdgpu: added device 1002:687f",
        "amdgpu: [powerplay] Failed to retrieve minimum clocks.",
    )


def coexisting() -> MachineBuilder:
    """A GeForce and a Radeon with both vendors' software, the processor's GPU on the display."""
    machine = a_machine("both").with_gpu("radeon-780m", boot_vga=True).with_gpu("rtx4090").with_gpu("rx7900xtx")
    machine = rocm(cuda(limits(machine.with_running_system())))
    return files(
        machine,
        {
            "/etc/OpenCL/vendors/nvidia.icd": "libnvidia-opencl.so.1\n",
            "/usr/lib/x86_64-linux-gnu/libnvidia-opencl.so.1": "",
            "/etc/OpenCL/vendors/amdocl64_60401_83.icd": "libamdocl64.so\n",
            "/opt/rocm-6.4.1/lib/libamdocl64.so": "",
        },
    )


def raphael() -> MachineBuilder:
    """A Ryzen 7000 desktop: KFD leaves the processor's GPU out, ROCm uses the card, GNOME runs on the card."""
    small = model("radeon-780m", device_id="0x164e", name="AMD Radeon Graphics", listed="Raphael", arch=None)
    machine = a_machine("am5").with_gpu("rx7900xtx", boot_vga=True, memory_used_bytes=2 * 2**30).with_gpu(small)
    machine = rocm(limits(machine.with_running_system()))
    machine = _shown(machine)
    return boot_log(
        attributes(machine, "0000:03:00.0", {"gpu_busy_percent": "14"}),
        "kfd kfd: amdgpu: added device 1002:744c",
        "kfd kfd: amdgpu: skipped device 1002:164e, PCI rejects atomics 730<0",
        "amdgpu 0000:03:00.0: [drm] fb0: amdgpudrmfb frame buffer device",
    )


PLACES: dict[str, Callable[[], MachineBuilder]] = {
    "compositor-on-the-card": compositor,
    "apu-only": apu_only,
    "xe-beside-i915": xe_and_i915,
    "gt710-nouveau": old_nvidia_nouveau,
    "gt710-legacy-driver": old_nvidia_legacy,
    "hd7870-radeon": radeon_driver,
    "vega-with-rocm": vega,
    "geforce-and-radeon": coexisting,
    "ryzen-7000-desktop": raphael,
}

"""Laptops: two GPUs of which one sleeps, or has no driver on purpose."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.testing.builder import MachineBuilder, a_machine
from tests.gates.places.ground import attributes, boot_log, cuda, files, limits, model, without_rocm

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PLACES"]

_IRIS = model("uhd770", device_id="0x46a6", name="Intel Iris Xe Graphics", listed="Alder Lake-P GT2 [Iris Xe Graphics]")
_RTX3050 = model(
    "rtx3090",
    device_id="0x25a2",
    name="NVIDIA GeForce RTX 3050 Mobile",
    listed="GA107M [GeForce RTX 3050 Mobile]",
    class_id="0x030200",
    memory_bytes=4 * 2**30,
    audio_id=None,
)
# In D3cold reads of the card's registers give all ones; this is what the kernel prints then.
_ASLEEP = {
    "current_link_speed": "Unknown",
    "current_link_width": "63",
    "power_state": "D3cold",
    "d3cold_allowed": "1",
}
_NOISE = (
    "ACPI BIOS Error (bug): Could not resolve symbol [\\_SB.PC00.PEG1.PEGP.DD02._BCL], AE_NOT_FOUND",
    "ACPI Error: Aborting method \\_SB.PC00.PEG1.PEGP.DD02._BCL due to previous error (AE_NOT_FOUND)",
    "i915 0000:00:02.0: [drm] VT-d active for gfx access",
    "i915 0000:00:02.0: vgaarb: deactivate vga console",
    "i915 0000:00:02.0: [drm] Finished loading DMC firmware i915/adlp_dmc.bin (v2.20)",
    "i915 0000:00:02.0: [drm] GT0: GuC firmware i915/adlp_guc_70.bin version 70.13.1",
    "i915 0000:00:02.0: [drm] *ERROR* Failed to write source OUI",
    "pcieport 0000:00:1d.0: AER: Correctable error message received from 0000:00:1d.0",
    "pcieport 0000:00:1d.0: PCIe Bus Error: severity=Correctable, type=Physical Layer, (Receiver ID)",
    "pcieport 0000:00:1d.0:   device [8086:51b0] error status/mask=00000001/00002000",
    "pcieport 0000:00:1d.0:    [ 0] RxErr                  (First)",
    "iwlwifi 0000:00:14.3: WRT: Invalid buffer destination",
    "Bluetooth: hci0: Malformed MSFT vendor event: 0x02",
)


def _laptop(driver: str | None = "nvidia", *, awake: bool = False) -> MachineBuilder:
    machine = a_machine("laptop").with_gpu(_IRIS, boot_vga=True)
    machine = machine.with_gpu(_RTX3050, driver=driver, runtime_status="active" if awake else "suspended")
    return _notebook(machine)


def _notebook(machine: MachineBuilder) -> MachineBuilder:
    return limits(machine.with_running_system()).with_file("/sys/class/dmi/id/chassis_type", "10\n")


def _asleep(machine: MachineBuilder, address: str = "0000:01:00.0") -> MachineBuilder:
    machine = attributes(machine, address, _ASLEEP)
    port = machine.host().resolve(f"/sys/bus/pci/devices/{address}").rpartition("/")[0].rpartition("/")[2]
    return attributes(machine, port, {"power/runtime_status": "suspended", "power_state": "D3cold"})


def prime_on_demand() -> MachineBuilder:
    """Ubuntu with `prime-select on-demand`: i915 shows the desktop, the NVIDIA card sleeps in D3cold."""
    machine = boot_log(
        cuda(_asleep(_laptop())),
        *_NOISE,
        "nvidia 0000:01:00.0: enabling device (0006 -> 0007)",
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.133.07  Release Build",
        "nvidia-modeset: Loading NVIDIA UNIX Open Kernel Mode Setting Driver for x86_64  570.133.07  Release Build",
        "[drm] [nvidia-drm] [GPU ID 0x00000100] Loading driver",
        "[drm] Initialized nvidia-drm 0.0.0 for 0000:01:00.0 on minor 1",
        "nvidia 0000:01:00.0: [drm] No compatible format found",
        "nvidia 0000:01:00.0: [drm] Cannot find any crtc or sizes",
    )
    return files(
        machine,
        {
            "/lib/modprobe.d/nvidia-runtimepm.conf": 'options nvidia "NVreg_DynamicPowerManagement=0x02"\n',
            "/etc/modprobe.d/nvidia-graphics-drivers-kms.conf": "options nvidia_drm modeset=1\n",
        },
    )


def nouveau_asleep() -> MachineBuilder:
    """Fedora out of the box: nouveau holds the NVIDIA card, which sleeps; no NVIDIA software at all."""
    return boot_log(
        _asleep(_laptop("nouveau")).without("/etc/modprobe.d"),
        *_NOISE,
        "nouveau 0000:01:00.0: NVIDIA GA107 (b77000a1)",
        "nouveau 0000:01:00.0: bios: version 94.07.5b.00.41",
        "nouveau 0000:01:00.0: DRM: VRAM: 4096 MiB",
        "nouveau 0000:01:00.0: DRM: failed to create kernel channel, -22",
        "nouveau 0000:01:00.0: [drm] No compatible format found",
        "nouveau 0000:01:00.0: [drm] Cannot find any crtc or sizes",
    )


def prime_intel() -> MachineBuilder:
    """Ubuntu with `prime-select intel`: the software stays, the driver is kept out, the card is off."""
    machine = boot_log(cuda(_asleep(_laptop(None))), *_NOISE)
    return files(
        machine,
        {
            "/lib/modprobe.d/blacklist-nvidia.conf": "".join(
                f"{word} {name}{more}\n"
                for name in ("nvidia", "nvidia-drm", "nvidia-modeset")
                for word, more in (("blacklist", ""), ("alias", " off"))
            ),
        },
    )


def amd_and_nvidia() -> MachineBuilder:
    """A Ryzen laptop: the APU's GPU shows the desktop (nothing of ROCm), the GeForce sleeps."""
    rtx = model("rtx4090", device_id="0x28e0", name="NVIDIA GeForce RTX 4060 Laptop GPU", memory_bytes=8188 * 2**20)
    machine = a_machine("ryzen").with_gpu("radeon-780m", boot_vga=True)
    machine = machine.with_gpu(rtx, runtime_status="suspended", address="0000:64:00.0")
    return boot_log(
        cuda(_asleep(_notebook(without_rocm(machine)), "0000:64:00.0")),
        "amdgpu 0000:01:00.0: amdgpu: Fetched VBIOS from VFCT",
        "amdgpu 0000:01:00.0: amdgpu: VRAM: 512M 0x0000008000000000 - 0x000000801FFFFFFF (512M used)",
        "[drm] BIOS signature incorrect 0 0",
        "amdgpu 0000:01:00.0: amdgpu: SMU is initialized successfully!",
        "amdgpu 0000:01:00.0: amdgpu: PSP runtime database doesn't exist",
        "amdgpu 0000:01:00.0: amdgpu: Secure display: Generic Failure.",
        "amdgpu 0000:01:00.0: amdgpu: SECUREDISPLAY: query securedisplay TA failed. ret 0x0",
        "kfd kfd: amdgpu: added device 1002:15bf",
        "amdgpu 0000:01:00.0: amdgpu: Runtime PM not available",
        "[drm] Initialized amdgpu 3.57.0 for 0000:01:00.0 on minor 0",
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.133.07  Release Build",
    )


def two_amd() -> MachineBuilder:
    """A laptop with AMD's APU and a Radeon that sleeps (BOCO); nobody installed ROCm."""
    radeon = model("rx7900xtx", device_id="0x73ef", name="Radeon RX 6800S", arch="gfx1032", memory_bytes=8176 * 2**20)
    machine = a_machine("zephyrus").with_gpu(radeon, runtime_status="suspended", address="0000:03:00.0")
    machine = machine.with_gpu("radeon-780m", boot_vga=True, address="0000:07:00.0")
    return boot_log(
        _asleep(_notebook(without_rocm(machine)), "0000:03:00.0"),
        "amdgpu 0000:03:00.0: amdgpu: Using BOCO for runtime pm",
        "amdgpu 0000:03:00.0: amdgpu: PCIE GART of 512M enabled (table at 0x0000008000F00000).",
        "amdgpu 0000:03:00.0: amdgpu: SMU is resuming...",
        "amdgpu 0000:03:00.0: amdgpu: smu driver if version = 0x0000000f, smu fw if version = 0x00000013,"
        " smu fw program = 0, version = 0x003b3100 (59.49.0)",
        "amdgpu 0000:03:00.0: amdgpu: SMU driver if version not matched",
        "amdgpu 0000:03:00.0: amdgpu: SMU is resumed successfully!",
        "kfd kfd: amdgpu: added device 1002:73ef",
        "kfd kfd: amdgpu: added device 1002:15bf",
    )


PLACES: dict[str, Callable[[], MachineBuilder]] = {
    "prime-on-demand": prime_on_demand,
    "nouveau-asleep": nouveau_asleep,
    "prime-select-intel": prime_intel,
    "apu-and-geforce": amd_and_nvidia,
    "apu-and-radeon": two_amd,
}

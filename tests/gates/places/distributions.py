"""Distributions that keep things elsewhere, and kernels between an update and a reboot."""

from __future__ import annotations

import lzma
from typing import TYPE_CHECKING

from pytest_gpucoexist.testing.builder import MachineBuilder, a_machine
from tests.gates.kernel_module.installed import a_module
from tests.gates.places.ground import FEDORA, boot_log, cuda, files, limits, model

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PLACES"]

_OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (builder@host)\nGCC version:  gcc\n"
)
_CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Fri Mar 14 13:12:07 UTC 2025\nGCC version:  gcc\n"
_PASCAL = model(
    "rtx3090",
    device_id="0x1b06",
    name="NVIDIA GeForce GTX 1080 Ti",
    listed="GP102 [GeForce GTX 1080 Ti]",
    arch="6.1",
    memory_bytes=11 * 2**30,
    speed_gtps=8.0,
)


def _modules(
    machine: MachineBuilder, folder: str, kernel: str, version: str, *paths: str, signed: bool = False
) -> MachineBuilder:
    """Install modules of NVIDIA's driver, by path below `folder`; packed as their names say."""
    for path in paths:
        name = path.rpartition("/")[2].partition(".ko")[0].replace("-", "_")
        data = a_module(name, vermagic=kernel, signed=signed, version=version, license="Dual MIT/GPL")
        machine = machine.with_file(f"{folder}/{path}", lzma.compress(data) if path.endswith(".xz") else data)
    return machine


def _on(kernel: str, release: str, machine: MachineBuilder) -> MachineBuilder:
    return files(
        machine,
        {
            "/proc/sys/kernel/osrelease": f"{kernel}\n",
            "/proc/version": f"Linux version {kernel} (builder@host) (gcc 14.2.0) #1 SMP PREEMPT_DYNAMIC\n",
            "/proc/cmdline": f"BOOT_IMAGE=/boot/vmlinuz-{kernel} root=UUID=1 rw quiet\n",
            "/etc/os-release": release,
        },
    )


def nixos() -> MachineBuilder:
    """NixOS: driver libraries in /run/opengl-driver/lib, modules and firmware in /run/…, no ld.so.conf."""
    machine = limits(a_machine("nix").with_gpu("rtx4090").with_running_system(), open_files="1024")
    machine = cuda(machine, "/run/opengl-driver/lib").without("/etc/ld.so.conf").without("/etc/ld.so.conf.d")
    kernel = "6.12.30"
    modules = f"/run/booted-system/kernel-modules/lib/modules/{kernel}"
    machine = _modules(machine, modules, kernel, "570.133.07", "misc/nvidia.ko.xz", "misc/nvidia-uvm.ko.xz")
    machine = _on(kernel, 'NAME=NixOS\nID=nixos\nVERSION_ID="25.05"\n', machine)
    return boot_log(
        files(
            machine,
            {
                "/etc/modprobe.d/nixos.conf": "blacklist nouveau\nblacklist nvidiafb\noptions nvidia-drm modeset=1\n",
                f"{modules}/modules.dep": "misc/nvidia.ko.xz:\nmisc/nvidia-uvm.ko.xz: misc/nvidia.ko.xz\n",
                "/sys/module/firmware_class/parameters/path": "/run/current-system/firmware\n",
                "/run/current-system/firmware/nvidia/570.133.07/gsp_ga10x.bin.xz": "",
                "/run/current-system/firmware/nvidia/570.133.07/gsp_tu10x.bin.xz": "",
                "/run/opengl-driver/share/vulkan/icd.d/nvidia_icd.x86_64.json": (
                    '{"file_format_version": "1.0.1", "ICD": {"library_path":'
                    ' "/run/opengl-driver/lib/libGLX_nvidia.so.0", "api_version": "1.4.303"}}\n'
                ),
                "/run/opengl-driver/lib/libGLX_nvidia.so.0": "",
            },
        ).with_environ({"LD_LIBRARY_PATH": "/run/opengl-driver/lib"}),
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.133.07  Release Build",
        kernel=kernel,
    )


def silverblue() -> MachineBuilder:
    """Fedora Silverblue with akmods' modules layered: /lib is /usr/lib, kernel arguments keep nouveau out."""
    kernel = "6.14.5-300.fc42.x86_64"
    machine = limits(a_machine("atomic").with_gpu("rtx4090", boot_vga=True).with_running_system())
    machine = _on(
        kernel, 'NAME="Fedora Linux"\nVARIANT_ID=silverblue\nID=fedora\nVERSION_ID=42\n', cuda(machine, FEDORA)
    )
    machine = machine.without("/etc/modprobe.d/nvidia-graphics-drivers.conf")
    folder = f"/usr/lib/modules/{kernel}/extra/nvidia"
    machine = _modules(machine, folder, kernel, "570.133.07", "nvidia.ko.xz", "nvidia-uvm.ko.xz")
    return boot_log(
        files(
            machine.with_link("/lib", "usr/lib"),
            {
                "/proc/cmdline": (
                    "BOOT_IMAGE=(hd0,gpt2)/boot/ostree/fedora-1/vmlinuz rhgb quiet root=UUID=1 ostree=/ostree/boot.1"
                    " rd.driver.blacklist=nouveau,nova_core modprobe.blacklist=nouveau,nova_core"
                ),
                f"/usr/lib/modules/{kernel}/modules.dep": (
                    "extra/nvidia/nvidia.ko.xz:\nextra/nvidia/nvidia-uvm.ko.xz: extra/nvidia/nvidia.ko.xz\n"
                    "kernel/drivers/gpu/drm/nouveau/nouveau.ko.xz:\nkernel/drivers/gpu/drm/nova/nova-core.ko.xz:\n"
                ),
                "/usr/lib/firmware/nvidia/570.133.07/gsp_ga10x.bin": "",
                "/proc/driver/nvidia/version": _OPEN.format("570.133.07"),
            },
        ),
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.133.07  Release Build",
        "nvidia 0000:01:00.0: [drm] fb0: nvidia-drmdrmfb frame buffer device",
        kernel=kernel,
    )


def arch_before_reboot() -> MachineBuilder:
    """Arch after a kernel update: the modules of the running kernel are gone, its GPU works on."""
    machine = limits(a_machine("arch").with_gpu("rtx4090", boot_vga=True).with_running_system())
    machine = _on("6.14.6-arch1-1", 'NAME="Arch Linux"\nID=arch\n', cuda(machine, "/usr/lib"))
    return boot_log(
        files(
            machine.without("/etc/modprobe.d"),
            {
                "/usr/lib/modprobe.d/nvidia-utils.conf": "blacklist nouveau\noptions nvidia_drm modeset=1 fbdev=1\n",
                "/usr/lib/modules/6.14.7-arch2-1/modules.dep": "extramodules/nvidia.ko.zst:\n",
                "/usr/lib/modules/6.14.7-arch2-1/pkgbase": "linux\n",
                "/usr/lib/firmware/nvidia/570.133.07/gsp_ga10x.bin": "",
                "/sys/module/nvidia_drm/parameters/fbdev": "Y\n",
            },
        ).with_link("/lib", "usr/lib"),
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.133.07  Release Build",
        kernel="6.14.6-arch1-1",
    )


def rhel() -> MachineBuilder:
    """RHEL with kmod-nvidia of another kernel in weak-updates, Secure Boot on, the key enrolled."""
    kernel = "5.14.0-570.12.1.el9_6.x86_64"
    machine = limits(a_machine("el9").with_gpu("a100").with_running_system())
    machine = _on(kernel, 'NAME="Red Hat Enterprise Linux"\nID="rhel"\nVERSION_ID="9.6"\n', cuda(machine, FEDORA))
    secure = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
    # weak-modules(8) links a module of an older kernel of the same interface into the running one.
    folder, older = f"/usr/lib/modules/{kernel}/weak-updates/nvidia", "5.14.0-570.el9.x86_64"
    machine = _modules(machine, folder, older, "570.133.07", "nvidia.ko", "nvidia-uvm.ko", signed=True)
    return boot_log(
        files(
            machine.with_file(secure, b"\x06\x00\x00\x00\x01").with_link("/lib", "usr/lib"),
            {
                "/sys/kernel/security/lockdown": "none [integrity] confidentiality\n",
                "/sys/module/module/parameters/sig_enforce": "N\n",
                f"/usr/lib/modules/{kernel}/modules.dep": (
                    "weak-updates/nvidia/nvidia.ko:\nweak-updates/nvidia/nvidia-uvm.ko: weak-updates/nvidia/nvidia.ko\n"
                    "kernel/drivers/gpu/drm/nouveau/nouveau.ko.xz:\n"
                ),
                "/usr/lib/firmware/nvidia/570.133.07/gsp_ga10x.bin": "",
                "/proc/sys/kernel/tainted": "4096\n",
                "/sys/module/nvidia/taint": "O\n",
                "/proc/modules": (
                    "nvidia_drm 147456 0 - Live 0x0 (O)\nnvidia_modeset 1662976 1 nvidia_drm, Live 0x0 (O)\n"
                    "nvidia_uvm 3923968 0 - Live 0x0 (O)\nnvidia 11726848 2 - Live 0x0000000000000000 (O)\n"
                ),
            },
        ),
        "Kernel is locked down from EFI Secure Boot mode; see man kernel_lockdown.7",
        "Loaded X.509 cert 'NVIDIA Linux Kernel Module Signing Key: 1f4e'",
        "nvidia: loading out-of-tree module taints kernel.",
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.133.07  Release Build",
        kernel=kernel,
    )


def debian() -> MachineBuilder:
    """Debian 12 with DKMS: the module is nvidia-current.ko, libraries by alternatives, proprietary modules."""
    kernel, driver = "6.1.0-32-amd64", "535.216.03"
    machine = limits(a_machine("deb").with_gpu(_PASCAL, boot_vga=True).with_running_system())
    machine = _on(kernel, 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nID=debian\nVERSION_ID="12"\n', machine)
    machine = cuda(machine, "/usr/lib/x86_64-linux-gnu/nvidia/current", driver)
    folder = "/usr/lib/x86_64-linux-gnu"
    for stem in ("libcuda", "libnvidia-ml"):
        machine = machine.with_link(f"{folder}/{stem}.so.1", f"/etc/alternatives/glx--{stem}.so.1-x86_64-linux-gnu")
        target = f"{folder}/nvidia/current/{stem}.so.{driver}"
        machine = machine.with_link(f"/etc/alternatives/glx--{stem}.so.1-x86_64-linux-gnu", target)
    dkms = "/var/lib/dkms/nvidia-current"
    folder = f"/lib/modules/{kernel}/updates/dkms"
    machine = _modules(machine, folder, kernel, driver, "nvidia-current.ko.xz", "nvidia-current-uvm.ko.xz")
    machine = machine.with_link(f"{dkms}/kernel-{kernel}-x86_64", f"{driver}/{kernel}/x86_64")
    return boot_log(
        files(
            machine.without("/etc/modprobe.d/nvidia-graphics-drivers.conf"),
            {
                f"{dkms}/{driver}/{kernel}/x86_64/module/nvidia-current.ko.xz": "",
                f"{dkms}/{driver}/6.1.0-31-amd64/x86_64/module/nvidia-current.ko.xz": "",
                f"/lib/modules/{kernel}/modules.dep": (
                    "updates/dkms/nvidia-current.ko.xz:\nupdates/dkms/nvidia-current-uvm.ko.xz:"
                    " updates/dkms/nvidia-current.ko.xz\nkernel/drivers/gpu/drm/nouveau/nouveau.ko:\n"
                ),
                f"/lib/firmware/nvidia/{driver}/gsp_tu10x.bin": "",
                "/proc/driver/nvidia/version": _CLOSED.format(driver),
                "/etc/modprobe.d/nvidia-blacklists-nouveau.conf": "# see #580894\nblacklist nouveau\n",
                "/etc/modprobe.d/nvidia.conf": (
                    "install nvidia modprobe -i nvidia-current $CMDLINE_OPTS\n"
                    "install nvidia-modeset modprobe nvidia ; modprobe -i nvidia-current-modeset $CMDLINE_OPTS\n"
                    "install nvidia-drm modprobe nvidia-modeset ; modprobe -i nvidia-current-drm $CMDLINE_OPTS\n"
                    "install nvidia-uvm modprobe nvidia ; modprobe -i nvidia-current-uvm $CMDLINE_OPTS\n"
                    "alias   pci:v000010DEd00000E00sv*sd*bc04sc80i00*   nvidia\n"
                    "remove nvidia modprobe -r -i nvidia-drm nvidia-modeset nvidia-peermem nvidia-uvm nvidia\n"
                    "softdep nvidia-current post: nvidia-current-modeset\n"
                ),
                "/proc/driver/nvidia/gpus/0000:01:00.0/information": (
                    "Model: \t\t NVIDIA GeForce GTX 1080 Ti\nIRQ:   \t\t 150\nGPU UUID: \t GPU-12345678-1234\n"
                    "Video BIOS: \t 86.02.39.00.54\nBus Type: \t PCIe\nBus Location: \t 0000:01:00.0\n"
                    "Device Minor: \t 0\n"
                    "GPU Firmware: \t N/A\nGPU Excluded:\t No\n"
                ),
            },
        ),
        "nvidia: module license 'NVIDIA' taints kernel.",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.216.03  Fri Oct 25 22:43:06 UTC 2024",
        kernel=kernel,
    )


def ubuntu_hwe() -> MachineBuilder:
    """Ubuntu with the proprietary modules of its own kernel package, signed by Canonical, Secure Boot on."""
    kernel, driver = "6.11.0-26-generic", "550.144.03"
    machine = limits(a_machine("hwe").with_gpu("rtx4090", boot_vga=True).with_running_system())
    machine = cuda(_on(kernel, 'NAME="Ubuntu"\nID=ubuntu\nVERSION_ID="24.04"\n', machine), driver=driver)
    secure = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
    return boot_log(
        files(
            machine.with_file(secure, b"\x16\x00\x00\x00\x01").without("/etc/modprobe.d/nvidia-graphics-drivers.conf"),
            {
                "/sys/kernel/security/lockdown": "none [integrity] confidentiality\n",
                "/sys/module/nvidia/taint": "PO\n",
                "/proc/sys/kernel/tainted": "4097\n",
                "/proc/driver/nvidia/version": _CLOSED.format(driver),
                f"/lib/modules/{kernel}/modules.dep": (
                    "kernel/nvidia-550/nvidia.ko.zst:\n"
                    "kernel/nvidia-550/nvidia-uvm.ko.zst: kernel/nvidia-550/nvidia.ko.zst\n"
                    "kernel/drivers/gpu/drm/nouveau/nouveau.ko.zst:\n"
                ),
                f"/lib/firmware/nvidia/{driver}/gsp_ga10x.bin": "",
                f"/lib/firmware/nvidia/{driver}/gsp_tu10x.bin": "",
                "/lib/firmware/nvidia/ga102/gsp/booter_load-535.113.01.bin.zst": "",
                "/usr/lib/modprobe.d/nvidia-graphics-drivers.conf": (
                    "# This file was generated by nvidia-kernel-common-550\nblacklist nouveau\nblacklist lbm-nouveau\n"
                    "alias nouveau off\nalias lbm-nouveau off\n"
                ),
                "/etc/modprobe.d/blacklist-framebuffer.conf": "blacklist nvidiafb\nblacklist rivafb\n",
                "/proc/driver/nvidia/gpus/0000:01:00.0/information": (
                    "Model: \t\t NVIDIA GeForce RTX 4090\nIRQ:   \t\t 150\nGPU UUID: \t GPU-12345678-1234\n"
                    "Video BIOS: \t 95.02.3c.40.b1\nBus Type: \t PCIe\nBus Location: \t 0000:01:00.0\n"
                    "Device Minor: \t 0\n"
                    "GPU Firmware: \t 550.144.03\nGPU Excluded:\t No\n"
                ),
            },
        ),
        "nvidia: module license 'NVIDIA' taints kernel.",
        "nvidia: module license taints kernel.",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.144.03  Mon Dec 30 17:44:08 UTC 2024",
        "Lockdown: modprobe: unsigned module loading is restricted; see man kernel_lockdown.7",
        kernel=kernel,
    )


PLACES: dict[str, Callable[[], MachineBuilder]] = {
    "nixos": nixos,
    "silverblue": silverblue,
    "arch-before-reboot": arch_before_reboot,
    "rhel-secure-boot": rhel,
    "debian-dkms": debian,
    "ubuntu-hwe": ubuntu_hwe,
}

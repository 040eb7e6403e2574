"""GPUs without a PCI function: WSL2 and Jetson."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.probes import platform
from tests.probes.memory_host import MemoryHost, a_node

if TYPE_CHECKING:
    from pytest_gpucoexist.model.readings import Observation


def values(observation: Observation) -> dict[str, object]:
    return {reading.field: reading.value for reading in observation.readings}


def test_a_machine_without_either_has_none() -> None:
    assert platform.observe(MemoryHost(files={"/proc/meminfo": "MemTotal: 1 kB\n"})) == []


def test_wsl_with_nvidias_library() -> None:
    host = MemoryHost(
        nodes={"/dev/dxg": a_node(0o666)},
        files={
            "/usr/lib/wsl/lib/libcuda.so.1": "",
            "/usr/lib/wsl/lib/libd3d12.so": "",
            "/usr/lib/wsl/drivers/nv_dispi.inf_amd64_5a2f/nvidia-smi": "",
            "/proc/sys/kernel/osrelease": "5.15.167.4-microsoft-standard-WSL2\n",
        },
    )
    (seen,) = platform.observe(host)
    assert (seen.probe, seen.uuid, seen.pci_address, seen.creates) == ("dxg", "dxg0", None, True)
    assert values(seen) == {
        "vendor": "nvidia",
        "kind": "unknown",
        "name": "nvidia GPU of the Windows host",
        "driver": "dxgkrnl",
        "driver_version": "5.15.167.4-microsoft-standard-WSL2",
    }


def test_wsl_with_two_vendors_by_their_driver_packages() -> None:
    host = MemoryHost(
        nodes={"/dev/dxg": a_node(0o666)},
        files={
            "/usr/lib/wsl/drivers/u0402915.inf_amd64_9f0c/amdxc64.so": "",
            "/usr/lib/wsl/drivers/iigd_dch.inf_amd64_7f1c/libigdgmm_w.so": "",
        },
    )
    assert [values(seen)["vendor"] for seen in platform.observe(host)] == ["intel", "amd"]
    assert [seen.uuid for seen in platform.observe(host)] == ["dxg0", "dxg1"]


def test_wsl_that_does_not_say_whose_gpu_it_is() -> None:
    (seen,) = platform.observe(MemoryHost(nodes={"/dev/dxg": a_node(0o666)}))
    assert values(seen)["vendor"] == "other"
    assert "driver_version" not in values(seen)


def a_jetson() -> MemoryHost:
    return MemoryHost(
        files={
            "/proc/device-tree/compatible": b"nvidia,p3737-0000+p3701-0005\0nvidia,tegra234\0",
            "/proc/device-tree/model": "NVIDIA Jetson AGX Orin Developer Kit\0",
            "/etc/nv_tegra_release": (
                "# R35 (release), REVISION: 4.1, GCID: 33958178, BOARD: t186ref, EABI: aarch64,"
                " DATE: Tue Aug  1 19:57:35 UTC 2023\n"
            ),
            "/proc/meminfo": "MemTotal:       31328240 kB\nMemFree:        28000000 kB\n",
            "/sys/devices/platform/17000000.gpu/uevent": "DRIVER=gk20a\n",
        },
        links={"/sys/devices/platform/17000000.gpu/driver": "../../../bus/platform/drivers/gk20a"},
    )


def test_a_jetson_is_an_integrated_gpu_without_pci() -> None:
    (seen,) = platform.observe(a_jetson())
    assert (seen.probe, seen.uuid, seen.creates) == ("tegra", "tegra0", True)
    assert values(seen) == {
        "vendor": "nvidia",
        "kind": "integrated",
        "driver": "gk20a",
        "name": "NVIDIA Jetson AGX Orin Developer Kit",
        "arch": "8.7",
        "driver_version": "35.4.1",
        "memory_total_bytes": 31328240 * 1024,
    }


def test_an_older_jetson_with_little_recorded() -> None:
    host = MemoryHost(
        files={
            "/proc/device-tree/compatible": b"nvidia,jetson-nano\0nvidia,tegra210\0",
            "/sys/devices/gpu.0/railgate_enable": "1\n",
        }
    )
    (seen,) = platform.observe(host)
    assert values(seen) == {"vendor": "nvidia", "kind": "integrated", "driver": "nvgpu", "arch": "5.3"}


def test_a_container_on_a_jetson() -> None:
    host = MemoryHost(
        files={"/etc/nv_tegra_release": "# R36 (release), REVISION: 4.3, GCID: 38968081"},
        nodes={"/dev/nvhost-gpu": a_node(gid=44)},
    )
    (seen,) = platform.observe(host)
    assert values(seen)["driver_version"] == "36.4.3"


def test_a_tegra_board_whose_gpu_is_not_there() -> None:
    assert platform.observe(MemoryHost(files={"/proc/device-tree/compatible": b"nvidia,tegra194\0"})) == []
    other = MemoryHost(files={"/sys/devices/gpu.0/x": ""})
    other.files["/proc/device-tree/compatible"] = b"raspberrypi,4-model-b\0brcm,bcm2711\0"
    assert platform.observe(other) == []

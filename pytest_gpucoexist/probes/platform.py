"""GPUs that PCI does not show: WSL2's `/dev/dxg` and the GPU of a Jetson."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.model.readings import Observation, Reading
from pytest_gpucoexist.probes.attributes import kernel_release, text_or_none
from pytest_gpucoexist.probes.reader import names_in

if TYPE_CHECKING:
    from pytest_gpucoexist.host.base import Host

__all__ = ["DXG", "WSL_DRIVER", "WSL_LIBRARIES", "observe"]

DXG = "/dev/dxg"
WSL_LIBRARIES = "/usr/lib/wsl/lib"
WSL_DRIVER = "dxgkrnl"
_WSL_STORE = "/usr/lib/wsl/drivers"

# Names of the driver packages that Windows shares with its guests.
_WSL_PACKAGES = (
    ("nvidia", re.compile(r"nv\w*\.inf")),
    ("amd", re.compile(r"u\d{5,}\.inf")),
    ("intel", re.compile(r"(?:iigd|igdlh|ki\d{5,})\w*\.inf")),
)

_TEGRA_RELEASE = "/etc/nv_tegra_release"
_TEGRA_GPU = re.compile(r"(?:[0-9a-f]+\.gpu|gpu\.\d+)")
# Compute capability of the integrated GPU (CUDA C++ Programming Guide; Jetson product pages).
_TEGRA_ARCH = {"tegra210": "5.3", "tegra186": "6.2", "tegra194": "7.2", "tegra234": "8.7"}


def observe(host: Host) -> list[Observation]:
    """Observe GPUs without a PCI function. Their `uuid` is a name within this machine (`dxg0`, `tegra0`)."""
    return [*_wsl(host), *_tegra(host)]


def _wsl(host: Host) -> list[Observation]:
    if not host.exists(DXG):
        return []
    vendors = _wsl_vendors(host) or {"other": DXG}
    found: list[Observation] = []
    for number, (vendor, source) in enumerate(vendors.items()):
        detail = "Windows holds the GPU: neither its address nor its number can be read here"
        readings = [
            Reading(field="vendor", value=vendor, source=source),
            Reading(field="kind", value="unknown", source=DXG, detail=detail),
            Reading(field="name", value=f"{vendor} GPU of the Windows host", source=source),
            Reading(field="driver", value=WSL_DRIVER, source=DXG),
        ]
        release = kernel_release(host)
        if release is not None:
            readings.append(Reading(field="driver_version", value=release, source="kernel release"))
        found.append(Observation(probe="dxg", uuid=f"dxg{number}", readings=tuple(readings), creates=True))
    return found


def _wsl_vendors(host: Host) -> dict[str, str]:
    """Return the vendors whose user-space driver Windows shares with this guest, and what shows it."""
    vendors: dict[str, str] = {}
    for name in names_in(host, WSL_LIBRARIES):
        if name.startswith("libcuda.so"):
            vendors["nvidia"] = f"{WSL_LIBRARIES}/{name}"
    for name in names_in(host, _WSL_STORE):
        for vendor, pattern in _WSL_PACKAGES:
            if pattern.match(name):
                vendors.setdefault(vendor, f"{_WSL_STORE}/{name}")
    return vendors


def _tegra(host: Host) -> list[Observation]:
    chip = _tegra_chip(host)
    release = text_or_none(host, _TEGRA_RELEASE)
    if chip is None and release is None:
        return []
    folder = _tegra_gpu(host)
    if folder is None and not host.exists("/dev/nvhost-gpu"):
        return []
    where = folder or "/dev/nvhost-gpu"
    readings = [
        Reading(field="vendor", value="nvidia", source=where),
        Reading(field="kind", value="integrated", source=where),
        Reading(field="driver", value=_tegra_driver(host, folder), source=where),
    ]
    model = text_or_none(host, "/proc/device-tree/model")
    if model is not None:
        readings.append(Reading(field="name", value=model.strip("\0"), source="/proc/device-tree/model"))
    if chip in _TEGRA_ARCH:
        source = "/proc/device-tree/compatible"
        readings.append(Reading(field="arch", value=_TEGRA_ARCH[chip], source=source, detail=chip))
    # The first line is such as `# R35 (release), REVISION: 4.1, GCID: 33958178, BOARD: t186ref, EABI: aarch64, …`.
    version = re.search(r"R(\d+) \(release\), REVISION: ([\d.]+)", release or "")
    if version is not None:
        value = f"{version[1]}.{version[2]}"
        readings.append(Reading(field="driver_version", value=value, source=_TEGRA_RELEASE))
    memory = re.search(r"^MemTotal:\s+(\d+) kB", text_or_none(host, "/proc/meminfo") or "", re.MULTILINE)
    if memory is not None:
        readings.append(
            Reading(
                field="memory_total_bytes",
                value=int(memory[1]) * 1024,
                source="/proc/meminfo",
                detail="shared with the CPU",
            )
        )
    return [Observation(probe="tegra", uuid="tegra0", readings=tuple(readings), creates=True)]


def _tegra_chip(host: Host) -> str | None:
    """Return the chip of a Tegra board, such as `tegra234`; `compatible` is a list of NUL-terminated names."""
    try:
        text = host.read_bytes("/proc/device-tree/compatible", 4096).decode("ascii", "replace")
    except OSError:
        return None
    chips = [name.removeprefix("nvidia,") for name in text.split("\0") if name.startswith("nvidia,tegra")]
    return chips[-1] if chips else None


def _tegra_gpu(host: Host) -> str | None:
    for parent in ("/sys/devices", "/sys/devices/platform", "/sys/devices/platform/bus@0"):
        for name in names_in(host, parent):
            if _TEGRA_GPU.fullmatch(name):
                return f"{parent}/{name}"
    return None


def _tegra_driver(host: Host, folder: str | None) -> str:
    if folder is not None:
        try:
            return host.read_link(f"{folder}/driver").rpartition("/")[2]
        except OSError:
            pass
    return "nvgpu"

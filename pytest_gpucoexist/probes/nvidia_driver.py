"""Which NVIDIA kernel driver is loaded: its version, and whether it is the open or the proprietary one.

Sources: `/proc/driver/nvidia/version`, `/sys/module/nvidia*/version`, `/sys/module/nvidia/taint` and, when nothing
else says the flavour, the licence that `modinfo` prints. `nvidia-smi` is never run: it can load the module.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.model.machine import Conflict, Driver
from pytest_gpucoexist.probes.attributes import text_or_none
from pytest_gpucoexist.probes.modules import module_driver

if TYPE_CHECKING:
    from pytest_gpucoexist.host.base import Host

__all__ = ["VERSION_FILE", "conflicts", "driver_versions", "drivers", "parse_version"]

VERSION_FILE = "/proc/driver/nvidia/version"
_MODULES = ("nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm", "nvidia_peermem")

# The proprietary driver prints `NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.261.03  Tue …`, the open one
# `NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.133.07  Release Build  (dvs-builder@…)  Fri …`.
_NVRM = re.compile(
    r"NVRM version:\s+NVIDIA UNIX\s+(?P<flavour>Open\s+)?(?:\S+\s+)?Kernel Module(?:\s+for\s+\S+)?\s+(?P<version>\d\S*)"
)


def parse_version(text: str) -> tuple[str, str] | None:
    """Return (version, flavour) of the text of `/proc/driver/nvidia/version`; None when it is not understood."""
    match = _NVRM.search(text)
    if match is None:
        return None
    return match["version"], "open" if match["flavour"] else "proprietary"


def driver_versions(host: Host) -> dict[str, str]:
    """Return the version that each loaded part of the driver states, by the file that states it."""
    versions: dict[str, str] = {}
    parsed = parse_version(text_or_none(host, VERSION_FILE) or "")
    if parsed is not None:
        versions[VERSION_FILE] = parsed[0]
    for module in _MODULES:
        path = f"/sys/module/{module}/version"
        version = text_or_none(host, path)
        if version is not None:
            versions[path] = version
    return versions


def drivers(host: Host) -> list[Driver]:
    """List the loaded kernel drivers that can bind an NVIDIA GPU."""
    found: list[Driver] = []
    versions = driver_versions(host)
    if versions or host.exists("/sys/module/nvidia") or host.exists("/proc/driver/nvidia"):
        source, version = next(iter(versions.items()), ("/sys/module/nvidia", None))
        found.append(Driver(name="nvidia", version=version, flavour=_flavour(host), source=source))
    others = (module_driver(host, name, flavour="open") for name in ("nouveau", "nova_core"))
    return found + [driver for driver in others if driver is not None]


def conflicts(host: Host) -> list[Conflict]:
    """Return what the parts of the driver disagree about: versions, and the flavour.

    Parts of different versions mean a package update under a loaded module, or a stale DKMS build: reboot.
    """
    found: list[Conflict] = []
    versions = driver_versions(host)
    if len(set(versions.values())) > 1:
        listed = ", ".join(f"{path} says {version}" for path, version in versions.items())
        found.append(
            Conflict(
                subject="nvidia",
                kind="driver-version",
                message=f"parts of the NVIDIA kernel driver differ in version: {listed}; reload all or reboot",
                claims=versions,
            )
        )
    flavours = _flavours(host)
    if len(set(flavours.values())) > 1:
        listed = ", ".join(f"{path} says {flavour}" for path, flavour in flavours.items())
        found.append(
            Conflict(
                subject="nvidia",
                kind="driver-flavour",
                message=f"open or proprietary NVIDIA kernel driver: {listed}",
                claims=flavours,
            )
        )
    return found


def _flavours(host: Host) -> dict[str, str]:
    claims: dict[str, str] = {}
    parsed = parse_version(text_or_none(host, VERSION_FILE) or "")
    if parsed is not None:
        claims[VERSION_FILE] = parsed[1]
    taint = text_or_none(host, "/sys/module/nvidia/taint")
    if taint is not None:
        # P: proprietary licence, O: out of tree, E: unsigned (Documentation/admin-guide/tainted-kernels.rst).
        claims["/sys/module/nvidia/taint"] = "proprietary" if "P" in taint else "open"
    return claims


def _flavour(host: Host) -> str | None:
    known = next(iter(_flavours(host).values()), None)
    if known is not None or not host.exists("/sys/module/nvidia"):
        return known
    try:
        answer = host.run(["modinfo", "-F", "license", "nvidia"])
    except OSError:
        return None
    licence = answer.stdout.decode("utf-8", "replace").strip()
    if answer.returncode != 0 or not licence:
        return None
    return "open" if "GPL" in licence else "proprietary"

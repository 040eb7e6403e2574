"""Whether this process runs in a container, and what says so."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.probes.attributes import text_or_none

if TYPE_CHECKING:
    from pytest_gpucoexist.host.base import Host

__all__ = ["container_evidence"]

_FILES = ("/.dockerenv", "/run/.containerenv", "/run/systemd/container", "/.singularity.d")
_VARIABLES = ("container", "KUBERNETES_SERVICE_HOST", "APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")
_CGROUP = re.compile(r"/(?:docker|kubepods|libpod|crio|lxc|containerd|machine\.slice)\b")


def container_evidence(host: Host) -> str | None:
    """Return what shows that this is a container, for a person to check; None outside of one."""
    for path in _FILES:
        if host.exists(path):
            return path
    for variable in _VARIABLES:
        if host.environ.get(variable):
            return f"${variable}"
    for path in ("/proc/self/cgroup", "/proc/1/cgroup"):
        match = _CGROUP.search(text_or_none(host, path) or "")
        if match is not None:
            return f"{path}: {match[0]}"
    return None

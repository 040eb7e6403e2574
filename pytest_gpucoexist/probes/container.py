"""Whether this process runs in a container, and what says so."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.probes.attributes import text_or_none

if TYPE_CHECKING:
    from pytest_gpucoexist.host.base import Host

__all__ = ["container_evidence"]

_FILES = (
    *("/.dockerenv", "/run/.containerenv", "/run/systemd/container", "/.singularity.d"),
    "/run/secrets/kubernetes.io/serviceaccount",
)
_VARIABLES = ("container", "KUBERNETES_SERVICE_HOST", "APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")
_CGROUP = re.compile(r"/(?:docker|kubepods|libpod|crio|lxc|containerd|machine\.slice)\b")

# Where container engines keep the layers of an image. Of the mounts only the root's own counts: a host lists the roots
# of its containers too.
_LAYERS = re.compile(r"/(?:docker/overlay2|docker/rootfs|containerd/[\w.-]+|containers/storage/overlay|buildkit)/")


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
    # A pod whose tests run with a cleaned environment (tox, sudo) shows itself by nothing else.
    for line in (text_or_none(host, "/proc/self/mountinfo") or "").splitlines():
        if line.split(" ", 5)[4:5] == ["/"]:
            match = _LAYERS.search(line)
            if match is not None:
                return f"/proc/self/mountinfo: / is mounted from {match[0].strip('/')}"
    return None

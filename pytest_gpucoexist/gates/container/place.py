"""What kind of place this process runs in: a container and what shows it, a user namespace, which control group."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.probes.container import container_evidence

if TYPE_CHECKING:
    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["cgroup_paths", "container_of", "is_rootless", "runtime_of"]

_RUNTIMES = (
    ("Kubernetes", re.compile(r"kubepods|KUBERNETES")),
    ("podman", re.compile(r"containerenv|libpod")),
    ("Apptainer", re.compile(r"singularity|APPTAINER|SINGULARITY", re.IGNORECASE)),
    ("LXC", re.compile(r"lxc")),
    ("docker", re.compile(r"docker")),
)
_MAP = re.compile(r"\s*(\d+)\s+(\d+)\s+(\d+)\s*")


def container_of(subject: Subject) -> str | None:
    """Return what shows that this is a container; None outside of one."""
    return subject.shared(("container", "evidence"), lambda: container_evidence(subject.host))


def runtime_of(subject: Subject) -> str:
    """Name what runs this container, as far as the evidence tells: docker unless something else shows."""
    evidence = container_of(subject) or ""
    if subject.host.environ.get("KUBERNETES_SERVICE_HOST"):
        evidence += " KUBERNETES"
    if subject.host.environ.get("container"):
        evidence += f" {'libpod' if subject.host.environ['container'] == 'podman' else ''}"
    return next((name for name, pattern in _RUNTIMES if pattern.search(evidence)), "docker")


def is_rootless(subject: Subject) -> bool | None:
    """Whether a user namespace maps this process's users; None where `/proc/self/uid_map` cannot be read.

    The initial namespace maps all of 32 bits to themselves (user_namespaces(7)).
    """
    text = subject.read("/proc/self/uid_map").text
    if text is None:
        return None
    lines = [_MAP.fullmatch(line) for line in text.splitlines() if line.strip()]
    if not lines or None in lines:
        return None
    first = lines[0]
    assert first is not None
    return not (len(lines) == 1 and first[1] == first[2] == "0" and int(first[3]) >= 2**32 - 1)


def cgroup_paths(subject: Subject) -> list[str]:
    """Return the folders of this process's control group (version 2) and of those above it, the deepest first.

    A container with a namespace of its own sees its group as the root.
    """
    text = subject.read("/proc/self/cgroup").text or ""
    own = next((line[3:] for line in text.splitlines() if line.startswith("0::/")), "/")
    if ".." in own.split("/"):
        own = "/"
    folders = []
    while own.rstrip("/"):
        folders.append(f"/sys/fs/cgroup{own.rstrip('/')}")
        own = own.rpartition("/")[0]
    return [*folders, "/sys/fs/cgroup"]

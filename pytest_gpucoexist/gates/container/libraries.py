"""NVIDIA's libraries in a container are those of the host at the container's start; its kernel module may be newer."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.container.place import container_of
from pytest_gpucoexist.gates.findings import Finding, failed, passed, skipped, unknown
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence
from pytest_gpucoexist.probes.nvidia_driver import VERSION_FILE, parse_version

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import Runtime

__all__ = ["library_versions"]

_FILES = {"cuda": "libcuda", "nvml": "libnvidia-ml"}
_VERSION = re.compile(r"\.so\.(\d+(?:\.\d+)+)\Z")


@gate(
    "ctr.lib_match",
    group="container",
    vendors=("nvidia",),
    severity="fail",
    blocking=True,
    title="The container's NVIDIA libraries are those of the host's driver",
    reads="/proc/driver/nvidia/version, and the versions in the names of libcuda.so.* and libnvidia-ml.so.*",
    criterion="the version of the kernel module and of each library are equal (CUDA's compat packages may be newer)",
    why="a driver that was updated on the host under a running container, or libraries baked into the image: NVML says "
    "'Driver/library version mismatch' and CUDA finds no device",
    action="start the container again after an update of the host's driver; take NVIDIA's driver libraries out of "
    "the image",
    source="tinygrad/open-gpu-kernel-modules#47",
)
def library_versions(subject: Subject) -> Iterator[Finding]:
    """Compare the library that the loader takes first with the kernel module."""
    if container_of(subject) is None:
        yield skipped("not in a container: drv.nv.version_match compares a host's libraries")
        return
    gpus = [gpu for gpu in subject.functions("nvidia") if gpu.driver == "nvidia"]
    if not gpus:
        yield skipped("the nvidia driver is bound to no GPU here")
        return
    text = subject.read(VERSION_FILE)
    parsed = parse_version(text.text or "")
    if parsed is None:
        found = text.detail or text.status if text.text is None else repr(text.text[:60])
        yield unknown("the kernel module's version cannot be read", Evidence(source=VERSION_FILE, found=found), on=gpus)
        return
    kernel = parsed[0]
    wrong: list[Evidence] = []
    right: list[Evidence] = []
    for name, stem in _FILES.items():
        loaded = _loaded(subject, name, stem)
        if loaded is not None:
            path, version = loaded
            evidence = Evidence(source=path, found=f"{stem} {version}", expected=kernel)
            (right if version == kernel else wrong).append(evidence)
    module = Evidence(source=VERSION_FILE, found=kernel)
    if wrong:
        said = " and ".join(each.found for each in wrong)
        yield failed(f"this container has {said}, and the host's kernel module is {kernel}", module, *wrong, on=gpus)
    elif right:
        yield passed(f"libraries and kernel module are {kernel}", module, *right, on=gpus)
    else:
        yield unknown("no libcuda or libnvidia-ml was found whose name tells its version", module, on=gpus)


def _loaded(subject: Subject, name: str, stem: str) -> tuple[str, str] | None:
    """Return the path and the version of the file that the loader takes: what its soname leads to.

    An image can hold an older libcuda beside the one that was mounted; the link decides between them.
    """
    paths = [each.path for each in subject.machine.runtimes if each.name == name and _is_drivers(each)]
    for path in filter(None, paths):
        target = path
        with contextlib.suppress(OSError):  # no link: the file itself is all that there is
            target = subject.host.resolve(f"{path.rpartition('/')[0]}/{stem}.so.1")
        version = _VERSION.search(target)
        return (target, version[1]) if version is not None else None
    return None


def _is_drivers(runtime: Runtime) -> bool:
    """Leave out what is meant to differ (forward compatibility, stubs), and what a helper told without a file."""
    path = runtime.path or ""
    return runtime.kind == "runtime" and path.startswith("/") and "/compat" not in path and "/stubs/" not in path

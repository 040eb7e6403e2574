"""Memory that a container may use: its control group, and `/dev/shm`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.container.place import cgroup_paths, container_of, runtime_of
from pytest_gpucoexist.gates.findings import Finding, passed, unknown, warned
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence, Fix
from pytest_gpucoexist.probes.parse import number
from pytest_gpucoexist.probes.reader import Bad

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["memory_limit", "shared_memory", "size_of"]

_UNLIMITED = 1 << 60
"""Version 1 writes the largest number of pages for no limit: 9223372036854771712."""
_GIB = 1 << 30
_SIZE = re.compile(r"size=(\d{1,18})([kmgt%]?)", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_CACHE = re.compile(r"^(?:total_)?inactive_file (\d{1,18})$", re.MULTILINE)


@gate(
    "ctr.memory_max",
    group="container",
    severity="fail",
    title="Memory is left under the control group's limit",
    reads="memory.max, memory.current and memory.stat of the control group and those above it (version 1: "
    "limit_in_bytes)",
    criterion="at least 2 GiB below the limit, page cache that can be dropped left out",
    why="pinned host memory counts against the limit: a test is killed by the kernel, without a Python traceback, as "
    "soon as it stages its data",
    action="raise the limit of the container or service (docker --memory, MemoryMax=)",
    source="leptonai/gpud components/memory; Documentation/admin-guide/cgroup-v2.rst",
    limits={"min_free_bytes": 2 * _GIB},
)
def memory_limit(subject: Subject) -> Iterator[Finding]:
    """Judge the tightest limit that holds for this process."""
    tightest: tuple[int, list[Evidence]] | None = None
    seen: list[Evidence] = []
    for limit_path, used_path, stat_path in _files(subject):
        limit = _bytes(subject, limit_path)
        if isinstance(limit, Bad):
            seen.append(Evidence(source=limit_path, found=limit.detail, expected="a number or max"))
            continue
        if limit is None:
            continue
        if limit >= _UNLIMITED:
            seen.append(Evidence(source=limit_path, found="no limit"))
            continue
        used = _bytes(subject, used_path)
        if not isinstance(used, int):
            seen.append(Evidence(source=used_path, found="cannot be read", expected="a number"))
            continue
        cache = _CACHE.search(subject.read(stat_path).text or "")
        free = limit - used + min(used, int(cache[1]) if cache else 0)
        rows = [Evidence(source=limit_path, found=str(limit)), Evidence(source=used_path, found=str(used))]
        if cache:
            rows.append(Evidence(source=stat_path, found=cache[0]))
        if tightest is None or free < tightest[0]:
            tightest = free, rows
    wanted = subject.limit("ctr.memory_max", "min_free_bytes", 2 * _GIB)
    if tightest is None:
        if any(each.found == "no limit" for each in seen):
            yield passed("no control group limits this process's memory", *seen)
        else:
            yield unknown("no control group's limit of memory can be read", *(seen or _nothing(subject)))
        return
    free, rows = tightest
    if free >= wanted:
        yield passed(f"{free / _GIB:.1f} GiB are left under the control group's limit", *rows)
        return
    fix = (
        [Fix(lines=("docker run --memory 16g …",))] if container_of(subject) and runtime_of(subject) == "docker" else []
    )
    yield warned(
        f"only {free / _GIB:.1f} GiB are left under the control group's limit; pinned memory counts", *rows, fix=fix
    )


def _files(subject: Subject) -> Iterator[tuple[str, str, str]]:
    for folder in cgroup_paths(subject):
        yield f"{folder}/memory.max", f"{folder}/memory.current", f"{folder}/memory.stat"
    for folder in ("/sys/fs/cgroup/memory", *_own_v1(subject)):
        yield f"{folder}/memory.limit_in_bytes", f"{folder}/memory.usage_in_bytes", f"{folder}/memory.stat"


def _own_v1(subject: Subject) -> Iterator[str]:
    match = re.search(
        r"^\d+:(?:[\w,]*,)?memory(?:,[\w,]*)?:(/.+)$", subject.read("/proc/self/cgroup").text or "", re.MULTILINE
    )
    if match is not None and ".." not in match[1]:
        yield f"/sys/fs/cgroup/memory{match[1]}"


def _bytes(subject: Subject, path: str) -> int | Bad | None:
    """Read a number of bytes; None where there is no such file, `max` is no limit."""
    text = subject.read(path)
    if text.text is None:
        return None if text.status == "absent" else Bad(text.detail or text.status)
    return _UNLIMITED if text.text.strip() == "max" else number(text.text)


def _nothing(subject: Subject) -> list[Evidence]:
    text = subject.read("/proc/self/cgroup")
    return [
        Evidence(source="/sys/fs/cgroup", found=f"no memory.max (control group: {text.detail or 'version 1 or none'})")
    ]


@gate(
    "ctr.shm",
    group="container",
    title="Shared memory (/dev/shm) is large enough",
    reads="/proc/self/mountinfo: the size of /dev/shm",
    criterion="at least 1 GiB",
    why="NCCL, RCCL and data loaders of frameworks pass buffers through /dev/shm; docker gives it 64 MiB, and they "
    "die with a bus error or 'unhandled system error'",
    action="start the container with --shm-size=2g or --ipc=host (Kubernetes: an emptyDir with medium Memory)",
    source="docker run --shm-size (default 64 MiB); NVIDIA's container documentation",
    limits={"min_bytes": _GIB},
)
def shared_memory(subject: Subject) -> Iterator[Finding]:
    """Judge the size of the tmpfs at `/dev/shm`."""
    path = "/proc/self/mountinfo"
    text = subject.read(path, 1 << 20)
    if text.text is None:
        yield unknown("the mounts cannot be read", Evidence(source=path, found=text.detail or text.status))
        return
    line = next((line for line in reversed(text.text.splitlines()) if line.split(" ")[4:5] == ["/dev/shm"]), None)
    if line is None:
        yield unknown("nothing is mounted at /dev/shm", Evidence(source=path, found="no /dev/shm", expected="a tmpfs"))
        return
    evidence = Evidence(
        source=f"{path}: /dev/shm", found=line.partition(" - ")[2] or line, expected="size of 1 GiB or more"
    )
    size = size_of(line)
    if size is None:
        if " - tmpfs " in line and "size=" not in line:
            yield passed("/dev/shm may take half of the memory, as a tmpfs without a size does", evidence)
        else:
            yield unknown("the size of /dev/shm is not told", evidence)
        return
    if size >= subject.limit("ctr.shm", "min_bytes", _GIB):
        yield passed(f"/dev/shm has {size / _GIB:.1f} GiB", evidence)
        return
    runtime = runtime_of(subject) if container_of(subject) else None
    fix = [Fix(lines=(f"{runtime} run --shm-size=2g …",))] if runtime in {"docker", "podman"} else []
    action = None if runtime else "sudo mount -o remount,size=2g /dev/shm"
    yield warned(f"/dev/shm has only {size >> 20} MiB", evidence, action=action, fix=fix)


def size_of(line: str) -> int | None:
    """Read the size of a tmpfs in its line of mountinfo; None where it has none, or one that makes no sense.

    >>> size_of("30 25 0:27 / /dev/shm rw,nosuid - tmpfs shm rw,size=65536k")
    67108864
    """
    match = _SIZE.search(line.partition(" - ")[2])
    if match is None or match[2] == "%":
        return None
    return int(match[1]) * _UNITS[match[2].lower()] or None

"""What the kernel lets this process have: open files, locked memory, the kernel's log."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.container.place import container_of, runtime_of
from pytest_gpucoexist.gates.findings import Finding, passed, unknown, warned
from pytest_gpucoexist.gates.kernel_log.evidence import log_evidence
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence, Fix

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["Limit", "kernel_log", "limit_of", "locked_memory", "open_files"]

_LIMITS = "/proc/self/limits"
_KMSG = (1, 11)  # Documentation/admin-guide/devices.txt
_JOURNALS = ("/var/log/journal", "/run/log/journal")
_CAP_SYSLOG = 34
_MACHINE_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A resource limit; None is no limit."""

    soft: int | None
    hard: int | None


def limit_of(text: str, name: str) -> Limit | None:
    """Read one line of `/proc/<pid>/limits` (fs/proc/base.c, proc_pid_limits); None where it makes no sense.

    >>> limit_of("Max open files            1024                 1048576              files     ", "Max open files")
    Limit(soft=1024, hard=1048576)
    """
    match = re.search(rf"^{re.escape(name)} +(unlimited|\d{{1,20}}) +(unlimited|\d{{1,20}})(?: |$)", text, re.MULTILINE)
    if match is None:
        return None
    soft, hard = (None if word == "unlimited" else int(word) for word in match.groups())
    return Limit(soft=soft, hard=hard)


def _limit(subject: Subject, name: str) -> tuple[Limit | None, Evidence]:
    text = subject.read(_LIMITS)
    limit = None if text.text is None else limit_of(text.text, name)
    if limit is None:
        found = text.detail or text.status if text.text is None else f"no line '{name}'"
        return None, Evidence(source=_LIMITS, found=found, expected=name)
    return limit, Evidence(source=f"{_LIMITS}: {name}", found=f"soft {_shown(limit.soft)}, hard {_shown(limit.hard)}")


def _shown(value: int | None) -> str:
    return "unlimited" if value is None else str(value)


@gate(
    "dev.nofile",
    group="device-node",
    title="Enough files may be open",
    reads="/proc/self/limits: Max open files",
    criterion="at least 1024 (what every login gets) for up to four GPUs, and 256 more for each further one",
    why="a GPU process holds dozens of descriptors for each GPU it sees, and one for every shared buffer; where they "
    "run out, runtimes report 'out of memory' or 'no device'",
    action="raise the soft limit in the shell or service that starts the tests",
    source="leptonai/gpud components/os (file descriptors)",
    limits={"base": 1024, "per_further_gpu": 256},
)
def open_files(subject: Subject) -> Iterator[Finding]:
    """Judge RLIMIT_NOFILE."""
    limit, evidence = _limit(subject, "Max open files")
    if limit is None:
        yield unknown("the limit of open files cannot be read", evidence)
        return
    further = max(0, len(subject.functions()) - 4)
    base = subject.limit("dev.nofile", "base", 1024)
    needed = int(base + further * subject.limit("dev.nofile", "per_further_gpu", 256))
    if limit.soft is None or limit.soft >= needed:
        yield passed(f"{_shown(limit.soft)} files may be open", evidence)
        return
    if limit.hard is None or limit.hard >= needed:
        fix = [Fix(lines=(f"ulimit -n {needed}",))]
    elif container_of(subject) is not None:
        fix = _option(subject, f"--ulimit nofile={needed}")
    else:
        fix = [Fix(path="/etc/security/limits.d/60-gpu.conf", lines=(f"* - nofile {needed}",))]
    yield warned(f"only {limit.soft} files may be open; {needed} are wanted for the GPUs here", evidence, fix=fix)


@gate(
    "dev.memlock",
    group="device-node",
    vendors=("nvidia", "amd"),
    title="Memory may be locked",
    reads="/proc/self/limits: Max locked memory; /sys/class/infiniband",
    criterion="at least 64 KiB, what kernels gave for decades; with InfiniBand adapters 64 MiB",
    why="the nvidia and amdgpu drivers pin host memory without counting it, RDMA does count it: NCCL and RCCL over "
    "InfiniBand fail to register their buffers",
    action="ulimit -l unlimited in the shell or service that starts the tests (LimitMEMLOCK=infinity)",
    source="LMCache/LMCache-Ascend#5; NVIDIA/cudf-spark PR#7632",
    limits={"min_bytes": 65536, "min_bytes_rdma": 64 * 2**20},
)
def locked_memory(subject: Subject) -> Iterator[Finding]:
    """Judge RLIMIT_MEMLOCK, strictly only where something counts against it."""
    limit, evidence = _limit(subject, "Max locked memory")
    if limit is None:
        yield unknown("the limit of locked memory cannot be read", evidence)
        return
    adapters = [name for name in subject.names("/sys/class/infiniband") if not _is_ethernet(subject, name)]
    needed = subject.limit("dev.memlock", "min_bytes", 65536)
    if adapters:
        needed = subject.limit("dev.memlock", "min_bytes_rdma", 64 * 2**20)
    if limit.soft is None or limit.soft >= needed:
        yield passed(f"{_shown(limit.soft)} bytes may be locked", evidence)
        return
    reason = f"only {limit.soft} bytes may be locked"
    if adapters:
        reason += f", and the RDMA adapter {adapters[0]} counts every buffer against it"
    if container_of(subject) is None:
        fix = [Fix(path="/etc/security/limits.d/60-gpu.conf", lines=("* - memlock unlimited",))]
    else:
        fix = _option(subject, "--ulimit memlock=-1")
    yield warned(reason, evidence, fix=fix)


def _option(subject: Subject, option: str) -> list[Fix]:
    """Return the line that starts a container with an option, where an engine with a command line runs it."""
    runtime = runtime_of(subject)
    return [Fix(lines=(f"{runtime} run {option} …",))] if runtime in {"docker", "podman"} else []


def _is_ethernet(subject: Subject, adapter: str) -> bool:
    """Whether every port is Ethernet's: each mlx5 network card is listed as an RDMA adapter, used as one or not."""
    folder = f"/sys/class/infiniband/{adapter}/ports"
    layers = [(subject.read(f"{folder}/{port}/link_layer").text or "").strip() for port in subject.names(folder)]
    return bool(layers) and set(layers) == {"Ethernet"}


@gate(
    "dev.kmsg",
    group="device-node",
    severity="info",
    title="The kernel's log can be read",
    reads="rights on /dev/kmsg and the journal, /proc/sys/kernel/dmesg_restrict",
    criterion="one of them may be read by this process",
    why="an Xid or a ring timeout stands in the kernel's log alone; where it cannot be read, gates of the kernel log "
    "are unknown, never passed",
    action="join the group adm or systemd-journal; in a container pass the log in (--device /dev/kmsg), or run "
    "gpucoexist doctor on the host",
    source="leptonai/gpud pkg/kmsg; amd/node-scraper dmesg collector",
)
def kernel_log(subject: Subject) -> Iterator[Finding]:
    """Look for one source that this process may read; where the gates of the log have read one, that is it."""
    log = log_evidence(subject).log
    if log.status == "ok":
        yield passed("the kernel's log was read", Evidence(source=log.source, found="read", expected="one source"))
        return
    node = _stand_in(subject)
    if node is not None:
        yield warned(
            "what stands at /dev/kmsg is not the kernel's log, so whoever reads it sees an empty one",
            Evidence(source="/dev/kmsg", found=node, expected="character device 1:11"),
            action="start the container with --device /dev/kmsg, or run gpucoexist doctor on the host",
        )
        return
    seen: list[Evidence] = []
    problem = _read_problem(subject, "/dev/kmsg")
    restricted = (subject.read("/proc/sys/kernel/dmesg_restrict").text or "").strip()
    if problem is None and (restricted == "0" or _may_syslog(subject)):
        yield passed("/dev/kmsg may be read", Evidence(source="/dev/kmsg", found="may be read", expected="one source"))
        return
    found = problem or f"mode allows it, without CAP_SYSLOG and with dmesg_restrict {restricted or 'not told'}"
    seen.append(Evidence(source="/dev/kmsg", found=found, expected="may be read"))
    for folder in _JOURNALS:
        machine = next((name for name in subject.names(folder) if _MACHINE_ID.fullmatch(name)), None)
        if machine is None:
            seen.append(Evidence(source=folder, found="no journal", expected="may be read"))
            continue
        problem = _read_problem(subject, f"{folder}/{machine}/system.journal")
        if problem is None:
            yield passed(f"the journal in {folder} may be read", Evidence(source=folder, found="may be read"))
            return
        seen.append(Evidence(source=folder, found=problem, expected="may be read"))
    action = None
    if container_of(subject) is not None:
        action = "pass the log into the container (--device /dev/kmsg), or run gpucoexist doctor on the host"
    yield unknown("neither /dev/kmsg nor the journal may be read by this process", *seen, action=action)


def _stand_in(subject: Subject) -> str | None:
    """Describe what a container runtime has put in the log's place: /dev/null, a console."""
    try:
        node = subject.host.stat("/dev/kmsg")
    except OSError:
        return None
    if node.kind == "chardev" and (node.major, node.minor) == _KMSG:
        return None
    return f"{'character device' if node.kind == 'chardev' else node.kind} {node.major}:{node.minor}"


def _read_problem(subject: Subject, path: str) -> str | None:
    try:
        subject.host.may_open(path, write=False)
    except OSError as error:
        return os.strerror(error.errno) if error.errno else str(error)
    return None


def _may_syslog(subject: Subject) -> bool:
    match = re.search(r"^CapEff:\s*([0-9a-f]{1,16})$", subject.read("/proc/self/status").text or "", re.MULTILINE)
    return match is not None and bool(int(match[1], 16) >> _CAP_SYSLOG & 1)

"""Machines whose devices are in use: files that were built, processes that are described or real, NVML as told."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from pytest_gpucoexist.host import local_host
from pytest_gpucoexist.host.base import HelperReply
from pytest_gpucoexist.probes import discover
from pytest_gpucoexist.testing.builder import MachineBuilder, a_machine
from tests.vendor.hosts import answering

if TYPE_CHECKING:
    from pytest_gpucoexist.host import Host
    from pytest_gpucoexist.model.machine import Machine

GIB = 2**30
MIB = 2**20
FIRST_NAMESPACE = "pid:[4026531836]"
TOTAL = 24 * GIB


class _Here:
    """Files of a machine that was built; processes, users and vendor libraries of this computer."""

    simulated = False

    def __init__(self, files: Host) -> None:
        self._files = files
        self._here = local_host()

    def _of(self, path: str) -> Host:
        return self._here if path.startswith(("/proc/", "/etc/passwd")) or path == "/proc" else self._files

    def read_link(self, path: str) -> str:
        # The fake libraries count PIDs as this computer does, whatever namespace that is.
        return FIRST_NAMESPACE if path == "/proc/self/ns/pid" else self._of(path).read_link(path)

    def __getattr__(self, name: str) -> Any:
        if name in {"read_bytes", "read_text", "list_dir", "stat"}:
            return lambda path, *more: getattr(self._of(path), name)(path, *more)
        if name == "exists":  # discovery looks for the driver's own files in /proc
            return lambda path: self._files.exists(path) or self._of(path).exists(path)
        if name in {"ask", "ask_all", "environ", "python_path"}:
            return getattr(self._here, name)
        return getattr(self._files, name)


def used_here(files: MachineBuilder) -> tuple[Host, Machine]:
    """Return a machine of built files whose users are real processes of this computer, and whose NVML is loaded."""
    built = files.host()
    return cast("Host", _Here(built)), replace(discover(built), simulated=False)


class User(NamedTuple):
    """A process on a board, as NVML lists it."""

    pid: int
    memory: int | None = GIB
    kind: str = "compute"


def board(
    address: str, *users: User, used: int | None = None, reserved: int = 400 * MIB, display: bool = False
) -> dict[str, Any]:
    """Write what `nvml_users` says of a board of 24 GiB; `used` is what its users hold, unless told otherwise."""
    held = sum(user.memory or 0 for user in users) if used is None else used
    return {
        "index": 0,
        "fault": None,
        "uuid": {"value": "GPU-11111111-2222-3333-4444-555555555555"},
        "pci": {"value": {"address": f"0000{address.upper()}"}},
        "memory": {"value": {"total": TOTAL, "used": held + reserved, "free": TOTAL - held - reserved}},
        "reserved": {"value": reserved},
        "display": {"value": display},
        "processes": {"value": [{"pid": user.pid, "memory": user.memory, "kind": user.kind} for user in users]},
        "parts": [],
    }


NVIDIA, AMD = "0000:01:00.0", "0000:04:00.0"


def workstation(amd_used: int = 0, namespace: str = FIRST_NAMESPACE) -> MachineBuilder:
    """Return a machine with an RTX 4090 and an RX 7900 XTX, seen by process 300, a child of the shell 200."""
    machine = a_machine().with_gpu("rtx4090").with_gpu("rx7900xtx", memory_used_bytes=amd_used)
    machine = machine.with_link("/proc/self", "300").with_link("/proc/300/ns/pid", namespace)
    machine = with_process(machine, 1, "systemd", parent=0)
    return with_process(with_process(machine, 200, "bash"), 300, "pytest", parent=200)


def with_process(
    machine: MachineBuilder,
    pid: int,
    name: str,
    *,
    parent: int = 1,
    group: int | None = None,
    session: int | None = None,
    started: int = 1000,
) -> MachineBuilder:
    """Put a process into `/proc`, in the words of the kernel."""
    middle = " ".join(["0"] * 15)
    stat = f"{pid} ({name}) S {parent} {group or pid} {session or pid} {middle} {started} 0 0\n"
    return machine.with_file(f"/proc/{pid}/comm", f"{name}\n").with_file(f"/proc/{pid}/stat", stat)


def with_clients(machine: MachineBuilder, pid: int, address: str, *sizes_bytes: int) -> MachineBuilder:
    """Let a process hold memory of an AMD GPU, as kernel 6.1 prints it in fdinfo."""
    for number, size in enumerate(sizes_bytes, start=5):
        text = (
            f"drm-driver:\tamdgpu\ndrm-client-id:\t{pid}{number}\ndrm-pdev:\t{address}\n"
            f"drm-memory-vram:\t{size >> 10} KiB\ndrm-memory-gtt: \t2048 KiB\n"
        )
        machine = machine.with_file(f"/proc/{pid}/fdinfo/{number}", text)
        machine = machine.with_link(f"/proc/{pid}/fd/{number}", "/dev/dri/renderD128")
    return machine


def told(machine: MachineBuilder, *boards: dict[str, Any]) -> Host:
    """Return the machine as a live one whose NVML says this."""
    return answering(machine.host(), nvml_users=HelperReply(status="ok", data={"devices": list(boards)}))

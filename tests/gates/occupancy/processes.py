"""Processes for built machines, in the words of the kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_gpucoexist.testing.builder import MachineBuilder

FIRST_NAMESPACE = "pid:[4026531836]"
CONTAINER = "pid:[4026532567]"


def stat(pid: int, name: str, state: str = "S", parent: int = 1) -> str:
    """A line of /proc/<pid>/stat as Linux 6.8 prints it (do_task_stat, fs/proc/array.c)."""
    rest = "-1 4194304 1617 0 0 0 12 5 0 0 20 0 1 0 9151 11567104 1331 18446744073709551615 1 1 0 0 0 0 0 4096 65536 1"
    return f"{pid} ({name}) {state} {parent} {pid} {pid} 0 {rest} 0 0 17 3 0 0 0 0 0 0 0 0 0 0 0 0 0\n"


def sched(pid: int, name: str, ran_ms: float) -> str:
    """The head of /proc/<pid>/sched (proc_sched_show_task, kernel/sched/debug.c)."""
    return (
        f"{name} ({pid}, #threads: 1)\n{'-' * 67}\n"
        f"se.exec_start                                :{ran_ms:>21.6f}\n"
        "se.vruntime                                  :           638.430376\n"
        "nr_switches                                  :                 1420\n"
    )


def put(machine: MachineBuilder, path: str, text: str) -> MachineBuilder:
    """Put a file below a folder that sysfs shows through links."""
    folder, name = path, []
    host = machine.host()
    while not host.exists(folder):
        folder, _, part = folder.rpartition("/")
        name.append(part)
    return machine.with_file("/".join((host.resolve(folder), *reversed(name))), text)


def with_processes(
    machine: MachineBuilder, *stats: str, me: int = 900, namespace: str = FIRST_NAMESPACE
) -> MachineBuilder:
    """Add PID 1, a shell, this process (`me`) below it, and the processes of `stats`."""
    own = (stat(1, "systemd", parent=0), stat(800, "bash"), stat(me, "pytest", "R", 800))
    for text in (*own, *stats):
        machine = machine.with_file(f"/proc/{text.split()[0]}/stat", text)
    machine = machine.with_link("/proc/self", str(me)).with_link(f"/proc/{me}/ns/pid", namespace)
    return machine.with_file(f"/proc/{me}/sched", sched(me, "pytest", 12_364_542.77))

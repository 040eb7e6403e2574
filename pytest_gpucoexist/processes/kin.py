"""What a process has started, by the kernel's own lists, and what keeps one alive that was killed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_gpucoexist.host.base import Host

__all__ = ["Stuck", "descendants", "stuck_state"]

_MOST = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """A process that was killed and is still there. `state` is that of proc(5): `D` is blocked in the kernel.

    `wchan` is the kernel's function in which it waits, where that may be read. `detail` says what could not be read.
    """

    pid: int
    state: str | None = None
    wchan: str | None = None
    detail: str | None = None

    def describe(self) -> str:
        """One sentence for a report."""
        known = f"state {self.state}" if self.state else f"its state cannot be read: {self.detail}"
        where = f", in {self.wchan}" if self.wchan else ""
        return f"process {self.pid} was killed and does not end ({known}{where})"


def descendants(host: Host, pid: int) -> list[int]:
    """Return the processes below `pid`, nearest first. Without CONFIG_PROC_CHILDREN there are none to be found."""
    found: list[int] = []
    waiting = [pid]
    while waiting and len(found) < _MOST:
        parent = waiting.pop()
        try:
            threads = host.list_dir(f"/proc/{parent}/task")
        except OSError:
            continue
        for thread in threads:
            try:
                text = host.read_text(f"/proc/{parent}/task/{thread}/children")
            except OSError:
                continue
            children = [int(each) for each in text.split() if each.isdecimal()]
            found += [each for each in children if each not in found]
            waiting += children
    return found


def stuck_state(host: Host, pid: int) -> Stuck:
    """Say what can be read of a process that does not end. Never raises."""
    try:
        # The name, in parentheses, can hold anything; the state follows the last one (proc_pid_stat(5)).
        state = host.read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()[0]
    except (OSError, IndexError) as error:
        return Stuck(pid=pid, detail=str(error) or "its line is empty")
    try:
        wchan = host.read_text(f"/proc/{pid}/wchan")
    except OSError:
        wchan = ""
    return Stuck(pid=pid, state=state, wchan=wchan if wchan not in {"", "0"} else None)

"""What judging a machine costs: the quick gates on the largest recorded machines, and a vendor library that hangs."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.benchmarks.measures import LARGEST, RECORDINGS, hanging_nvml
from tests.benchmarks.running import ROOT, Row

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["gates", "gates_hanging"]

CPU_LIMIT_MS = 150
LOG_LINES = 5000

# In a process of its own: the first judgement, with every import that it needs, is what a session pays. CPU time is of
# all threads. The kernel's log is benign and as long as that of a server after some weeks.
_JUDGE_ONCE = """
import sys, time
from pytest_gpucoexist.host import open_recording
from pytest_gpucoexist.host.base import KernelLog
from pytest_gpucoexist.probes import discover

path, lines = sys.argv[1], int(sys.argv[2])
benign = [
    "6,{n},{us},-;usb 1-{p}: new high-speed USB device number {p} using xhci_hcd",
    "6,{n},{us},-;audit: type=1400 audit(1700000000.{p}:{n}): apparmor=\\"STATUS\\" operation=\\"profile_load\\"",
    "5,{n},{us},-;IPv6: ADDRCONF(NETDEV_CHANGE): veth{p}: link becomes ready",
    "6,{n},{us},-;amdgpu 0000:03:00.0: amdgpu: ring gfx_0.0.0 uses VM inv eng {p} on hub 0",
    "4,{n},{us},-;pcieport 0000:00:01.1: AER: enabled with IRQ {p}",
]
log = "\\n".join(benign[n % len(benign)].format(n=n, us=n * 1000, p=n % 90) for n in range(lines))

class Logged:
    def __init__(self, inner):
        self._inner = inner
    def __getattr__(self, name):
        return getattr(self._inner, name)
    def kernel_log(self, *, allow_programs=False):
        return KernelLog(status="ok", text=log, source="/dev/kmsg", complete=True,
                         first_sequence=0, read_at_s=lines / 1000)

host = Logged(open_recording(path))
machine = discover(host)
busy, started = time.process_time(), time.perf_counter()
from pytest_gpucoexist.gates import Subject, judge
judgement = judge(Subject(host=host, machine=machine))
first, wall = time.process_time() - busy, time.perf_counter() - started
busy = time.process_time()
judge(Subject(host=host, machine=machine))
print(1000 * first, 1000 * wall, len(judgement.by_gate()),
      sum(verdict.status == "ERROR" for verdict in judgement.verdicts), 1000 * (time.process_time() - busy))
"""


def gates(*, quick: bool) -> list[Row]:
    """Measure the first judgement of a session, imports included, on the largest recorded machines; and a second."""
    with tempfile.TemporaryDirectory() as compiled:
        # As for start-up: the target is for a quiet machine, a busy or slower one is given twice that.
        return list(_first_judgements(Path(compiled), 5 if quick else 15, CPU_LIMIT_MS * (2 if quick else 1)))


def _first_judgements(compiled: Path, count: int, limit_ms: int) -> Iterator[Row]:
    for what, relative in {**LARGEST, "most partitions (63)": "kfd/topo-mi300-cpx.tar.xz"}.items():
        path = RECORDINGS / relative
        if not path.exists():
            yield Row(measure=f"gates: {relative} is not beside this checkout", median="", met=False)
            continue
        _judged_once(path, compiled)  # an installed package has its modules compiled
        runs = [_judged_once(path, compiled) for _ in range(count)]
        cpu = [run[0] for run in runs]
        yield Row(
            measure=f"quick gates, {what}: {path.name.split('.')[0]}, {runs[0][2]:.0f} gates, {LOG_LINES} lines",
            median=f"CPU {statistics.median(cpu):.0f} ms (again {statistics.median(run[4] for run in runs):.0f})",
            spread=f"CPU {min(cpu):.0f} to {max(cpu):.0f} ms",
            target=f"{limit_ms} ms CPU",
            met=statistics.median(cpu) <= limit_ms and not any(run[3] for run in runs),
        )


def _judged_once(path: Path, compiled: Path) -> tuple[float, float, float, float, float]:
    done = subprocess.run(
        [sys.executable, "-c", _JUDGE_ONCE, str(path), str(LOG_LINES)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPYCACHEPREFIX": str(compiled), "PYTHONDONTWRITEBYTECODE": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    cpu, wall, count, broken, again = map(float, done.stdout.split())
    return cpu, wall, count, broken, again


def gates_hanging(*, quick: bool) -> list[Row]:
    """Measure the standard gates while NVML hangs for 60 s: the deadline is paid once, not by each gate."""
    import time

    from pytest_gpucoexist.gates import Subject, judge
    from pytest_gpucoexist.probes import discover

    deadline_s, allowed_s = 2.0, 3.0 if quick else 1.0
    with hanging_nvml() as (_files, host, _fake):
        machine = discover(host)
        started = time.perf_counter()
        judgement = judge(Subject(host=host, machine=machine, level="standard", deadline_s=deadline_s))
        seconds = time.perf_counter() - started
    told = [verdict for verdict in judgement.verdicts if verdict.id == "drv.query_timeout" and verdict.status == "FAIL"]
    return [
        Row(
            measure=f"standard gates while NVML hangs, deadline {deadline_s:g} s; {'told' if told else 'NOT TOLD'}",
            median=f"{seconds:.2f} s",
            target=f"{deadline_s + allowed_s:g} s",
            met=bool(told) and seconds <= deadline_s + allowed_s,
        )
    ]

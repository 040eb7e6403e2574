"""One pytest process per test, memory-aware, longest first, with a reservation: NVIDIA Dynamo's runner by design.

Written for this comparison. The list is sorted by duration; whoever fits is started, as many at once as there are
workers. When the first of the list does not fit, the devices on which it can begin soonest are reserved for it: a later
test may only start there if it ends before that. Devices belong to a test from before its process is started until that
has ended.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["main"]

POLL_S = 0.002


@dataclass(slots=True, kw_only=True)
class _Device:
    key: str
    vendor: str
    memory_gib: float
    taken: dict[str, float] = field(default_factory=dict)

    def free_gib(self, without: Iterable[str] = ()) -> float:
        """Return what is left, if `without` were over."""
        gone = set(without)
        return self.memory_gib - sum(size for who, size in self.taken.items() if who not in gone)


@dataclass(slots=True, kw_only=True)
class _Job:
    nodeid: str
    needs: list[tuple[str, int]]
    memory_gib: float | None
    duration_s: float
    process: subprocess.Popen[bytes] | None = None
    begin: float = 0.0
    devices: list[_Device] = field(default_factory=list)


def _place(job: _Job, devices: list[_Device], over: Iterable[str] = (), but: Iterable[str] = ()) -> list[_Device]:
    """Return devices on which the job fits if those in `over` had ended; nothing if there are none. Best fit first."""
    got: list[_Device] = []
    for vendor, count in job.needs:
        fitting = [
            device
            for device in devices
            if vendor in {"any", device.vendor}
            and device not in got
            and device.key not in but
            and device.free_gib(over) >= (device.memory_gib if job.memory_gib is None else job.memory_gib)
        ]
        if len(fitting) < count:
            return []
        got += sorted(fitting, key=lambda device: device.free_gib(over))[:count]
    return got


def _reserved(job: _Job, running: list[_Job], devices: list[_Device]) -> tuple[float, list[_Device]]:
    """Return when the job can begin at the earliest, as far as durations tell, and where."""
    over: list[str] = []
    for other in sorted(running, key=lambda other: other.begin + other.duration_s):
        over.append(other.nodeid)
        if place := _place(job, devices, over):
            return other.begin + other.duration_s, place
    raise ValueError(f"{job.nodeid} fits nowhere")


def main() -> int:
    """Run the suite in this folder: `runner.py WORKERS DURATIONS`, with what each test took before, in seconds."""
    workers = int(sys.argv[1])
    durations: dict[str, float] = json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))
    suite = json.loads(Path("suite.json").read_text(encoding="utf-8"))
    devices = [_Device(**device) for device in suite["devices"]]
    waiting = []
    for nodeid, seconds in sorted(durations.items(), key=lambda each: -each[1]):
        need: dict[str, Any] = suite["needs"].get(nodeid) or suite["needs"][nodeid.partition("::")[0]]
        job = _Job(nodeid=nodeid, needs=need["devices"], memory_gib=need["memory_gib"], duration_s=seconds)
        waiting.append(job)
    running: list[_Job] = []
    failed = 0
    while waiting or running:
        for job in [job for job in running if job.process is not None and job.process.poll() is not None]:
            running.remove(job)
            failed += _ended(job)
        _start(waiting, running, devices, workers)
        time.sleep(POLL_S)
    return 1 if failed else 0


def _start(waiting: list[_Job], running: list[_Job], devices: list[_Device], workers: int) -> None:
    reserved_from, reserved = float("inf"), [device for device in devices if False]
    for job in list(waiting):
        if len(running) >= workers:
            return
        long = time.monotonic() + job.duration_s > reserved_from
        if place := _place(job, devices, but=[device.key for device in reserved] if long else ()):
            waiting.remove(job)
            running.append(job)
            _begin(job, place)
        elif not reserved:
            reserved_from, reserved = _reserved(job, running, devices)


def _begin(job: _Job, place: list[_Device]) -> None:
    job.begin, job.devices = time.monotonic(), place
    for device in place:
        device.taken[job.nodeid] = device.memory_gib if job.memory_gib is None else job.memory_gib
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", job.nodeid]
    environment = {**os.environ, "PLACEMENT_DEVICES": ",".join(device.key for device in place)}
    job.process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)


def _ended(job: _Job) -> int:
    assert job.process is not None
    line = ["process", job.nodeid, job.begin, time.monotonic(), [device.key for device in job.devices], job.memory_gib]
    with (Path(os.environ["PLACEMENT_RUN"]) / "runner.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    for device in job.devices:
        del device.taken[job.nodeid]
    return job.process.returncode


if __name__ == "__main__":
    sys.exit(main())

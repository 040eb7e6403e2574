"""A process that leases devices as it is told: `python -m tests.leases.holding SETTINGS`, commands on stdin.

Each line is a JSON list: ["acquire", owner, groups, timeout_s], ["release", number], ["held"], ["fork"], ["token",
number], ["close"], ["random", seed, count]. Each is answered by a line of JSON: ["ok", value] or ["error",
class, message].
"""

from __future__ import annotations

import json
import os
import random
import socket
import sys
import time
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.errors import GpuCoexistError
from pytest_gpucoexist.leases import queue
from pytest_gpucoexist.leases.machine import Identity, MachineLeaser
from pytest_gpucoexist.leases.places import Place
from pytest_gpucoexist.leases.token import inherited
from pytest_gpucoexist.model.groups import Group
from pytest_gpucoexist.model.machine import Machine
from pytest_gpucoexist.model.requirement import Requirement

if TYPE_CHECKING:
    from pytest_gpucoexist.leases.lease import Lease, Waiting

MIB = 1 << 20


def group(count: int, memory_mib: int | None, exclusive: bool, keys: list[str]) -> Group:
    """Make a group from what a command says."""
    memory = None if memory_mib is None else memory_mib * MIB
    return Group(requirement=Requirement(count=count, memory_bytes=memory, exclusive=exclusive), candidates=tuple(keys))


class Holding:
    """What the commands act on."""

    def __init__(self, settings: dict[str, Any]) -> None:
        if settings.get("uid"):
            # What is imported later might lie where that user may not read.
            import pytest_gpucoexist.leases.waiting  # noqa: F401

            os.setgroups([])
            os.setgid(settings["uid"])
            os.setuid(settings["uid"])
        if settings.get("silent_s"):  # a runner so busy that a waiter stands still is no news
            queue.SILENT_S = settings["silent_s"]
        self.machine = Machine.from_json(settings["machine"])
        self.referee: socket.socket | None = None
        if settings.get("referee"):  # before any lock: a process that dies closes its lowest descriptors first
            self.referee = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self.referee.connect(settings["referee"])
        host = None
        if settings.get("kin"):
            from pytest_gpucoexist.host import local_host

            host = local_host()
        self.leaser = MachineLeaser(
            lambda: self.machine,
            Place(**settings["place"]),
            Identity(settings.get("session", "a session"), host=host),
            default_memory_bytes=settings.get("default_memory"),
            inherited=lambda: inherited(os.environ),
            host=host,
        )
        self.leases: dict[int, Lease] = {}

    def acquire(self, owner: str, groups: list[Any], timeout_s: float | None = None) -> Any:
        lease = self.leaser.acquire([group(*each) for each in groups], owner, timeout_s=timeout_s, on_wait=self._wait)
        self.leases[lease.number] = lease
        return [lease.number, lease.devices, [[share.key, share.memory_bytes // MIB] for share in lease.shares]]

    def _wait(self, waiting: Waiting) -> None:
        print(f"waits {waiting.ahead}", file=sys.stderr, flush=True)

    def release(self, number: int, keys: list[str] | None = None) -> None:
        self.leaser.release(self.leases[number], keys)

    def held(self) -> dict[str, str]:
        return self.leaser.held()

    def token(self, number: int) -> str | None:
        return self.leaser.token(self.leases[number])

    def pid(self) -> int:
        return os.getpid()

    def fork(self, seconds: float) -> Any:
        """Fork a child that lives for a while and leases nothing; return its PID and what it believes to hold."""
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(writing, json.dumps(self.leaser.held()).encode() + b"\n")
            for lease in self.leases.values():
                self.leaser.release(lease)  # must not give back what is the parent's
            os.close(0)
            os.close(1)
            time.sleep(seconds)
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as lines:
            return [pid, json.loads(lines.readline())]

    def close(self) -> None:
        self.leaser.close()

    def descriptors(self) -> int:
        """Count this process's open descriptors."""
        return len(os.listdir("/proc/self/fd"))

    def random(self, seed: int, count: int) -> int:
        """Lease random devices, whole and shared, one and several; a referee hears of each hold."""
        rng = random.Random(seed)
        sizes = {gpu.key: (gpu.memory_total_bytes or 0) // MIB for gpu in self.machine.gpus}
        for _ in range(count):
            keys = rng.sample(list(sizes), rng.randint(1, len(sizes)))
            wanted = rng.randint(1, min(2, len(keys)))
            memory = rng.choice([None, 1, 700, 1024, min(sizes[key] for key in keys)])
            lease = self.leaser.acquire([group(wanted, memory, False, keys)], f"{os.getpid()}")
            shares = {share.key: share.memory_bytes // MIB for share in lease.shares}
            for key in lease.keys:
                self.tell(f"+ {key} {shares.get(key, sizes[key])}")
            time.sleep(rng.random() * 0.004)
            for key in lease.keys:
                self.tell(f"- {key} {shares.get(key, sizes[key])}")
            self.leaser.release(lease)
        return count

    def tell(self, text: str) -> None:
        assert self.referee is not None
        self.referee.send(text.encode())
        assert self.referee.recv(16) == b"ok"


def main() -> None:
    holding = Holding(json.loads(sys.argv[1]))
    print(json.dumps(["ok", "ready"]), flush=True)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        try:
            answer = ["ok", getattr(holding, name)(*arguments)]
        except GpuCoexistError as error:
            answer = ["error", type(error).__name__, str(error)]
        except KeyboardInterrupt:
            answer = ["error", "KeyboardInterrupt", ""]
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()

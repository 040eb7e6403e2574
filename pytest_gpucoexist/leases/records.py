"""What a process says of itself in the folder: who it is, what it holds for which test, what it waits for.

One file for each process, in a folder of its user's own that others can read. Records decide nothing: they are there
for people, for children that inherit a lease, and to name who died. A record is alive while its process has the first
byte locked; what the dead leave is removed by their user, once nothing of it is needed any more.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.leases.forks import close, generation, opened
from pytest_gpucoexist.leases.ofd import lock

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_gpucoexist.host import Host
    from pytest_gpucoexist.leases.claims import Claim

__all__ = ["Identity", "Record", "lease_text", "wait_text"]

_PADDING = 256


class Identity:
    """Who a process is, for people: its session, its worker, the program; and for matching it, what the kernel says."""

    __slots__ = ("namespace", "program", "session", "started", "worker")

    def __init__(
        self, session: str, worker: str | None = None, program: str = "pytest", *, host: Host | None = None
    ) -> None:
        """`session` is the same for all workers of a run. With `host`, start time and PID namespace are read."""
        self.session = session
        self.worker = worker
        self.program = program
        self.started: int | None = None
        self.namespace: str | None = None
        if host is not None:
            with contextlib.suppress(OSError, ValueError, IndexError):
                # Field 22 of proc_pid_stat(5); the name in field 2 can hold anything but ends with the last bracket.
                self.started = int(host.read_text("/proc/self/stat").rpartition(")")[2].split()[19])
            with contextlib.suppress(OSError):
                self.namespace = host.read_link("/proc/self/ns/pid")

    def to_json(self) -> dict[str, Any]:
        """Return what a record says about its process."""
        return {
            "pid": os.getpid(),
            "group": os.getpgrp() if hasattr(os, "getpgrp") else None,
            "session_id": os.getsid(0) if hasattr(os, "getsid") else None,
            "started": self.started,
            "namespace": self.namespace,
            "session": self.session,
            "worker": self.worker,
            "program": self.program,
        }


def lease_text(number: int, owner: str, since_s: float, claims: Iterable[Claim]) -> str:
    """Write one lease as JSON."""
    devices = ",".join(_pair(claim.key, claim.memory_bytes) for claim in claims)
    return f'{{"number":{number},"owner":{json.dumps(owner)},"since":{since_s:.3f},"devices":[{devices}]}}'


def wait_text(owner: str, since_s: float, keys: Iterable[str]) -> str:
    """Write one request that waits as JSON."""
    return f'{{"owner":{json.dumps(owner)},"since":{since_s:.3f},"devices":{json.dumps(list(keys))}}}'


def _pair(key: str, memory_bytes: int | None) -> str:
    return f"[{json.dumps(key)},{'null' if memory_bytes is None else memory_bytes}]"


class Record:
    """This process's file. Its methods are called under one lock; none of them raises for want of a folder."""

    def __init__(self, folder: str, identity: Identity, machine: str = "") -> None:
        """`machine` is the name of the recording that is replayed; nothing for this machine."""
        self._folder = folder
        self._identity = identity
        self._machine = machine
        self._fd: int | None = None
        self._generation = generation()
        self._head = ""
        self._written = 0
        self.path: str | None = None
        self.nonce = ""
        self._had: dict[str, int | None] = {}
        self._had_text = ""
        self.problem: str | None = None

    def note(self, claims: Iterable[Claim]) -> None:
        """Remember that this process has had these devices: it may keep memory of them in a cache."""
        for claim in claims:
            before = self._had.get(claim.key, 0)
            now = None if before is None or claim.memory_bytes is None else max(before, claim.memory_bytes)
            if claim.key not in self._had or now != before:
                self._had[claim.key] = now
                self._had_text = ",".join(_pair(key, size) for key, size in self._had.items())

    def write(self, leases: Iterable[str], waits: Iterable[str]) -> None:
        """Say what is held and waited for, each as `lease_text` and `wait_text` write it."""
        if self._generation != generation():  # a forked child writes its own
            self._fd, self.problem, self._generation = None, None, generation()
            self._had, self._had_text = {}, ""
        if self._fd is not None and not os.fstat(self._fd).st_nlink:
            close(self._fd)  # somebody removed it: a new one can be found again
            self._fd = None
        if self._fd is None:
            if self.problem is not None:
                return
            try:
                self._open()
            except OSError as error:
                self.problem = f"no record in {self._folder}: {error.strerror or error}"
                return
        text = f'{self._head},"leases":[{",".join(leases)}],"waits":[{",".join(waits)}],"had":[{self._had_text}]}}\n'
        data = text.encode("utf-8", "backslashreplace")
        size = len(data)
        data = data.ljust(self._written)  # what was longer before is covered by blanks
        assert self._fd is not None
        with contextlib.suppress(OSError):  # a full file system
            os.pwrite(self._fd, data, 0)
            if len(data) - size > 16 * _PADDING:
                os.ftruncate(self._fd, size)
                self._written = size
            else:
                self._written = len(data)

    def _open(self) -> None:
        uid = os.geteuid()
        folder = os.path.join(self._folder, str(uid))
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o755)
            os.chmod(folder, 0o755)  # whatever the umask
        found = os.lstat(folder)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid:
            raise PermissionError(0, f"{folder} is not a folder of user {uid}")
        while True:
            path = os.path.join(folder, f"{os.getpid()}-{os.urandom(4).hex()}.json")
            fd = opened(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
            try:
                os.fchmod(fd, 0o644)
                lock(fd, 0, 1)
                if os.fstat(fd).st_nlink:  # a sweeper may have taken it for a dead one's
                    break
            except BaseException:
                close(fd)
                with contextlib.suppress(OSError):
                    os.unlink(path)
                raise
            close(fd)
        self._fd, self.path, self._written = fd, path, 0
        self.nonce = os.urandom(8).hex()
        facts = {
            "schema": 1,
            **self._identity.to_json(),
            "machine": self._machine,
            "nonce": self.nonce,
        }
        self._head = json.dumps(facts)[:-1]

    def remove(self) -> None:
        """Remove the file: this process gives no more leases."""
        if self._fd is None or self._generation != generation():
            return
        if self.path is not None:
            with contextlib.suppress(OSError):
                os.unlink(self.path)
        close(self._fd)
        self._fd, self.path = None, None

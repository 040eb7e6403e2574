"""Processes that lease devices (`holding.py`), driven from a test, and a referee that counts who has what."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import socket
import subprocess
import sys
import threading
from collections import defaultdict
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.leases.places import Place
from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pytest_gpucoexist.model.machine import Machine

__all__ = ["PATIENCE_S", "Process", "Referee", "folder_place", "need"]

PATIENCE_S = 60.0
"""How long an answer may take on a busy runner; no test waits for it where all is well."""


def need(keys: Sequence[str], count: int = 1, memory_mib: int | None = None, *, exclusive: bool = False) -> list[Any]:
    """Describe a group for a process."""
    return [count, memory_mib, exclusive, list(keys)]


def folder_place(folder: Path, **changes: Any) -> Place:
    """Describe a folder for everybody, without PCI functions."""
    return Place(**{"kind": "folder", "folder": str(folder), **changes})


class Process:
    """One process that leases. Its answers come in the order of what it was told."""

    def __init__(
        self,
        machine: Machine,
        place: Place,
        *,
        under: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        """Start it, as the last arguments of a command `under` which it runs."""
        told = {"machine": machine.to_json(), "place": asdict(place), **settings}
        self._process = subprocess.Popen(
            [*under, sys.executable, "-m", "tests.leases.holding", json.dumps(told)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), **(environ or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.errors: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._read, args=(self._process.stdout, self._answers, json.loads), daemon=True),
            threading.Thread(target=self._read, args=(self._process.stderr, self.errors, str.strip), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @staticmethod
    def _read(stream: Any, into: queue.SimpleQueue[Any], parse: Any) -> None:
        for line in stream:
            into.put(parse(line))

    def ready(self) -> Process:
        """Wait until it has started."""
        assert self.answer() == ["ok", "ready"]
        return self

    def tell(self, *command: Any) -> None:
        """Send a command, and do not wait."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """Wait for the next answer."""
        try:
            return self._answers.get(timeout=PATIENCE_S)
        except queue.Empty:
            errors = []
            while not self.errors.empty():
                errors.append(self.errors.get())
            raise AssertionError(f"no answer; {errors}") from None

    def has_answered(self) -> bool:
        """Whether an answer is there."""
        return not self._answers.empty()

    def ask(self, *command: Any) -> Any:
        """Send a command and return its value; fail when it is refused."""
        self.tell(*command)
        status, *rest = self.answer()
        assert status == "ok", rest
        return rest[0]

    def refusal(self, *command: Any) -> tuple[str, str]:
        """Send a command that is refused; return the error's class and words."""
        self.tell(*command)
        status, *rest = self.answer()
        assert status == "error", rest
        return rest[0], rest[1]

    def waits(self) -> str:
        """Wait until it says that it waits; return how many are before it."""
        line = self.errors.get(timeout=PATIENCE_S)
        assert line.startswith("waits "), line
        return line.removeprefix("waits ")

    @property
    def pid(self) -> int:
        """Its PID, where it was not started under another command."""
        return self._process.pid

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it like the kernel does, at once; nothing of it runs any more when this returns."""
        self._process.kill()
        self._process.wait(PATIENCE_S)

    def end(self) -> None:
        """Let it end, and clear up."""
        if self._process.poll() is None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for thread in self._threads:
            thread.join(PATIENCE_S)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()


class Referee(threading.Thread):
    """Counts, by what holders say, how much of each device is in use, and notes who had too much."""

    def __init__(self, path: Path, capacity_mib: Mapping[str, int]) -> None:
        super().__init__(daemon=True)
        self.path = str(path)
        self.violations: list[str] = []
        self.most: dict[str, int] = defaultdict(int)
        self.grants = 0
        self._capacity = capacity_mib
        self._used: dict[str, int] = defaultdict(int)
        self._by: dict[socket.socket, dict[str, int]] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(self.path)
        os.chmod(self.path, 0o777)
        self._listener.listen(64)
        self._ends = socket.socketpair()
        self.start()

    def run(self) -> None:
        """Serve until `finish`."""
        while True:
            ready, _, _ = select.select([self._listener, self._ends[0], *self._by], [], [])
            if self._ends[0] in ready:
                return
            if self._listener in ready:
                self._by[self._listener.accept()[0]] = defaultdict(int)
            # The dead first: their locks are free only after their connection is.
            talking = [each for each in ready if each in self._by and not self._gone(each)]
            for each in talking:
                text = each.recv(256).decode()
                for other in [other for other in self._by if other is not each]:
                    self._gone(other)
                self._note(each, text)
                with contextlib.suppress(BrokenPipeError):  # killed in this moment: the next round sees it
                    each.send(b"ok")

    def _gone(self, connection: socket.socket) -> bool:
        try:
            if connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                return False
        except BlockingIOError:
            return False
        except ConnectionResetError:
            pass
        for key, size in self._by.pop(connection).items():
            self._used[key] -= size
        connection.close()
        return True

    def _note(self, connection: socket.socket, text: str) -> None:
        sign, key, number = text.split()
        size = int(number)
        if sign == "-":
            size = -size
        else:
            self.grants += 1
        self._used[key] += size
        self._by[connection][key] += size
        self.most[key] = max(self.most[key], self._used[key])
        if self._used[key] > self._capacity[key]:
            self.violations.append(f"{key}: {self._used[key]} of {self._capacity[key]} MiB")

    def finish(self) -> None:
        """Stop counting."""
        self._ends[1].send(b"x")
        self.join()
        for each in (self._listener, *self._ends, *self._by):
            each.close()

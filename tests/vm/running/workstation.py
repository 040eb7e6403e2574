"""Boot the machine, hear its tests' results, do what they ask for, and end it."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any

from tests.vm.hardware.topology import COMMAND_LINE, Hardware
from tests.vm.running.bench import Bench
from tests.vm.running.qmp import Monitor, connect

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["GuestError", "Workstation"]

_SILENCE_S = 300.0
"""An emulated processor on a busy machine is slow; longer than this it is no use to wait for one test."""


class GuestError(Exception):
    """The guest ended or fell silent; the end of its console is in the message."""


class Workstation:
    """A running machine. The second serial port carries JSON lines: results from the guest, requests and answers."""

    def __init__(self, folder: Path, kernel: Path, archives: Sequence[Path], command_line: str = "") -> None:
        self._folder = folder
        self._hardware = Hardware()
        self._results: dict[str, dict[str, Any]] = {}
        self._arrived: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        memory = folder / "initrd"
        with memory.open("wb") as out:
            for archive in archives:
                out.write(archive.read_bytes())
        argv = self._argv(kernel, memory, f"{COMMAND_LINE} {command_line}".strip())
        self.started = time.monotonic()
        with (folder / "qemu.txt").open("wb") as errors:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=subprocess.STDOUT,
                pass_fds=[function.descriptor for function in self._hardware.functions.values()],
            )
        for function in self._hardware.functions.values():
            function.start()
        try:
            self._port = connect(folder / "port")
            self._monitor = Monitor(folder / "monitor")
        except OSError as error:
            self._process.kill()
            raise GuestError(f"the machine did not start: {error}\n{self._said()}") from error
        self._bench = Bench(self._hardware, self._monitor)
        threading.Thread(target=self._listen, daemon=True).start()

    def _argv(self, kernel: Path, memory: Path, command_line: str) -> list[str]:
        return [
            *(
                "qemu-system-x86_64",
                "-name",
                "workstation",
                "-nodefaults",
                "-no-user-config",
                "-nographic",
                "-no-reboot",
            ),
            *self._hardware.arguments,
            *("-kernel", str(kernel), "-initrd", str(memory), "-append", command_line),
            *("-chardev", f"file,id=console,path={self._folder / 'console.txt'}", "-serial", "chardev:console"),
            *("-chardev", f"socket,id=port,path={self._folder / 'port'},server=on,wait=off", "-serial", "chardev:port"),
            *("-qmp", f"unix:{self._folder / 'monitor'},server=on,wait=off"),
        ]

    def result(self, nodeid: str) -> dict[str, Any]:
        """Wait for the result of one test. Raises GuestError when the guest ended or fell silent before."""
        while nodeid not in self._results:
            try:
                message = self._arrived.get(timeout=_SILENCE_S)
            except queue.Empty:
                message = None
            if message is None:
                raise GuestError(f"no result came from the guest\n{self._said()}")
            self._results[message["nodeid"]] = message
        return self._results[nodeid]

    def close(self) -> None:
        """End the machine, whatever it does."""
        self._process.kill()
        self._process.wait()
        self._monitor.close()
        self._port.close()
        for function in self._hardware.functions.values():
            function.close()

    def _listen(self) -> None:
        """Take lines from the port until the machine ends."""
        stream = self._port.makefile("r", encoding="utf-8", errors="replace", newline="\n")
        try:
            for line in stream:
                if not line.startswith("{"):
                    continue
                message = json.loads(line)
                if "do" in message:
                    self._port.sendall(json.dumps(self._bench.do(message)).encode() + b"\n")
                else:
                    self._arrived.put(message)
        except (OSError, ValueError):
            pass
        self._arrived.put(None)

    def _said(self) -> str:
        """Return the end of what QEMU and the guest's console printed."""
        parts = []
        for name in ("qemu.txt", "console.txt"):
            try:
                text = (self._folder / name).read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            parts.append("\n".join(text.splitlines()[-40:]))
        return "\n".join(parts)

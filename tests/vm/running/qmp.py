"""Talk to QEMU's monitor."""

from __future__ import annotations

import json
import socket
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Monitor", "MonitorError", "connect"]


class MonitorError(Exception):
    """QEMU refused a command; its words are the message."""


def connect(path: Path, seconds: float = 20.0) -> socket.socket:
    """Connect to a socket that QEMU makes when it starts. Raises OSError when it does not within this time."""
    end = time.monotonic() + seconds
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(path))
            return connection
        except OSError:
            connection.close()
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


class Monitor:
    """A connection to the monitor of a running machine. Source: docs/interop/qmp-spec.txt of QEMU."""

    def __init__(self, path: Path) -> None:
        self._connection = connect(path)
        self._stream = self._connection.makefile("rw", encoding="utf-8")
        self._stream.readline()  # its greeting
        self.execute("qmp_capabilities")

    def execute(self, command: str, **arguments: object) -> Any:
        """Run a command and return what it returned; events are passed over. Raises MonitorError."""
        self._stream.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
        self._stream.flush()
        for line in self._stream:
            answer = json.loads(line)
            if "error" in answer:
                raise MonitorError(f"{command}: {answer['error'].get('desc')}")
            if "return" in answer:
                return answer["return"]
        raise MonitorError(f"{command}: the machine ended")

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()
        self._connection.close()

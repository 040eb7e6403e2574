"""Count who holds a device. A program of its own that knows nothing of leases: `referee.py SOCKET MEMORY_MIB REPORT`.

Every holder connects while it holds and says in one line of JSON how much: `{"who": …, "mib": …, "where": …}`. It is
answered `1`, or `0` when the device has now more holders than it has memory for. Before it lets the device go it
says `bye` and waits for `1`. A connection that ends without is a holder that died.

The kernel closes the files of a process that dies one by one, so its lock may be free a moment before its connection
here ends. A process that is exiting holds nothing and is not counted. On SIGTERM the report is written.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import struct
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["Referee", "main"]

_PF_EXITING = 0x4  # include/linux/sched.h; field 9 of /proc/PID/stat


class _Client:
    def __init__(self, connection: socket.socket) -> None:
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        self.pid, self.uid, _gid = struct.unpack("3i", credentials)
        self.connection = connection
        self.told = b""
        self.claim: dict[str, Any] | None = None


def _is_gone(pid: int) -> bool:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return True
    return fields[0] in {"Z", "X"} or bool(int(fields[6]) & _PF_EXITING)


class Referee:
    """Counts the clients of one device."""

    def __init__(self, listener: socket.socket, memory_mib: int) -> None:
        """`listener` is bound and listens."""
        self._listener = listener
        self._memory_mib = memory_mib
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._clients: dict[socket.socket, _Client] = {}
        self._stopped = False
        self.grants: Counter[str] = Counter()
        self.most_holders = 0
        self.most_mib = 0
        self.deaths = 0
        self.exceeded: list[str] = []

    def run(self) -> dict[str, Any]:
        """Serve until SIGTERM. Returns the report."""
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing)
        signal.signal(signal.SIGTERM, lambda *_: None)
        self._selector.register(reading, selectors.EVENT_READ)
        while not self._stopped:
            self._serve(None, reading)
        return {
            "grants": dict(self.grants),
            "most_holders": self.most_holders,
            "most_mib": self.most_mib,
            "memory_mib": self._memory_mib,
            "deaths": self.deaths,
            "exceeded": self.exceeded,
            "left": [client.claim for client in self._holders()],
        }

    def _serve(self, timeout_s: float | None, stop: int | None = None) -> None:
        claims = []
        for key, _events in self._selector.select(timeout_s):
            if key.fileobj is self._listener:
                if stop is not None:
                    connection, _ = self._listener.accept()
                    connection.setblocking(False)
                    self._clients[connection] = _Client(connection)
                    self._selector.register(connection, selectors.EVENT_READ)
            elif key.fileobj == stop:
                self._stopped = True
            elif isinstance(key.fileobj, socket.socket):
                claims += self._read(self._clients[key.fileobj])
        for client in claims:
            self._judge(client)

    def _read(self, client: _Client) -> list[_Client]:
        """Take what a client says. Returns it if it claims the device."""
        data = b""
        with suppress(ConnectionResetError):
            data = client.connection.recv(4096)
        if not data:
            self.deaths += client.claim is not None
            self._forget(client)
            return []
        client.told += data
        *lines, client.told = client.told.split(b"\n")
        for line in lines:
            if line == b"bye":
                with suppress(OSError):
                    client.connection.send(b"1\n")
                self._forget(client)
                return []
            client.claim = {**json.loads(line), "pid": client.pid, "uid": client.uid}
            return [client]
        return []

    def _judge(self, client: _Client) -> None:
        if client.connection not in self._clients or client.claim is None:
            return
        claim = client.claim
        holders = [other for other in self._holders() if other is not client]
        if sum(other.claim["mib"] for other in holders if other.claim) + claim["mib"] > self._memory_mib:
            holders = [other for other in holders if not _is_gone(other.pid)]
        mib = sum(other.claim["mib"] for other in holders if other.claim) + claim["mib"]
        self.grants[f"{claim['where']} uid {client.uid}"] += 1
        self.most_holders = max(self.most_holders, len(holders) + 1)
        self.most_mib = max(self.most_mib, mib)
        if mib > self._memory_mib and not _is_gone(client.pid):
            others = ", ".join(json.dumps(other.claim) for other in holders)
            self.exceeded.append(f"{mib} of {self._memory_mib} MiB: {json.dumps(claim)} beside {others}")
        with suppress(OSError):
            client.connection.send(b"0\n" if mib > self._memory_mib else b"1\n")

    def _holders(self) -> list[_Client]:
        return [client for client in self._clients.values() if client.claim is not None]

    def _forget(self, client: _Client) -> None:
        self._selector.unregister(client.connection)
        client.connection.close()
        del self._clients[client.connection]


def main() -> int:
    """Run until SIGTERM."""
    path, memory_mib, report = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    Path(path).chmod(0o666)
    listener.listen(64)
    report.write_text(json.dumps(Referee(listener, memory_mib).run()), encoding="utf-8")
    Path(path).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())

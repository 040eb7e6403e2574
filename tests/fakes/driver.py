"""The part of a driver that outlives a process: it gives the memory of the dead back, some time after their death.

    python -m tests.fakes.driver FOLDER KEEP_S        runs until its standard input is closed

FOLDER is one that the fake libraries read (`nvidia.0.users = FOLDER`): a file for each process that has memory of the
device, named by its PID. A process takes memory by writing its file (`take`); nobody gives it back but the driver.
"""

from __future__ import annotations

import os
import select
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["fake_driver", "give_back", "take"]

_LOOK_S = 0.02


def take(folder: Path | str, size_bytes: int, pid: int | None = None) -> None:
    """Let a process, this one unless told otherwise, have memory of the device from now on."""
    path = Path(folder) / str(pid or os.getpid())
    temporary = path.with_name(f".{path.name}")
    temporary.write_text(f"{size_bytes}\n")
    temporary.replace(path)


def give_back(folder: Path | str, pid: int | None = None) -> None:
    """Free the memory of a living process, as a well-behaved program does."""
    (Path(folder) / str(pid or os.getpid())).unlink(missing_ok=True)


@contextmanager
def fake_driver(folder: Path, keep_s: float) -> Iterator[None]:
    """Run the driver in a process of its own: nothing of it depends on the one that dies or on the one that asks."""
    import subprocess

    folder.mkdir(exist_ok=True)
    argv = [sys.executable, __file__, str(folder), str(keep_s)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        yield
        process.stdin.close()


def _run(folder: Path, keep_s: float) -> None:
    watched: dict[int, int] = {}
    due: dict[int, float] = {}
    print("ready", flush=True)
    while True:
        for path in folder.iterdir():
            pid = int(path.name) if path.name.isdecimal() else 0
            if pid and pid not in watched and pid not in due:
                try:
                    watched[pid] = os.pidfd_open(pid)
                except ProcessLookupError:
                    due[pid] = time.monotonic() + keep_s
        ended, _write, _error = select.select([0, *watched.values()], [], [], _LOOK_S)
        if 0 in ended:
            return
        for pid, handle in list(watched.items()):
            if handle in ended:
                os.close(watched.pop(pid))
                due[pid] = time.monotonic() + keep_s
        for pid, when in list(due.items()):
            if time.monotonic() >= when:
                del due[pid]
                with suppress(FileNotFoundError):
                    (folder / str(pid)).unlink()


if __name__ == "__main__":
    _run(Path(sys.argv[1]), float(sys.argv[2]))

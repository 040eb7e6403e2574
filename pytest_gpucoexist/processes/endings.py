"""Errors for a process that ended while it was needed: what it was doing, how it ended, and its last words."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.errors import VendorDeadlineError, VendorEndedError, VendorProcessError

if TYPE_CHECKING:
    from pytest_gpucoexist.processes.watchdog import Ending

__all__ = ["after_the_end", "own_frames"]

_LAST = 2000
# As faulthandler writes it: `  File "/path/name.py", line 7 in function`.
_OURS = re.compile(r'  File "(?:.*/execnet/gateway_base\.py|.*/processes/child/\w+\.py|<remote exec>|<string>)", line ')


def after_the_end(
    what: str, pid: int, ending: Ending | None, stdout: str, stderr: str, trace: str
) -> VendorProcessError:
    """Return the error that says how the process ended during `what`: in time, too late, or by itself."""
    trace = own_frames(trace)
    words = "".join(
        f"\n\n{title}:\n{text.strip()[-_LAST:]}"
        for title, text in (("where it was", trace), ("its last words on stderr", stderr))
        if text.strip()
    )
    if ending is None:
        return VendorEndedError(
            f"{what}: process {pid} is cut off and has not ended{words}", stdout=stdout, stderr=stderr, trace=trace
        )
    if ending.killed_for is not None:
        stuck = f"; {ending.stuck.describe()}" if ending.stuck is not None else ""
        kind = VendorDeadlineError if ending.late else VendorEndedError
        return kind(
            f"{ending.killed_for}: process {pid} was killed{stuck}{words}", stdout=stdout, stderr=stderr, trace=trace
        )
    error = VendorEndedError(
        f"process {pid} {ending.describe()} during {what}{words}", stdout=stdout, stderr=stderr, trace=trace
    )
    error.code, error.signal = ending.code, ending.signal
    return error


def own_frames(trace: str) -> str:
    """Return what faulthandler wrote without the frames of this package and of execnet, and threads of these alone."""
    parts = trace.split("\n\n")
    left = []
    for part in parts:
        lines = [line for line in part.splitlines() if not _OURS.match(line)]
        threads = [at for at, line in enumerate(lines) if line.startswith(("Thread ", "Current thread "))]
        if threads and threads[-1] == len(lines) - 1:
            lines = lines[: threads[-1]]  # nothing is left of this thread
        if lines:
            left.append("\n".join(lines))
    return "\n\n".join(left)

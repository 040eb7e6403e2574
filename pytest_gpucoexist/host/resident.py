"""A helper that stays: it has loaded its library and answers within milliseconds, for as long as somebody waits.

A helper of its own for each question costs the start of a Python and of a library, some 150 ms. Whoever waits for a
device has that time beforehand. It ends with `close`, with this process (its standard input is closed then), and by
itself when its library hangs.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.host.base import HelperReply
from pytest_gpucoexist.host.helpers import MAX_ANSWER_BYTES, bootstrap, ending, read_answer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucoexist.host.base import Host

__all__ = ["Resident"]

_KILL_WAIT_S = 0.5


class Resident:
    """One helper's process, started at the first need and again after it failed. Not for several threads at once."""

    def __init__(self, host: Host, helper: str) -> None:
        """`host` gives environment and `sys.path`; the process is one of this computer."""
        self._host = host
        self._helper = helper
        self._process: subprocess.Popen[bytes] | None = None
        self._answers = -1
        self._owner = 0

    def start(self, limit_s: float = 10.0) -> None:
        """Start it and do not wait; a failure shows when it is asked. An answer may take `limit_s` seconds."""
        if self._process is not None and self._owner == os.getpid():
            return
        reading, writing = os.pipe()
        try:
            self._process = subprocess.Popen(
                bootstrap("serve", self._helper, {}, self._host.python_path, str(writing), limit_s),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=dict(self._host.environ),
                pass_fds=(writing,),
                start_new_session=True,
            )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        os.set_blocking(reading, False)
        self._answers, self._owner = reading, os.getpid()

    def ask(self, request: Mapping[str, Any] | None = None, *, deadline_s: float = 5.0) -> HelperReply:
        """Ask, and start it where it does not run. Never raises; after a failure its process is ended."""
        began = time.monotonic()
        try:
            self.start(deadline_s + 5.0)
            assert self._process is not None
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(dict(request or {})).encode() + b"\n")
            self._process.stdin.flush()
            answer, detail = self._line(began + deadline_s)
        except BrokenPipeError:
            answer, detail = b"", f"{self._ending()} before it was asked"
        except OSError as error:
            answer, detail = b"", f"the helper did not start: {error}"
        if answer:
            status, data, detail = read_answer(answer)
        else:
            status, data = "broken", None
            detail = f"no answer within {deadline_s:g} s" if detail is None else detail
        if status != "ok":
            self.close()
        took = round(time.monotonic() - began, 3)
        return HelperReply(status=status, data=data, detail=detail, duration_s=took)  # type: ignore[arg-type]

    def close(self) -> None:
        """End it; asking starts another one. A process that cannot be killed is left."""
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return  # a forked child has no helper: it must not end its parent's
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_KILL_WAIT_S)
        os.close(self._answers)

    def _ending(self) -> str:
        """Say how it ended; it has closed its pipe, so it has ended or is about to."""
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            return ending(self._process.wait(_KILL_WAIT_S))
        return "it ended"

    def _line(self, deadline: float) -> tuple[bytes, str | None]:
        """Read one line. Returns it, or nothing and, unless it was the deadline, the reason."""
        data = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(self._answers, selectors.EVENT_READ)
            while (left := deadline - time.monotonic()) > 0:
                if not selector.select(left):
                    continue
                part = os.read(self._answers, 65536)
                if not part:
                    return b"", f"{self._ending()} without an answer"
                data += part
                if data.endswith(b"\n"):
                    return bytes(data), None
                if len(data) > MAX_ANSWER_BYTES:
                    return b"", f"its answer is larger than {MAX_ANSWER_BYTES} bytes"
        return b"", None

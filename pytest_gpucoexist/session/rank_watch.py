"""What ends a test that waits for a rank that is gone: nobody else can, when it waits inside a collective.

When the job breaks while a test runs, the test gets some time to end by itself: gloo notices within a moment. Then the
main thread is interrupted as by Ctrl-C, which reports what ran until now. A wait in C that ignores signals, as NCCL's,
is left only by the end of the process, with a traceback of where it was.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
from typing import Any

__all__ = ["EXIT_BROKEN", "RankWatch"]

EXIT_BROKEN = 76
"""`EX_PROTOCOL` of sysexits.h: the other side did not keep to what was agreed."""


class RankWatch:
    """Ends the test that runs, or the process, unless `ended` is called in time."""

    def __init__(self, words: str, grace_s: float, capture: Any = None) -> None:
        """`words` say what happened; `capture` is pytest's capture manager, which has taken stderr away."""
        self._words = words
        self._grace_s = grace_s
        self._capture = capture
        self._ended = threading.Event()
        threading.Thread(target=self._watch, name="gpucoexist-rank-watch", daemon=True).start()

    def ended(self) -> None:
        """Say that the test has ended by itself."""
        self._ended.set()

    def _watch(self) -> None:
        if self._ended.wait(self._grace_s):
            return
        main = threading.main_thread().ident
        if main is not None:
            signal.pthread_kill(main, signal.SIGINT)
        if self._ended.wait(self._grace_s):
            return
        if self._capture is not None:
            self._capture.suspend_global_capture(in_=True)
        stream = sys.__stderr__
        if stream is not None:
            stream.write(f"\npytest-gpucoexist: {self._words}; the test that ran here did not end: this process does\n")
            stream.flush()
            faulthandler.dump_traceback(file=stream)
        os._exit(EXIT_BROKEN)

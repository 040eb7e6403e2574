"""Lines that a session says while tests run, without spoiling pytest's own."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

__all__ = ["say", "say_from_thread"]

_EVENT = "gpucoexist_line"


def say(config: pytest.Config, line: str) -> None:
    """Write a line of its own on the terminal, between what pytest writes; nothing with `-q -q`.

    From the main thread only: others would write into the middle of a line, or while pytest captures.
    """
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or config.option.verbose < -1 or threading.current_thread() is not threading.main_thread():
        return
    capture: Any = config.pluginmanager.get_plugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture is not None else contextlib.nullcontext():
        reporter.ensure_newline()
        if reporter._tw.width_of_current_line:  # noqa: SLF001  with pytest-xdist, dots stand on a line without a file
            reporter._tw.line()  # noqa: SLF001
        reporter.write_line(f"gpucoexist: {line}")
        reporter.flush()


def say_from_thread(config: pytest.Config, line: str) -> None:
    """Have a line written by the main thread of a controller, between two events of its workers.

    pytest-xdist has one queue of events, each handled by the method `worker_` + name of its session.
    """
    session: Any = config.pluginmanager.get_plugin("dsession")
    events = getattr(session, "queue", None)
    if events is None:
        say(config, line)
        return
    setattr(session, f"worker_{_EVENT}", lambda line: say(config, line))
    events.put((_EVENT, {"line": line}))

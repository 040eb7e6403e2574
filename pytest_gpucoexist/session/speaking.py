"""Lines that a session says while tests run, without spoiling pytest's own."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

    from pytest_gpucoexist.session.link_controller import ControllerLink
    from pytest_gpucoexist.session.state import GpuSession

__all__ = ["hear_lines", "say", "say_anywhere", "say_from_thread"]

_VERB = "line"
"""Under which a worker's lines cross to the controller."""

_EVENT = "gpucoexist_line"


def say_anywhere(session: GpuSession, line: str) -> None:
    """Say a line on this terminal, or on the controller's, which then says of which worker it comes."""
    if session.link is not None:
        session.link.tell(_VERB, line)
    elif not session.is_worker:
        say(session.config, line)


def hear_lines(session: GpuSession, link: ControllerLink) -> None:
    """Have the terminal of a controller say what its workers say."""
    link.on(_VERB, lambda worker, line: say_from_thread(session.config, f"[{worker}] {line}"))


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

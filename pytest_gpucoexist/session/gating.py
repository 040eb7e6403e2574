"""The gates of a session: judged once, in the controller or the serial run, before the first test that needs a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from pytest_gpucoexist.errors import GpuCoexistError, UserError
from pytest_gpucoexist.session.discovery import session_host
from pytest_gpucoexist.session.gate_settings import ignored, limits_of, matching_nothing, unknown_fails

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from pytest_gpucoexist.gates.registry import Gate
    from pytest_gpucoexist.model.machine import Machine
    from pytest_gpucoexist.model.requirement import Need
    from pytest_gpucoexist.model.verdicts import Judgement
    from pytest_gpucoexist.session.state import GpuSession

__all__ = [
    "EXIT_UNFIT",
    "gate_lines",
    "gate_plugins",
    "is_unfit",
    "judge_session",
    "judge_silence",
    "junit_properties",
    "needed_vendors",
    "stop_distributed",
    "stop_late",
    "stop_serial",
    "stop_words",
    "warn_of_unheard",
]

EXIT_UNFIT = 75
"""`EX_TEMPFAIL` of sysexits.h: try again, here when it is mended or elsewhere."""


def needed_vendors(needs: Iterable[Need]) -> list[str]:
    """Name the vendors that tests ask for by name."""
    return sorted({each.vendor for need in needs for each in need.requirements if each.vendor is not None})


def judge_session(session: GpuSession, machine: Machine, needed: Collection[str]) -> Judgement | None:
    """Judge the machine of this session; None for one that has no files to read (the JSON of a machine).

    Raises UserError for ini keys that say nothing.
    """
    from pytest_gpucoexist.gates.runner import judge
    from pytest_gpucoexist.gates.subject import Subject

    config = session.config
    host = session_host(config, session.options)
    if host is None:
        if "gates" in session.options.given:
            session.notes.append("gates: a machine that was read from JSON has no files to judge")
        return None
    gates, later = _gates(config, session.options.gates)
    ignore = ignored(config.getini("gpu_gates_ignore"))
    limits = limits_of(config.getini("gpu_gate_limits"), {gate.id: gate for gate in (*gates, *later)})
    for pattern in matching_nothing(ignore, (*gates, *later)):
        session.notes.append(f"gpu_gates_ignore: no gate matches {pattern!r}; see gpucoexist doctor --list")
    subject = Subject(
        host=host,
        machine=machine,
        level=session.options.gates,
        promised=dict(session.options.promises),
        needed=frozenset(needed),
        since_s=session.started_s,
        deadline_s=session.options.helper_deadline_s,
        limits=limits,
    )
    judgement = judge(subject, gates=gates, ignore=ignore, unknown_fails=unknown_fails(config))
    if subject.level not in {"transfer", "full"}:
        return judgement
    from pytest_gpucoexist.session.trying import after_trials

    again = after_trials(session, subject, judgement)
    return judgement if again is None else judge(again, gates=gates, ignore=ignore, unknown_fails=unknown_fails(config))


def judge_silence(session: GpuSession, machine: Machine) -> bool:
    """Judge a vendor library that did not answer when the machine was discovered; return whether there was one.

    A session of level `quick` asks no library for its gates. Discovery does, for what tests need to know, and a driver
    that hangs is a broken one: its tests must not be skipped as if the card were not there. Nothing is asked again.
    """
    from dataclasses import replace

    from pytest_gpucoexist.probes.vendor import NO_ANSWER

    judgement = session.judgement
    host = session_host(session.config, session.options)
    if judgement is None or host is None or all(each.kind != NO_ANSWER for each in machine.conflicts):
        return False
    from pytest_gpucoexist.gates.driver_l1.answers import query_timeout
    from pytest_gpucoexist.gates.runner import judge
    from pytest_gpucoexist.gates.subject import Subject

    if any(each.id == query_timeout.id for each in judgement.verdicts):
        return False
    subject = Subject(host=host, machine=machine, level="standard", deadline_s=session.options.helper_deadline_s)
    ignore = ignored(session.config.getini("gpu_gates_ignore"))
    silent = judge(subject, gates=[query_timeout], ignore=ignore)
    session.judgement = replace(
        judgement,
        fit=False if silent.unfit else judgement.fit,
        verdicts=(*judgement.verdicts, *silent.verdicts),
        unfit={**judgement.unfit, **silent.unfit},
    )
    return True


def _gates(config: pytest.Config, level: Any) -> tuple[list[Gate], list[Gate]]:
    """Return the gates of this level, those of other plugins too; and what else those plugins gave."""
    from pytest_gpucoexist.gates.catalogue import gates_of_level
    from pytest_gpucoexist.gates.registry import Gate
    from pytest_gpucoexist.model.verdicts import LEVELS
    from pytest_gpucoexist.session.plugins import implementations

    gates = gates_of_level(level)
    later: list[Gate] = []
    taken = {gate.id for gate in gates}
    for plugin, call in implementations(config, "pytest_gpucoexist_gates"):
        where = f"pytest_gpucoexist_gates in {plugin}"
        try:
            given = [gate for said in call(config=config) for gate in said or ()]
        except GpuCoexistError:
            raise
        except Exception as error:
            raise UserError(f"{where} failed: {type(error).__name__}: {error}") from error
        for gate in given:
            if not isinstance(gate, Gate):
                raise UserError(f"{where} returned {gate!r}: return a list of Gate")
            if gate.id in taken:
                raise UserError(f"{where}: there is a gate {gate.id} already")
            taken.add(gate.id)
            (gates if LEVELS.index(gate.level) <= LEVELS.index(level) else later).append(gate)
    return gates, later


def gate_plugins(config: pytest.Config) -> list[str]:
    """Name the plugins that give gates, conftest files by their paths."""
    from pytest_gpucoexist.session.plugins import implementations

    return [name for name, _ in implementations(config, "pytest_gpucoexist_gates")]


def warn_of_unheard(config: pytest.Config, heard: Collection[str]) -> None:
    """Warn in a worker of gates that the controller, which judges, does not know: it loads no conftest to collect."""
    for name in gate_plugins(config):
        if name not in heard:
            text = (
                f"pytest_gpucoexist_gates in {name} was not asked: under pytest-xdist the controller judges, which "
                "loads only plugins and the conftest files of its arguments; move the hook there"
            )
            config.issue_config_time_warning(pytest.PytestWarning(text), stacklevel=1)


def gate_lines(session: GpuSession) -> list[str]:
    """Write what the header or summary says of the gates: a line when all is well, what failed in full when not."""
    judgement, machine = session.judgement, session.discovered
    if judgement is None or machine is None:
        return []
    from dataclasses import replace

    from pytest_gpucoexist.reports.verdicts import gates_line, problem_lines
    from pytest_gpucoexist.session.summary import session_screen

    verbosity = getattr(session.config.option, "verbose", 0)
    screen = session_screen(session.config)
    within = replace(screen, width=screen.width - len(_INDENT), colour=False)
    problems = problem_lines(judgement, machine, within, verbosity=verbosity)
    lines = [] if verbosity < 0 and not problems else [gates_line(judgement)]
    if judgement.fit is False and session.options.gate_policy == "warn":
        lines.append("--gpu-gate-policy=warn: gates take nothing out; what a runtime can use is used all the same")
    return [_INDENT + line for line in lines + problems]


_INDENT = "  "


def junit_properties(session: GpuSession) -> list[tuple[str, str]]:
    """Give what each test's JUnit properties say of the gates: counts, and a line for each failure."""
    judgement = session.judgement
    if judgement is None:
        return []
    from pytest_gpucoexist.reports.verdicts import counts_text

    failed = [each for each in judgement.verdicts if each.status == "FAIL" and each.ignored is None]
    return [
        ("gpu_gates", f"{judgement.level}: {counts_text(judgement)}"),
        *(("gpu_gate_failed", f"{verdict.id}: {verdict.reason}") for verdict in failed),
    ]


def is_unfit(session: GpuSession) -> bool:
    """Whether the gates took a device out, or would have."""
    return session.judgement is not None and session.judgement.fit is False


def stop_words(session: GpuSession) -> str | None:
    """Say why the run must stop (`--gpu-gate-policy=stop`); None when it goes on."""
    judgement = session.judgement
    if judgement is None or judgement.fit is not False or session.options.gate_policy != "stop":
        return None
    if session.hypothetical:
        return None
    said = "; ".join(f"{each.id}: {each.reason}" for each in judgement.verdicts if each.blocks)
    return f"--gpu-gate-policy=stop: the machine is unfit: {said}"


def stop_serial(session: pytest.Session, words: str) -> NoReturn:
    """End a serial run before its first test."""
    from pytest_gpucoexist.session.collecting import fail_collection

    fail_collection(session, _STOP, words)
    pytest.exit(words, returncode=EXIT_UNFIT)


def stop_late(session: GpuSession, words: str) -> None:
    """End a run in which a running test was the first to ask for a device: after that test."""
    manager = session.config.pluginmanager
    running: Any = manager.get_plugin("session")
    running.shouldstop = words
    if not session.is_worker and not manager.has_plugin(_STOP):
        manager.register(_StopsRun(words), _STOP)


def stop_distributed(session: GpuSession, words: str | None = None) -> None:
    """Have an xdist controller stop its run; called in the thread that serves workers, so it only leaves word.

    `words` come from a worker that judged a machine of its own.
    """
    words = words or stop_words(session)
    manager = session.config.pluginmanager
    if words is not None and not manager.has_plugin(_STOP):
        manager.register(_StopsRun(words), _STOP)
        # pytest-xdist looks at it between two events, and then ends the workers.
        distributed: Any = manager.get_plugin("dsession")
        distributed.shouldstop = words


_STOP = "--gpu-gate-policy=stop"


class _StopsRun:
    def __init__(self, words: str) -> None:
        self._words = words

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Tell terminal, JUnit and the exit status."""
        from pytest_gpucoexist.session.collecting import fail_collection

        fail_collection(session, _STOP, self._words)
        session.exitstatus = EXIT_UNFIT

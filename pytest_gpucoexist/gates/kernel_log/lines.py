"""From lines of the log to the findings of a gate: whose they are, when they were, what put them behind."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from pytest_gpucoexist.gates.container.place import container_of
from pytest_gpucoexist.gates.findings import Finding, failed, passed, unknown, warned
from pytest_gpucoexist.gates.kernel_log.attribution import owners_of, slot_of
from pytest_gpucoexist.gates.kernel_log.evidence import log_evidence, shorten
from pytest_gpucoexist.gates.kernel_log.marks import Mark, marks_of
from pytest_gpucoexist.kernellog.classify import LogFinding
from pytest_gpucoexist.model.machine import Gpu
from pytest_gpucoexist.model.verdicts import Evidence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pytest_gpucoexist.gates.kernel_log.evidence import LogEvidence
    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["Event", "Grade", "events", "judge_lines", "judgement_of", "unread"]

Grade = Literal["FAIL", "WARN"]
_SHOWN = 5
_MAY_READ = "Run it as a user who may read the kernel's log: root, or a member of adm or systemd-journal."
_PASS_IT_IN = "Pass the log into the container (--device /dev/kmsg), or run gpucoexist doctor on the host."
_KINDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A line that concerns this machine: `gpus` empty where it does not say which of several devices it means.

    `grade` None: worth knowing, and nothing wrong. `later` is the line that put this one behind.
    """

    line: LogFinding
    gpus: tuple[Gpu, ...]
    in_session: bool
    grade: Grade | None
    later: Mark | None = None
    blocking: bool = True
    note: str = ""

    def weakened(self) -> Event:
        """Return the event as a warning, for what is over."""
        return replace(self, grade=None if self.grade is None else "WARN")

    def graded(self, grade: Grade | None, *, blocking: bool = True) -> Event:
        """Return the event with another grade."""
        return replace(self, grade=grade, blocking=blocking)

    def about(self, gpus: tuple[Gpu, ...]) -> Event:
        """Return the event about these GPUs."""
        return replace(self, gpus=gpus)

    def noted(self, note: str) -> Event:
        """Return the event with a word more about it."""
        return replace(self, note=note)

    def put_behind(self, subject: Subject, *kinds: str) -> Event:
        """Look for a later line of these kinds; what it put behind is no more than a warning."""
        slots = {slot_of(gpu.pci_address) for gpu in self.gpus if gpu.pci_address}
        slot = next(iter(slots)) if len(slots) == 1 else None
        mark = marks_of(subject).after(self.line, slot, *kinds)
        return self if mark is None else replace(self.weakened(), later=mark)


def events(subject: Subject, rules: Iterable[str], *vendors: str) -> list[Event]:
    """Return the lines of these rules (a name that ends in a dot is a family) that concern devices granted here."""
    evidence = log_evidence(subject)
    owners = owners_of(subject)
    names = tuple(rules)
    exact = frozenset(names)
    families = tuple(name for name in names if name.endswith("."))
    found = []
    for line in evidence.findings:
        if line.rule not in exact and not (families and line.rule.startswith(families)):
            continue
        gpus = owners.of(line, *vendors)
        if gpus is not None:
            grade: Grade | None = "FAIL" if line.severity == "fail" else "WARN" if line.severity == "warn" else None
            found.append(Event(line=line, gpus=gpus, in_session=evidence.in_session(line), grade=grade))
    return found


def unread(subject: Subject) -> Finding | None:
    """Say why there is no log to judge; None when there is one."""
    log = log_evidence(subject).log
    if log.status == "ok":
        return None
    return unknown(
        f"the kernel's log could not be read: {log.detail or log.status}",
        Evidence(source=log.source or "kernel log", found=log.status),
        action=_PASS_IT_IN if container_of(subject) is not None else _MAY_READ,
    )


def judge_lines(
    subject: Subject,
    rules: Iterable[str],
    *vendors: str,
    what: str,
    grade: Callable[[Event], Event | None] | None = None,
    session_only: bool = False,
    about_host: bool = False,
) -> Iterator[Finding]:
    """Yield a finding for each GPU of the vendors: what the rules found about it, or that they found nothing.

    `grade` looks at each line once more; what it gives None for is another gate's. `what` names one such line. With
    `session_only` only a session's own lines decide, and a log whose beginning is lost still shows that there are none.
    """
    missing = unread(subject)
    if missing is not None:
        yield missing
        return
    found = events(subject, rules, *vendors)
    if grade is not None:
        found = [event for event in map(grade, found) if event is not None]
    yield from judgement_of(subject, found, *vendors, what=what, session_only=session_only, about_host=about_host)


def judgement_of(
    subject: Subject,
    found: Sequence[Event],
    *vendors: str,
    what: str,
    session_only: bool = False,
    about_host: bool = False,
) -> Iterator[Finding]:
    """Yield the findings that events come to."""
    evidence = log_evidence(subject)
    groups: dict[tuple[str, ...], list[Event]] = {}
    for event in found:
        if event.grade is not None:
            groups.setdefault(tuple(gpu.key for gpu in event.gpus), []).append(event)
    concerned: set[str] = set()
    for keys, about in groups.items():
        concerned.update(keys)
        for finding in _bad(evidence, about):
            yield replace(finding, devices=keys)
    harmless = [event for event in found if event.grade is None]
    rest = [] if about_host else [gpu for gpu in subject.gpus(*vendors) if gpu.key not in concerned]
    if () in groups or (concerned and not rest):
        return
    yield from _good(evidence, harmless, rest, what=what, session_only=session_only)


def _bad(evidence: LogEvidence, about: list[Event]) -> Iterator[Finding]:
    for status, blocking in (("FAIL", True), ("FAIL", False), ("WARN", True)):
        chosen = [
            event for event in about if event.grade == status and (status == "WARN" or event.blocking == blocking)
        ]
        if not chosen:
            continue
        chosen.sort(key=lambda event: not event.in_session)
        reason, shown, action = _sentence(chosen), _evidence(evidence, chosen), chosen[0].line.action or None
        if status == "WARN":
            yield warned(reason, *shown, action=action)
        else:
            # A line that does not say which of several devices it means must not take all of them out.
            yield failed(reason, *shown, action=action, blocking=blocking and bool(chosen[0].gpus))


def _good(
    evidence: LogEvidence, harmless: list[Event], rest: Sequence[Gpu], *, what: str, session_only: bool
) -> Iterator[Finding]:
    log = evidence.log
    lines = f"{len(evidence.records)} lines"
    noted = f"; {_sentence(harmless)}, which is no problem here" if harmless else ""
    shown = [
        Evidence(source=log.source, found=f"none in {lines}" if not harmless else "none that matters", expected="none"),
        *_evidence(evidence, harmless),
    ]
    if not evidence.records:
        yield unknown("the kernel's log is empty", *shown, on=rest)
    elif log.complete and not log.lost:
        yield passed(f"no {what} in the kernel's log of this boot{noted}", *shown, on=rest)
    elif session_only and evidence.covers_session:
        yield passed(f"no {what} since the session began{noted}", *shown, on=rest)
    else:
        yield unknown(f"no {what} in what is left of the kernel's log, {_lacking(evidence)}{noted}", *shown, on=rest)


def _lacking(evidence: LogEvidence) -> str:
    log = evidence.log
    if log.lost:
        return f"of which {log.lost} records were overwritten"
    first = next((record.time_s for record in evidence.records if record.time_s is not None), None)
    since = f" and begins at {first:.0f} s" if first is not None else ""
    return f"which lacks the beginning of this boot{since}"


def _sentence(chosen: Sequence[Event]) -> str:
    """Say what happened, worst and newest first: each kind once, with how often and when."""
    kinds: dict[tuple[str, int | None], list[Event]] = {}
    for event in chosen:
        kinds.setdefault((event.line.rule, event.line.xid), []).append(event)
    said = [_kind(about) for about in list(kinds.values())[:_KINDS]]
    more = len(kinds) - len(said)
    return "; ".join(said) + (f"; and {more} more kinds" if more > 0 else "")


def _kind(about: list[Event]) -> str:
    line = about[0].line
    name = f"Xid {line.xid}: {line.meaning}" if line.xid is not None else line.meaning
    times = f", {len(about)} times" if len(about) > 1 else ""
    when = "in this session" if any(event.in_session for event in about) else "earlier this boot"
    programs = [_program(event.line) for event in about]
    by = next((f", process {program}" for program in programs if program), "")
    later = next((event.later for event in about if event.later is not None), None)
    over = f", before '{shorten(later.record.message)}'" if later is not None else ""
    note = next((f", {event.note}" for event in about if event.note), "")
    return f"{name}{times}{note}, {when}{by}{over}"


def _program(line: LogFinding) -> str | None:
    """Name the process that a line names. Its PID is of the host, whatever this container calls it."""
    if line.process is None:
        return None
    return f"{line.process} (PID {line.pid} of the host)" if line.pid is not None else line.process


def _evidence(evidence: LogEvidence, chosen: Sequence[Event]) -> list[Evidence]:
    shown: list[Evidence] = []
    texts: Counter[str] = Counter()
    for event in chosen:
        text = shorten(evidence.message(event.line))
        texts[text] += 1
        if texts[text] == 1 and len(shown) < _SHOWN:
            shown.append(Evidence(source=evidence.where(event.line), found=text, expected="no such line"))
            if event.later is not None:
                record = event.later.record
                shown.append(Evidence(source=evidence.where(record), found=shorten(record.message)))
    return shown

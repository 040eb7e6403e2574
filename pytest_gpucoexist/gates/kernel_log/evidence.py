"""One reading and one classification of the kernel's log, for all gates of this group."""

from __future__ import annotations

import math
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

from pytest_gpucoexist.host.base import KernelLog
from pytest_gpucoexist.kernellog.classify import LogFinding, classify
from pytest_gpucoexist.kernellog.parse import parse_log
from pytest_gpucoexist.kernellog.records import Record

if TYPE_CHECKING:
    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["LogEvidence", "log_evidence", "shorten"]

_NEVER = sys.float_info.max
_SLACK_S = 1.0
"""The clock of the records and that of the session differ by the time that it takes to read both."""
_LINE = 240


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEvidence:
    """The log, its records, and what matters in them.

    `session_s` is where the session begins on the clock of the records; None outside of a session, or where nothing
    relates the two clocks.
    """

    log: KernelLog
    records: tuple[Record, ...] = ()
    findings: tuple[LogFinding, ...] = ()
    session_s: float | None = None
    messages: Mapping[int, str] = field(default_factory=dict)
    text: str = ""
    starts: Sequence[int] = ()

    def containing(self, *words: str) -> list[Record]:
        """Return the records that contain one of these words, in order. Quick: the log is searched as a whole."""
        found: set[int] = set()
        for word in words:
            at = self.text.find(word)
            while at >= 0:
                index = bisect_right(self.starts, at) - 1
                found.add(index)
                at = self.text.find(word, self.starts[index + 1])
        return [self.records[index] for index in sorted(found)]

    def following(self, line: LogFinding | Record, count: int) -> Sequence[Record]:
        """Return a line's record and those after it."""
        start = bisect_left(self.records, line.number, key=lambda record: record.number)
        return self.records[start : start + count]

    def in_session(self, line: LogFinding) -> bool:
        """Whether a line was logged since the session began. A line without a usable time was logged earlier."""
        return line.time_s is not None and line.time_s > (_NEVER if self.session_s is None else self.session_s)

    @property
    def covers_session(self) -> bool:
        """Whether everything logged since the session began is here, whatever was lost before."""
        if self.session_s is None or self.log.lost:
            return False
        first = next((record.time_s for record in self.records if record.time_s is not None), None)
        return first is not None and first <= self.session_s

    def message(self, line: LogFinding) -> str:
        """Return a line without what the log's form puts before it."""
        return self.messages.get(line.number, line.line)

    def where(self, line: LogFinding | Record) -> str:
        """Say where a line stands."""
        timed = line.time_s is not None and 0 <= line.time_s < _NEVER
        return f"{self.log.source} line {line.number}" + (f" at {line.time_s:.3f} s" if timed else "")


def log_evidence(subject: Subject) -> LogEvidence:
    """Return the evidence, read and classified by the first gate that asks. Never raises on account of the text."""
    return subject.shared(("kernel_log", "evidence"), lambda: _gather(subject))


def shorten(message: str) -> str:
    """Return a line of the log fit for a report: printable, and not endless."""
    text = "".join(letter if letter.isprintable() else " " for letter in message).strip()
    return text if len(text) <= _LINE else f"{text[:_LINE]}…"


def _gather(subject: Subject) -> LogEvidence:
    log = subject.host.kernel_log(allow_programs=subject.level != "quick")
    if log.status != "ok":
        return LogEvidence(log=log)
    records = parse_log(log.text)
    session_s = _session_start(subject, log, records)
    gpus = [gpu for gpu in subject.machine.gpus if gpu.pci_address is not None]
    functions = {gpu.pci_address for gpu in gpus if gpu.pci_address}
    functions.update(port for gpu in gpus for port in gpu.upstream or ())
    findings = classify(
        [record if record.time_s is not None else _timed(record, subject.since_s) for record in records],
        since_s=_NEVER if session_s is None else session_s,
        functions=sorted(functions),
        uuids={gpu.uuid: gpu.pci_address for gpu in gpus if gpu.uuid and gpu.pci_address},
    )
    wanted = {finding.number for finding in findings}
    messages = [record.message for record in records]
    return LogEvidence(
        log=log,
        records=records,
        findings=findings,
        session_s=session_s,
        messages={record.number: record.message for record in records if record.number in wanted},
        text="\n".join(messages),
        starts=[0, *accumulate(len(message) + 1 for message in messages)],
    )


def _timed(record: Record, since_s: float | None) -> Record:
    """Give a record without the boot's clock a time before or after everything, by its wall clock."""
    later = record.wall_s is not None and since_s is not None and record.wall_s >= since_s - _SLACK_S
    return record._replace(time_s=math.inf if later else -1.0)


def _session_start(subject: Subject, log: KernelLog, records: tuple[Record, ...]) -> float | None:
    """Return the session's beginning on the clock of the records, which stands still while the machine is suspended."""
    if subject.since_s is None:
        return None
    now = log.read_at_s if log.read_at_s is not None else _uptime(subject)
    if now is None:
        return None
    newest = max((record.time_s for record in records if record.time_s is not None), default=now)
    return max(now, newest) - (subject.host.time() - subject.since_s) - _SLACK_S


def _uptime(subject: Subject) -> float | None:
    text = subject.read("/proc/uptime").text or ""
    try:
        return float(text.split()[0])
    except (IndexError, ValueError):
        return None

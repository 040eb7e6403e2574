"""Ask every gate, at the same time and within one deadline, and make one judgement of what they say."""

from __future__ import annotations

import queue
import threading
import time
import traceback
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.catalogue import gates_of_level
from pytest_gpucoexist.gates.findings import Finding
from pytest_gpucoexist.model.verdicts import Judgement, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpucoexist.gates.registry import Gate
    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.verdicts import VerdictStatus

__all__ = ["judge"]

_THREADS = 4
_GRACE_S = 2.0
"""For gates that wait for a vendor library which has just used up the whole deadline."""


def judge(
    subject: Subject,
    *,
    gates: Iterable[Gate] | None = None,
    ignore: Mapping[str, str] | None = None,
    unknown_fails: bool = False,
) -> Judgement:
    """Judge a machine at the subject's level. Never raises on account of a gate.

    `gates` None: all of the level. `ignore` maps ids or globs to the reason that a person gave. With `unknown_fails`
    a gate that blocks and could not read its evidence fails.
    """
    started = time.perf_counter()
    chosen = list(gates_of_level(subject.level) if gates is None else gates)
    results = _ask_all(chosen, subject)
    verdicts: list[Verdict] = []
    for gate in chosen:
        for verdict in _verdicts(gate, results.get(gate.id), subject, unknown_fails=unknown_fails):
            verdicts.append(_ignored(verdict, ignore or {}))
    unfit = _unfit(verdicts, subject)
    return Judgement(
        level=subject.level,
        fit=_fit(verdicts, unfit),
        verdicts=tuple(verdicts),
        unfit=unfit,
        duration_s=time.perf_counter() - started,
    )


def _ask_all(gates: Sequence[Gate], subject: Subject) -> dict[str, list[Finding] | str]:
    """Return the findings of each gate, or its traceback; what did not answer in time is missing.

    Threads are daemons: one that a kernel holds back in a read cannot be ended, and must not keep the run.
    """
    waiting: queue.SimpleQueue[Gate | None] = queue.SimpleQueue()
    answers: queue.SimpleQueue[tuple[str, list[Finding] | str]] = queue.SimpleQueue()
    asked = [gate for gate in gates if _applies(gate, subject) is None]
    for gate in asked:
        waiting.put(gate)
    for _ in range(_THREADS):
        waiting.put(None)
        threading.Thread(target=_work, args=(waiting, answers, subject), name="gpucoexist-gates", daemon=True).start()
    results: dict[str, list[Finding] | str] = {}
    end = time.monotonic() + subject.deadline_s + _GRACE_S
    while len(results) < len(asked):
        try:
            name, result = answers.get(timeout=max(0.0, end - time.monotonic()))
        except queue.Empty:
            break
        results[name] = result
    return results


def _work(
    waiting: queue.SimpleQueue[Gate | None],
    answers: queue.SimpleQueue[tuple[str, list[Finding] | str]],
    subject: Subject,
) -> None:
    while (gate := waiting.get()) is not None:
        try:
            assert gate.check is not None
            found = list(gate.check(subject))
            wrong = next((each for each in found if not isinstance(each, Finding)), None)
            answers.put((gate.id, found if wrong is None else f"it yielded {wrong!r}, which is no Finding"))
        except Exception:  # noqa: BLE001  a gate that breaks is a verdict, not the end of the run
            answers.put((gate.id, traceback.format_exc()))


def _applies(gate: Gate, subject: Subject) -> str | None:
    """Say why a gate is not asked; None when it is."""
    if gate.check is None:
        return f"a gate of level {gate.level}, which this version does not run yet"
    if gate.needs_gpu and not subject.gpus(*gate.vendors):
        named = {"nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel"}
        names = [named.get(vendor, vendor) for vendor in gate.vendors]
        return f"no {' or '.join(names) + ' ' if names else ''}GPU here"
    return None


def _verdicts(
    gate: Gate, result: list[Finding] | str | None, subject: Subject, *, unknown_fails: bool
) -> Iterable[Verdict]:
    reason = _applies(gate, subject)
    if reason is not None:
        yield _verdict(gate, "SKIP", reason)
        return
    if result is None:
        yield _verdict(gate, "UNKNOWN", f"no answer within {subject.deadline_s:g} s")
        return
    if isinstance(result, str):
        yield _verdict(gate, "ERROR", f"the gate broke: {result.strip().splitlines()[-1]}", detail=result)
        return
    if not result:
        yield _verdict(gate, "ERROR", "the gate said nothing", detail="it yielded no finding")
        return
    for finding in _merged(result):
        status = finding.status
        if status == "UNKNOWN" and unknown_fails and gate.blocking and finding.blocking:
            status = "FAIL"
        action = finding.action or (gate.action if status in {"WARN", "FAIL"} else "")
        yield replace(
            _verdict(gate, status, finding.reason),
            devices=finding.devices,
            evidence=finding.evidence,
            action=action,
            fix=finding.fix,
            blocking=gate.blocking and finding.blocking,
        )


def _verdict(gate: Gate, status: VerdictStatus, reason: str, detail: str | None = None) -> Verdict:
    return Verdict(
        id=gate.id,
        group=gate.group,
        status=status,
        severity=gate.severity,
        blocking=gate.blocking,
        vendors=gate.vendors,
        reason=reason,
        expected=gate.criterion,
        source=gate.source,
        detail=detail,
    )


def _merged(findings: Sequence[Finding]) -> list[Finding]:
    """Join findings that say the same of several devices: same status, same words, same action."""
    joined: dict[tuple[object, ...], Finding] = {}
    for finding in findings:
        key = (finding.status, finding.reason, finding.action, finding.fix, finding.blocking)
        before = joined.get(key)
        joined[key] = finding if before is None else _join(before, finding)
    return list(joined.values())


def _join(first: Finding, second: Finding) -> Finding:
    return replace(
        first,
        devices=tuple(dict.fromkeys((*first.devices, *second.devices))),
        evidence=tuple(dict.fromkeys((*first.evidence, *second.evidence))),
    )


def _ignored(verdict: Verdict, ignore: Mapping[str, str]) -> Verdict:
    for pattern, reason in ignore.items():
        if fnmatchcase(verdict.id, pattern):
            return replace(verdict, ignored=reason)
    return verdict


def _unfit(verdicts: Sequence[Verdict], subject: Subject) -> dict[str, str]:
    """Say of each device that a blocking gate took out why, in the gate's words."""
    words: dict[str, list[str]] = {}
    for verdict in verdicts:
        if verdict.blocks:
            keys = verdict.devices or tuple(gpu.key for gpu in subject.gpus(*verdict.vendors))
            for key in keys:
                words.setdefault(key, []).append(f"{verdict.id}: {verdict.reason}")
    return {key: "; ".join(said) for key, said in words.items()}


def _fit(verdicts: Sequence[Verdict], unfit: Mapping[str, str]) -> bool | None:
    """Fit unless something blocks; None when every gate that blocks could not judge."""
    if unfit or any(verdict.blocks for verdict in verdicts):
        return False
    statuses = {verdict.status for verdict in verdicts if verdict.blocking and verdict.ignored is None}
    if statuses and not statuses & {"PASS", "WARN", "FAIL"} and statuses & {"UNKNOWN", "ERROR"}:
        return None
    return True

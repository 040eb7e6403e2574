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
_PATIENCE_S = 0.05


def judge(
    subject: Subject,
    *,
    gates: Iterable[Gate] | None = None,
    ignore: Mapping[str, str] | None = None,
    unknown_fails: bool = False,
    grace_s: float = _GRACE_S,
) -> Judgement:
    """Judge a machine at the subject's level. Never raises on account of a gate.

    `gates` None: all of the level. `ignore` maps ids or globs to the reason that a person gave. With `unknown_fails`
    a gate that blocks and could not read its evidence fails. `grace_s` is added to the subject's deadline, for gates
    that wait for a vendor library which has just used it up.
    """
    started = time.perf_counter()
    chosen = list(gates_of_level(subject.level) if gates is None else gates)
    results = _ask_all(chosen, subject, grace_s)
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


def _ask_all(gates: Sequence[Gate], subject: Subject, grace_s: float) -> dict[str, list[Finding] | str]:
    """Return the findings of each gate, or its traceback; what did not answer in time is missing.

    Threads are daemons: one that a kernel holds back in a read cannot be ended, and must not keep the run.
    """
    waiting: queue.SimpleQueue[Gate] = queue.SimpleQueue()
    answers: queue.SimpleQueue[tuple[str, list[Finding] | str]] = queue.SimpleQueue()
    asked = [gate for gate in gates if _applies(gate, subject) is None]
    for gate in asked:
        waiting.put(gate)

    def another_thread() -> None:
        threading.Thread(target=_work, args=(waiting, answers, subject), name="gpucoexist-gates", daemon=True).start()

    for _ in range(min(_THREADS, len(asked))):
        another_thread()
    results: dict[str, list[Finding] | str] = {}
    end = time.monotonic() + subject.deadline_s + grace_s
    while len(results) < len(asked) and (left := end - time.monotonic()) > 0:
        try:
            name, result = answers.get(timeout=min(left, _PATIENCE_S))
        except queue.Empty:
            # All threads wait for a file or a library that does not answer: the other gates need not.
            if not waiting.empty():
                another_thread()
        else:
            results[name] = result
    return results


def _work(
    waiting: queue.SimpleQueue[Gate],
    answers: queue.SimpleQueue[tuple[str, list[Finding] | str]],
    subject: Subject,
) -> None:
    while True:
        try:
            gate = waiting.get_nowait()
        except queue.Empty:
            return
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
    hidden = {gpu.key for gpu in subject.machine.gpus if not gpu.visible}
    for verdict in verdicts:
        if verdict.blocks:
            keys = verdict.devices or tuple(gpu.key for gpu in subject.gpus(*verdict.vendors))
            for key in keys:
                # A caller who hid a broken device on purpose has dealt with it; unless hiding it is what is wrong.
                if key not in hidden or verdict.group == "environment":
                    words.setdefault(key, []).append(f"{verdict.id}: {verdict.reason}")
    return {key: "; ".join(said) for key, said in words.items()}


def _fit(verdicts: Sequence[Verdict], unfit: Mapping[str, str]) -> bool | None:
    """Fit unless something blocks; None when every gate that blocks could not judge."""
    if unfit:
        return False
    statuses = {verdict.status for verdict in verdicts if verdict.blocking and verdict.ignored is None}
    if statuses and not statuses & {"PASS", "WARN", "FAIL"} and statuses & {"UNKNOWN", "ERROR"}:
        return None
    return True

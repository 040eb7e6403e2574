"""Ask every gate, at the same time and within one deadline, and make one judgement of what they say."""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.catalogue import gates_of_level
from pytest_gpucoexist.gates.findings import Finding
from pytest_gpucoexist.gates.words import clean, line, lines
from pytest_gpucoexist.model.verdicts import Judgement, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_gpucoexist.gates.registry import Gate
    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.verdicts import VerdictStatus

__all__ = ["judge"]

_WAITING_THREADS = 4
_GRACE_S = 2.0
_PATIENCE_S = 0.05
_MISSING = "bw.missing_data"
"""Whose ERROR says that a device was to be measured and was not: then nobody knows whether it is fit."""


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
        trials=subject.trials,
        fit=_fit(verdicts, unfit),
        verdicts=tuple(_weakened(verdict, subject) for verdict in verdicts),
        unfit=unfit,
        duration_s=time.perf_counter() - started,
    )


def _ask_all(gates: Sequence[Gate], subject: Subject, grace_s: float) -> dict[str, list[Finding] | str]:
    """Return the findings of each gate, or its traceback; what did not answer in time is missing.

    Gates that read files share one thread, since more would only take turns; those that wait for libraries and programs
    have their own. Where a lane stands still, another thread goes on with it. Threads are daemons: one that the kernel
    holds back in a read cannot be ended, and must not keep the run.
    """
    asked = [gate for gate in gates if _applies(gate, subject) is None]
    files = [gate for gate in asked if gate.level == "quick"]
    others = [gate for gate in asked if gate.level != "quick"]
    lanes = [_Lane(files, subject, threads=1), _Lane(others, subject, threads=_WAITING_THREADS)]
    end = time.monotonic() + subject.deadline_s + grace_s
    for lane in lanes:
        while not lane.done.wait(min(_PATIENCE_S, max(0.0, end - time.monotonic()))) and time.monotonic() < end:
            for each in lanes:
                each.go_on()
    return {name: result for lane in lanes for name, result in lane.results.copy().items()}


class _Lane:
    """Gates in a row, and the threads that ask them."""

    def __init__(self, gates: Sequence[Gate], subject: Subject, *, threads: int) -> None:
        self.results: dict[str, list[Finding] | str] = {}
        self.done = threading.Event()
        self._subject = subject
        self._count = len(gates)
        self._waiting: queue.SimpleQueue[Gate] = queue.SimpleQueue()
        self._seen = 0
        for gate in gates:
            self._waiting.put(gate)
        if not gates:
            self.done.set()
        for _ in range(min(threads, len(gates))):
            self._start()

    def go_on(self) -> None:
        """Start another thread where none has come further since the last call."""
        count = len(self.results)
        if count == self._seen and not self._waiting.empty():
            self._start()
        self._seen = count

    def _start(self) -> None:
        threading.Thread(target=self._work, name="gpucoexist-gates", daemon=True).start()

    def _work(self) -> None:
        while True:
            try:
                gate = self._waiting.get_nowait()
            except queue.Empty:
                return
            self.results[gate.id] = _ask(gate, self._subject)
            if len(self.results) == self._count:
                self.done.set()


def _ask(gate: Gate, subject: Subject) -> list[Finding] | str:
    try:
        assert gate.check is not None
        found = list(gate.check(subject))
    except BaseException:  # noqa: BLE001  a gate that breaks, exits or skips is a verdict: nobody else hears this thread
        import traceback

        return traceback.format_exc()
    wrong = next((each for each in found if not isinstance(each, Finding)), None)
    return found if wrong is None else f"it yielded {wrong!r}, which is no Finding"


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
        words = line(f"the gate broke: {result.strip().splitlines()[-1]}")
        yield _verdict(gate, "ERROR", words, detail=lines(result))
        return
    if not result:
        yield _verdict(gate, "ERROR", "the gate said nothing", detail="it yielded no finding")
        return
    for finding in _merged(clean(each) for each in result):
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


def _merged(findings: Iterable[Finding]) -> list[Finding]:
    """Join findings that say the same of several devices: same status, same words, same action."""
    alike: dict[tuple[object, ...], list[Finding]] = {}
    for finding in findings:
        key = (finding.status, finding.reason, finding.action, finding.fix, finding.blocking)
        alike.setdefault(key, []).append(finding)
    return [group[0] if len(group) == 1 else _joined(group) for group in alike.values()]


def _joined(group: Sequence[Finding]) -> Finding:
    return replace(
        group[0],
        devices=tuple(dict.fromkeys(key for finding in group for key in finding.devices)),
        evidence=tuple(dict.fromkeys(each for finding in group for each in finding.evidence)),
    )


def _ignored(verdict: Verdict, ignore: Mapping[str, str]) -> Verdict:
    for pattern, reason in ignore.items():
        if fnmatchcase(verdict.id, pattern):
            return replace(verdict, ignored=reason)
    return verdict


def _taken(verdict: Verdict, subject: Subject) -> list[str]:
    """Return the devices that a verdict takes out."""
    if not verdict.blocks:
        return []
    keys = verdict.devices or tuple(gpu.key for gpu in subject.gpus(*verdict.vendors))
    if verdict.group == "environment":
        return list(keys)
    # A caller who hid a broken device on purpose has dealt with it; unless hiding it is what is wrong. A card that is
    # partitioned is hidden when all of its partitions are: a gate names one of them for the card.
    visible = {name for gpu in subject.machine.gpus if gpu.visible for name in (gpu.key, gpu.pci_address)}
    if any("MIG-" in mask.value for mask in subject.machine.masks) and "nvidia" not in subject.machine.asked:
        # Files do not tell whose instance the mask leaves.
        visible.update(gpu.key for gpu in subject.gpus("nvidia"))
    cards = {gpu.key: gpu.pci_address for gpu in subject.machine.gpus}
    return [key for key in keys if key in visible or cards.get(key, key) in visible or key not in cards]


def _unfit(verdicts: Sequence[Verdict], subject: Subject) -> dict[str, str]:
    """Say of each device that a blocking gate took out why, in the gate's words."""
    words: dict[str, list[str]] = {}
    for verdict in verdicts:
        for key in _taken(verdict, subject):
            words.setdefault(key, []).append(f"{verdict.id}: {verdict.reason}")
    return {key: "; ".join(said) for key, said in words.items()}


def _weakened(verdict: Verdict, subject: Subject) -> Verdict:
    """Say of a failure that takes nothing out that it does not block."""
    return replace(verdict, blocking=False) if verdict.blocks and not _taken(verdict, subject) else verdict


def _fit(verdicts: Sequence[Verdict], unfit: Mapping[str, str]) -> bool | None:
    """Fit unless something blocks; None when every gate that blocks could not judge, or a measurement is missing."""
    if unfit:
        return False
    if any(each.id == _MISSING and each.status == "ERROR" and each.ignored is None for each in verdicts):
        return None
    statuses = {verdict.status for verdict in verdicts if verdict.blocking and verdict.ignored is None}
    if statuses and not statuses & {"PASS", "WARN", "FAIL"} and statuses & {"UNKNOWN", "ERROR"}:
        return None
    return True

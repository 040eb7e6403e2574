"""Every line that is known is judged as it should be, in whatever form it was saved."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.kernellog.classify import LogFinding, classify
from pytest_gpucoexist.kernellog.parse import parse_log
from pytest_gpucoexist.kernellog.records import Record
from pytest_gpucoexist.kernellog.report import findings_in
from pytest_gpucoexist.kernellog.rules import RULES
from tests.kernellog.seen import Line, benign, problems, samples

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucoexist.kernellog.rule import Rule

PROBLEMS = problems()
BENIGN = benign()

# Where this project judges otherwise than the catalogue's text, and why.
ON_PURPOSE = {
    "pcieport 0000:00:01.1: DPC: error containment capabilities: Int Msg #0": "what a healthy port says at boot",
    "traps: ": "a program's own crash, not the kernel's",
    "pcieport 0000:00:01.1: pciehp: Slot(0): Link Down/Up ignored": "the port recovered",
    "cx8800: Oops: no 32bit PCI DMA": "another driver's own words",
    "saa7134: Oops: IR config error": "another driver's own words",
}


def _one(text: str) -> LogFinding:
    findings = findings_in(text)
    assert len(findings) == 1, [finding.rule for finding in findings]
    return findings[0]


@pytest.mark.parametrize("line", PROBLEMS, ids=lambda line: line.line[:60])
def test_a_problem_is_named(line: Line) -> None:
    found = _one(line.line)
    assert (found.rule, found.severity, found.pci_address) == (line.rule, line.severity, line.device), line.source
    assert found.meaning
    assert found.action or found.severity == "info"
    assert found.line == line.line


def test_what_is_benign_gives_nothing() -> None:
    wrong = [(found.rule, line) for line in BENIGN for found in findings_in(line)]
    assert wrong == []
    assert findings_in("\n".join(BENIGN)) == ()


def test_the_samples_of_the_catalogue(shared: Path) -> None:
    wrong = []
    for line in samples(shared):
        got = [(found.rule, found.severity) for found in findings_in(line.line)]
        if got != [(line.rule, line.severity)]:
            wrong.append((line.line, got))
    assert wrong == []


STAMPS = (
    "[{time:12.6f}] {message}",
    "[{time:12.6f}][  T123] {message}",
    "kern  :err   : [{time:12.6f}] {message}",
    "3,339,{time_us},-;{message}",
    "Nov 30 12:00:00 my-host.lan kernel: [{time:12.6f}] {message}",
    "2025-02-23T16:24:18.123456+01:00 gpu01 kernel: [{time:12.6f}] {message}",
    "[{time:12.6f}] gpu01 kernel: {message}",
    "<3>1 2025-02-23T16:24:18.003Z gpu01 kernel - - - [{time:12.6f}] {message}\r",
)


@pytest.mark.parametrize("stamp", STAMPS)
def test_every_problem_is_found_in_every_form(stamp: str) -> None:
    messages = [parse_log(line.line)[0].message for line in PROBLEMS]
    lines = [
        stamp.format(time=number * 100.0, time_us=number * 100_000_000, message=message)
        for number, message in enumerate(messages)
    ]
    assert [found.rule for found in findings_in("\n".join(lines))] == [line.rule for line in PROBLEMS]


def _catalogue(shared: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((shared / "facts" / "kernel_log_rules.json").read_text(encoding="utf-8"))
    return loaded


def _by_catalogue(rules: list[tuple[str, re.Pattern[str]]], line: str) -> str | None:
    message = parse_log(line)[0].message
    return next((name for name, pattern in rules if pattern.search(message)), None)


def test_nothing_that_the_catalogue_finds_is_lost_or_moved(shared: Path) -> None:
    rules = [(rule["id"], re.compile(rule["regex"])) for rule in _catalogue(shared)["rules"]]
    lines = [*(line.line for line in PROBLEMS), *(line.line for line in samples(shared)), *BENIGN]
    moved = []
    for line in lines:
        expected = _by_catalogue(rules, line)
        got = [found.rule for found in findings_in(line)]
        if expected is not None and got != [expected] and not any(line.startswith(start) for start in ON_PURPOSE):
            moved.append((line, expected, got))
    assert moved == []


def test_the_rules_are_the_catalogues_in_its_order(shared: Path) -> None:
    listed = [(rule["id"], rule["vendor"], rule["severity"]) for rule in _catalogue(shared)["rules"]]
    ours = [(rule.id, rule.vendor, rule.severity) for rule in RULES]
    assert ours[: len(listed)] == listed
    assert len({rule.id for rule in RULES}) == len(RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_has_its_words(rule: Rule) -> None:
    assert rule.meaning
    assert rule.action or rule.severity == "info" or rule.id == "nv.xid"
    assert rule.anchors
    assert not rule.meaning.endswith(".")
    assert not rule.action.endswith(".")


def test_a_rule_is_never_missed_for_want_of_an_anchor() -> None:
    """Each regular expression on each line, and each line through the anchors, come to the same."""
    lines = [*(line.line for line in PROBLEMS), *BENIGN]
    messages = [record.message for line in lines for record in parse_log(line)]
    expected = [next((rule.id for rule in RULES if rule.search(message)), None) for message in messages]
    records = [Record(number, message, raw=message) for number, message in enumerate(messages)]
    got = {found.number: found.rule for found in classify(records)}
    assert got == {number: rule for number, rule in enumerate(expected) if rule is not None}


def test_every_rule_was_seen() -> None:
    assert {rule.id for rule in RULES} - {line.rule for line in PROBLEMS} == set()

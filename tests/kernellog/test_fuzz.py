"""No text makes the reader raise, and no garbage becomes a failure."""

from __future__ import annotations

from hypothesis import assume, given, settings, strategies as st

from pytest_gpucoexist.kernellog.classify import classify
from pytest_gpucoexist.kernellog.parse import parse_log
from pytest_gpucoexist.kernellog.records import Record
from pytest_gpucoexist.kernellog.report import findings_in, judge_text
from pytest_gpucoexist.kernellog.rules import RULES
from tests.kernellog.seen import benign, problems

LINES = [line.line for line in problems()]
HARMLESS = benign()

# What stamps, hosts and records are made of, so that the forms are entered and left half way.
PIECES = st.sampled_from(
    [
        "[", "]", "<6>", "<999>", "6,1,2,-;", "kern  :err   : ", "[   12.345]", "[  T12]", "Nov 30 12:00:00 ", "host ",
        "kernel: ", "2026-13-45T99:99:99,1+99:99 ", "9999999999.9 ", "[Sun Feb 31 16:24:18 2025] ", "#012", r"\x0a",
        r"\xff", "\x1b[1m", "\x1b]8;;", "\0", "\r", "\n", " DEVICE=+pci:", "{", "}", '{"MESSAGE":', '{"dmesg":[',
        "NVRM: ",
        "Xid (PCI:", "0000:44:00", "): 99999999999999999999, ", "pid=999999999999999999999,", "\ud800", "é", "[[[[[[",
    ]
)  # fmt: skip
TEXT = st.lists(st.one_of(PIECES, st.text(max_size=20)), max_size=30).map("".join)


def _all(text: str) -> None:
    records = parse_log(text)
    assert all(record.number >= 1 and "\n" not in record.message for record in records)
    findings = classify(records, since_s=5.0, functions=("0000:44:00.0",), uuids={"GPU-x": "0000:44:00.0"})
    assert all(finding.severity in {"fail", "warn", "info"} for finding in findings)
    judge_text(text)


@given(st.text())
@settings(max_examples=100)
def test_any_text(text: str) -> None:
    _all(text)
    # Hypothesis tries strings that it finds in the source, too: a rule's own words are no garbage.
    assume(not any(anchor in text for rule in RULES for anchor in rule.anchors))
    assert not [found for found in findings_in(text) if found.severity == "fail"]


@given(TEXT)
@settings(max_examples=100)
def test_pieces_of_forms(text: str) -> None:
    _all(text)


@given(st.sampled_from(LINES), st.data())
@settings(max_examples=100)
def test_lines_that_are_torn_and_mixed(line: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(line)))
    end = data.draw(st.integers(start, len(line)))
    other = data.draw(st.sampled_from(LINES))
    _all(line[:start] + line[end:])
    _all(line[start:end] + data.draw(TEXT) + other)


@given(st.lists(st.sampled_from(HARMLESS), max_size=5), st.integers(0, 10**9), st.integers(0, 7))
@settings(max_examples=50)
def test_harmless_lines_stay_harmless_in_every_form(lines: list[str], time_us: int, level: int) -> None:
    kmsg = "\n".join(f"{level},{number},{time_us},-;{line}" for number, line in enumerate(lines))
    dmesg = "\n".join(f"[{time_us / 1e6:12.6f}] {line}" for line in lines)
    syslog = "\n".join(f"Nov 30 12:00:00 host kernel: {line}" for line in lines)
    assert (findings_in(kmsg), findings_in(dmesg), findings_in(syslog)) == ((), (), ())


@given(st.binary(max_size=200))
@settings(max_examples=50)
def test_bytes_of_any_kind(content: bytes) -> None:
    _all(content.decode("utf-8", "replace"))
    _all(content.decode("latin-1"))


@given(st.lists(st.text(max_size=30), max_size=5))
@settings(max_examples=50)
def test_records_that_others_made(messages: list[str]) -> None:
    classify([Record(number, message) for number, message in enumerate(messages, 1)])


def test_long_lines_cost_no_more_than_their_length() -> None:
    """Repetitions of what the rules look for would take a backtracking search for ever."""
    for piece in ("amdgpu drm ring ", "NVRM: GSP ", "segfault at x in ", "Unknown symbol ", "] [drm] "):
        _all(piece * 20000)
    _all("[" * 100000)
    _all('{"a":' * 50000)

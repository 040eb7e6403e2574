"""A log that is too large to be held as a whole is judged the same, in blocks."""

from __future__ import annotations

import io

import pytest

from pytest_gpucoexist.kernellog import report, sieve
from pytest_gpucoexist.kernellog.report import judge_file, judge_text
from tests.kernellog.test_unseen import FALLEN, benign, unseen


@pytest.fixture(params=[300, 1000, 20_000])
def small_blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "_WHOLE", 100)
    monkeypatch.setattr(sieve, "_BLOCK", request.param)


def judged_in_blocks(text: str) -> dict[str, object]:
    judged = judge_file(io.BytesIO(text.encode()))
    assert judged is not None
    return judged


def a_long_log() -> str:
    """Every line of the other tests, a second apart, each between healthy ones."""
    healthy = benign()
    lines = []
    for place, entry in enumerate(unseen()):
        lines += [str(entry["line"]), *(healthy[(place * 9 + n) % len(healthy)] for n in range(9))]
    return "".join(f"[{n * 2:5d}.000000] {line}\n" for n, line in enumerate(lines))


@pytest.mark.usefixtures("small_blocks")
def test_blocks_change_nothing() -> None:
    text = a_long_log()
    assert judged_in_blocks(text) == judge_text(text)


@pytest.mark.usefixtures("small_blocks")
def test_what_comes_right_much_later_is_seen() -> None:
    filler = "".join(f"[{n:5d}.000000] {line}\n" for n, line in enumerate(benign(), 10))
    text = (
        "[    1.000000] amdgpu 0000:0a:00.0: Direct firmware load for amdgpu/x.bin failed with error -2\n"
        "[    1.100000] pci 0000:01:00.0: BAR 1: no space for [mem size 0x10000000 64bit pref]\n"
        "[    1.200000] nvidia 0000:01:00.0: not ready 1023ms after resume; waiting\n"
        + filler
        + "[ 9000.000000] [drm] Initialized amdgpu 3.64.0 for 0000:0a:00.0 on minor 1\n"
        "[ 9000.100000] pci 0000:01:00.0: BAR 1: assigned [mem 0x4000000000-0x400fffffff 64bit pref]\n"
        "[ 9000.200000] nvidia 0000:01:00.0: ready 2047ms after resume\n"
    )
    assert judged_in_blocks(text) == judge_text(text)
    assert [found["severity"] for found in judge_text(text)["findings"]] == ["warn", "warn", "warn"]


@pytest.mark.usefixtures("small_blocks")
def test_a_message_of_several_lines_stays_together() -> None:
    filler = "".join(f"[{n:5d}.000000] {line}\n" for n, line in enumerate(benign()))
    for cut in range(0, 1200, 60):
        text = filler[cut:] + f"[ 1843.308145] {FALLEN[0]}\n               {FALLEN[1]}\n               {FALLEN[2]}\n"
        assert [found["pci_address"] for found in judge_text(text + filler)["findings"]] == ["0000:b3:00.0"]
        assert judged_in_blocks(text + filler) == judge_text(text + filler)


def test_millions_of_one_kind_hide_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "_WHOLE", 100)
    monkeypatch.setattr(sieve, "_MOST_OF_A_KIND", 5)
    corrected = "pcieport 0000:00:01.0: AER: Corrected error message received from 0000:{bus:02x}:00.0"
    lines = [corrected.format(bus=1)] * 20 + [corrected.format(bus=2)] * 3
    lines += ["NVRM: Xid (PCI:0000:01:00): 31, Ch 00000003"] * 9 + ["NVRM: Xid (PCI:0000:01:00): 79, gone"]
    judged = judged_in_blocks("".join(f"{line}\n" for line in lines))
    findings = judged["findings"]
    assert isinstance(findings, list)
    kinds = [(found["rule"], found["pci_address"], found["xid"]) for found in findings]
    assert kinds.count(("pci.aer_corr", "0000:01:00.0", None)) == 5
    assert kinds.count(("pci.aer_corr", "0000:02:00.0", None)) == 3
    assert kinds.count(("nv.xid", "0000:01:00.0", 31)) == 5
    assert kinds.count(("nv.xid", "0000:01:00.0", 79)) == 1
    assert judged["left_out"] == 15 + 4


@pytest.mark.parametrize("data", [b"", b"\n", b" \t\r\n" * 10])
def test_nothing_to_judge(data: bytes) -> None:
    assert judge_file(io.BytesIO(data)) is None


@pytest.mark.parametrize("data", [b"x" * 5000, b"\n" * 5000, b" a\n" * 2000, b"\xff\xfe\x00" * 2000, b'{"a":' * 900])
@pytest.mark.usefixtures("small_blocks")
def test_no_line_ends_and_other_garbage(data: bytes) -> None:
    assert judge_file(io.BytesIO(data)) == {"findings": []}

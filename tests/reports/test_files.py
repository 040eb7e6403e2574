"""Reports on disk: formats by suffix, atomic, read back."""

from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.errors import DataError, ReportError
from pytest_gpucoexist.reports import atomic, jsonfile, read_report, write_report
from pytest_gpucoexist.reports.files import write_merged
from pytest_gpucoexist.reports.jsonfile import json_text
from pytest_gpucoexist.reports.merge import merge_reports
from pytest_gpucoexist.reports.model import DeviceUse, SessionReport, TestRecord
from tests.reports import machines, sessions

if TYPE_CHECKING:
    from pathlib import Path


def test_a_json_report_reads_back_equal(tmp_path: Path) -> None:
    report = sessions.workstation_session()
    path = str(tmp_path / "report.json")
    write_report(report, path)
    assert read_report(path) == report


def test_a_session_without_gpu_tests_has_no_machine(tmp_path: Path) -> None:
    report = sessions.session(sessions.record("test_a.py::test_x"), machine=None)
    path = str(tmp_path / "report.json")
    write_report(report, path)
    assert read_report(path).machine is None


@pytest.mark.parametrize(
    ("suffix", "start"), [(".json", "{"), (".html", "<!DOCTYPE html>"), (".md", "## GPU tests"), (".HTML", "<!DOCTYPE")]
)
def test_the_suffix_decides_the_format(tmp_path: Path, suffix: str, start: str) -> None:
    report = sessions.workstation_session()
    one, several = tmp_path / f"one{suffix}", tmp_path / f"several{suffix}"
    write_report(report, str(one))
    write_merged(merge_reports([("a.json", report)]), str(several))
    assert one.read_text(encoding="utf-8").startswith(start)
    assert several.read_text(encoding="utf-8").startswith(start)


@pytest.mark.parametrize("name", ["report.txt", "report", "report.json.gz", ".json"])
def test_another_suffix_is_refused_with_the_good_ones(tmp_path: Path, name: str) -> None:
    with pytest.raises(ReportError, match=r"\.json, \.html, \.md"):
        write_report(sessions.session(), str(tmp_path / name))
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"there is no folder .*/absent; create it first"):
        write_report(sessions.session(), str(tmp_path / "absent" / "report.json"))


def test_an_old_report_stays_when_the_new_one_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")

    def refuse(_source: str, _target: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(ReportError, match=r"cannot write .*report\.json: No space left on device"):
        write_report(sessions.session(), str(path))
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["report.json"]


def test_a_folder_that_cannot_be_written_to_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ReportError, match="Permission denied"):
        atomic.write_text(str(tmp_path / "report.json"), "")


def test_others_may_read_the_report(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    before = os.umask(0o022)
    try:
        write_report(sessions.session(), str(path))
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_link_is_followed_and_stays(tmp_path: Path) -> None:
    (tmp_path / "latest.json").symlink_to("real.json")
    write_report(sessions.session(), str(tmp_path / "latest.json"))
    assert (tmp_path / "latest.json").is_symlink()
    assert read_report(str(tmp_path / "real.json")) == sessions.session()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "is not JSON"),
        ("\xff\xfe", "is not JSON"),
        ("[1]", "is JSON, but no report"),
        ('{"schema": 1, "name": "a machine"}', "is JSON, but no report"),
        ('{"report": 1}', "needs 'version'"),
        ('{"report": 2, "version": "9", "created": "x"}', "version 2 is not known here"),
        ('{"report": 1, "version": "1", "created": "x", "tests": [{"nodeid": 3}]}', r"\$\.tests\[0\]\.nodeid"),
        ('{"report": 1, "version": "1", "created": "x", "tests": 3}', "expected a list"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_report_is_refused_in_words(tmp_path: Path, text: str, found: str) -> None:
    path = tmp_path / "report.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(ReportError, match=found) as caught:
        read_report(str(path))
    assert "report.json" in str(caught.value)


def test_a_report_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="No such file"):
        read_report(str(tmp_path / "absent.json"))


def test_a_file_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonfile, "LIMIT_BYTES", 10)
    path = tmp_path / "report.json"
    path.write_text("x" * 11)
    with pytest.raises(ReportError, match="larger than"):
        read_report(str(path))


def test_a_newer_release_may_add_keys(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(json_text(sessions.session().to_json() | {"of the future": 1}))
    assert read_report(str(path)) == sessions.session()


def test_json_of_a_report_is_json_everywhere() -> None:
    with pytest.raises(ValueError, match="Out of range float"):
        json_text(float("nan"))
    assert json_text({"name": "é"}, ascii_only=True).isascii()


def test_what_rides_on_a_pytest_report_is_of_exact_builtins() -> None:
    record = sessions.gpu_record("a::b", "nvidia0", numa_node=0)

    def walk(value: object) -> None:
        assert type(value) in {dict, list, str, int, float, bool, type(None)}
        for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            walk(item)

    walk(record.to_json())
    assert TestRecord.from_json(json.loads(json.dumps(record.to_json()))) == record


def test_an_unknown_outcome_is_an_error() -> None:
    with pytest.raises(DataError, match=r"\$\.outcome: expected one of 'passed'"):
        TestRecord.from_json({"nodeid": "a", "outcome": "maybe"})


def test_a_device_keeps_what_names_it_elsewhere() -> None:
    gpu = machines.workstation().gpus[0]
    device = DeviceUse.of(gpu, simulated=True)
    assert (device.id, device.key, device.uuid, device.driver_version, device.numa_node, device.simulated) == (
        "nvidia0",
        "0000:43:00.0",
        gpu.uuid,
        "570.86.15",
        0,
        True,
    )


@pytest.mark.parametrize(
    ("changes", "really"),
    [
        ({}, True),
        ({"outcome": "failed"}, True),
        ({"outcome": "skipped"}, False),
        ({"gpu_outcome": "simulated"}, False),
        ({"gpu_outcome": None}, False),
        ({"devices": (DeviceUse(id="demo0", key="k", simulated=True),)}, False),
    ],
)
def test_only_real_devices_count(changes: dict[str, object], really: bool) -> None:
    values: dict[str, object] = {"nodeid": "a", "outcome": "passed", "gpu_outcome": "ran"}
    record = TestRecord(**(values | changes))  # type: ignore[arg-type]
    assert record.ran_on_gpu is really


def test_a_session_report_states_its_version() -> None:
    assert SessionReport(version="1", created="now").to_json()["report"] == 1

"""The command `gpucoexist` as a person uses it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_gpucoexist import __version__, cli
from pytest_gpucoexist.model.machine import Machine
from pytest_gpucoexist.reports import write_report
from pytest_gpucoexist.reports.jsonfile import json_text
from tests.reports import machines, sessions


@pytest.fixture(autouse=True)
def width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


def run(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = cli.main(arguments)
    said = capsys.readouterr()
    return code, said.out, said.err


def fails(*arguments: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command that cannot be done; return its one line on stderr."""
    code, out, err = run(*arguments, capsys=capsys)
    assert (code, out) == (2, "")
    assert err.startswith("gpucoexist: ")
    assert err.count("\n") == 1
    return err


def command(*arguments: str, **environ: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "pytest_gpucoexist", *arguments],
        env=os.environ | environ,
        capture_output=True,
        check=False,
        timeout=60,
    )


def test_show_draws_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run("show", "--machine", "demo", capsys=capsys)
    assert (code, err) == (0, "")
    assert out.startswith("demo · ")
    assert "SIMULATED" in out
    assert "nvidia0" in out


def test_show_draws_a_tree(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _err = run("show", "--machine", "demo", "--tree", capsys=capsys)
    assert code == 0
    assert "NUMA node 0" in out
    assert "└─ nvidia1" in out


def test_show_prints_json_alone(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _err = run("show", "--machine", "demo", "--json", capsys=capsys)
    machine = Machine.from_json(json.loads(out))
    assert code == 0
    assert machine.simulated
    assert machine.asked == ("amd", "nvidia")


def test_no_vendor_reads_files_only(capsys: pytest.CaptureFixture[str]) -> None:
    _code, out, _err = run("show", "--machine", "demo", "--json", "--no-vendor", capsys=capsys)
    assert json.loads(out)["asked"] == []


def test_this_machine_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _err = run("show", "--no-vendor", "--json", capsys=capsys)
    assert code == 0
    assert json.loads(out)["simulated"] is False


def test_a_machine_can_be_its_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "machine.json"
    path.write_text(json_text(sessions.real_machine().to_json()))
    code, out, _err = run("show", "--machine", str(path), "--json", capsys=capsys)
    assert code == 0
    assert json.loads(out) == machines.workstation().to_json()


@pytest.mark.parametrize(
    ("text", "found"), [("{", "Expecting"), ('{"gpus": []}', "needs 'name'"), ("[" * 100_000, "recursion")]
)
def test_json_that_is_no_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, found: str) -> None:
    path = tmp_path / "machine.json"
    path.write_text(text)
    error = fails("show", "--machine", str(path), capsys=capsys)
    assert "holds no machine as show --json prints it" in error
    assert found in error


def test_json_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert "cannot read absent.json: No such file" in fails("show", "--machine", "absent.json", capsys=capsys)


def test_a_recording_that_is_not_there_names_what_is_good(capsys: pytest.CaptureFixture[str]) -> None:
    error = fails("show", "--machine", "/absent", capsys=capsys)
    assert "there is no /absent; give demo, a folder, an archive" in error


def test_what_is_no_recording_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "machine.tar.gz"
    path.write_bytes(b"no archive")
    assert str(path) in fails("show", "--machine", str(path), capsys=capsys)


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ((), "COMMAND"),
        (("shwo",), "invalid choice: 'shwo'"),
        (("show", "--tree", "--json"), "not allowed with argument"),
        (("show", "--deadline", "soon"), "no number of seconds"),
        (("show", "--deadline", "-1"), "no number of seconds"),
        (("show", "--deadline", "nan"), "no number of seconds"),
        (("merge",), "FILE.json"),
        (("record",), "FILE"),
    ],
)
def test_wrong_usage_is_one_line(arguments: tuple[str, ...], found: str, capsys: pytest.CaptureFixture[str]) -> None:
    error = fails(*arguments, capsys=capsys)
    assert found in error
    assert "--help" in error


@pytest.mark.parametrize("arguments", [("--help",), ("show", "--help"), ("record", "--help"), ("merge", "--help")])
def test_help(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(arguments)
    assert left.value.code == 0
    assert "usage: gpucoexist" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out == f"gpucoexist {__version__}\n"


def test_as_a_module() -> None:
    done = command("--version")
    assert (done.returncode, done.stdout.decode().strip()) == (0, f"gpucoexist {__version__}")


@pytest.mark.parametrize("form", [(), ("--tree",), ("--json",)])
def test_an_ascii_terminal_gets_ascii(form: tuple[str, ...]) -> None:
    done = command("show", "--machine", "demo", *form, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"nvidia0" in done.stdout
    assert done.stdout.isascii()


def test_an_encoding_that_lacks_a_character_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(buffer, encoding="cp437"))
    assert cli.main(["show", "--machine", "demo"]) == 0
    assert b"nvidia0" in buffer.getvalue()


def test_a_reader_that_leaves_early_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest_gpucoexist", "show", "--machine", "demo", "--json"],
            stdout=writing,
            stderr=subprocess.PIPE,
            check=False,
            timeout=60,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full, which only Linux has")
def test_a_disk_that_is_full_is_said_in_one_line() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "pytest_gpucoexist", "show", "--machine", "demo", "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
            timeout=60,
        )
    assert done.returncode == 2
    assert done.stderr == b"gpucoexist: cannot write the output: No space left on device\n"


def test_no_standard_output_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert cli.main(["show", "--machine", "demo"]) == 0
    sys.stdout.close()
    assert capsys.readouterr().err == ""


def test_an_interrupt_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*_arguments: object, **_named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pytest_gpucoexist.probes.discover", interrupt)
    assert run("show", "--machine", "demo", capsys=capsys) == (130, "", "gpucoexist: interrupted\n")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_shown_on_a_terminal_and_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert cli.main(["show", "--machine", "demo", "--deadline", "2.5"]) == 0
    shown = "gpucoexist: asking the drivers, at most 2.5 s ..."
    assert terminal.getvalue() == f"{shown}\r{' ' * len(shown)}\r"


def test_no_progress_where_nothing_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert cli.main(["show", "--machine", "demo", "--no-vendor"]) == 0
    assert terminal.getvalue() == ""


# What coverage itself has loaded into a child when it measures one is not ours.
LIGHT = """
import sys
before = set(sys.modules)
from pytest_gpucoexist import cli
try:
    cli.main({arguments!r})
except SystemExit:
    pass
heavy = ["rich", "jsonschema", "ctypes", "multiprocessing", "numpy", "torch", "pynvml", "amdsmi", "pytest"]
if {bare!r}:
    heavy += ["dataclasses", "json", "subprocess", "tarfile"]
print("loaded:", sorted((set(heavy) & set(sys.modules)) - before))
"""


@pytest.mark.parametrize(
    ("arguments", "bare"), [(["--version"], True), (["show"], False), (["show", "--machine", "demo", "--json"], False)]
)
def test_it_starts_light(arguments: list[str], bare: bool) -> None:
    """Of what is heavy, nothing is loaded before it is needed: rich only to draw."""
    program = LIGHT.format(arguments=arguments if arguments != ["show"] else ["show", "--bad"], bare=bare)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "loaded: []"


# record


def test_a_record_replays_to_the_same_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "lab3.tar.gz")
    code, out, err = run("record", path, "--machine", "demo", capsys=capsys)
    assert (code, err) == (0, "")
    assert "replayed    gives the same machine" in out
    assert "replaced    serial numbers, UUIDs" in out
    assert "what nvml, amdsmi, cuda and hip replied" in out
    _code, first, _err = run("show", "--machine", "demo", "--json", capsys=capsys)
    _code, second, _err = run("show", "--machine", path, "--json", capsys=capsys)
    before, after = json.loads(first), json.loads(second)
    assert after.pop("name") == "lab3"
    assert before.pop("name") == "demo"
    uuids = [(one.pop("uuid"), other.pop("uuid")) for one, other in zip(before["gpus"], after["gpus"], strict=True)]
    assert all(one != other for one, other in uuids if one is not None)
    for one, other in zip(before["gpus"], after["gpus"], strict=True):
        for gpu in (one, other):
            if gpu["kfd"] is not None:
                gpu["kfd"].pop("unique_id")
        assert one == other
    assert before == after


def test_this_machine_can_be_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "here.tar.xz"
    code, out, _err = run("record", str(path), "--no-vendor", capsys=capsys)
    assert code == 0
    assert path.exists()
    assert "gives the same machine" in out
    assert "replied" not in out


@pytest.mark.parametrize("name", ["machine.zip", "machine", ".tar.gz"])
def test_a_record_is_an_archive(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    error = fails("record", str(tmp_path / name), "--machine", "demo", capsys=capsys)
    assert "a record is an archive, .tar.gz, .tar.xz, .tar.bz2, .tar" in error
    assert list(tmp_path.iterdir()) == []


def test_a_record_needs_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    error = fails("record", str(tmp_path / "absent" / "m.tar.gz"), "--machine", "demo", capsys=capsys)
    assert "there is no folder" in error


def test_results_cannot_be_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    error = fails("record", str(tmp_path / "m.tar.gz"), "--machine", "machine.json", capsys=capsys)
    assert "holds results, not the files" in error


# merge


@pytest.fixture
def reports(tmp_path: Path) -> list[str]:
    first = sessions.session(sessions.gpu_record("t.py::a", "nvidia0"), sessions.unmet("t.py::b"))
    second = sessions.session(sessions.unmet("t.py::a", reason="no NVIDIA GPU"), machine=None)
    paths = [str(tmp_path / "first.json"), str(tmp_path / "second.json")]
    write_report(first, paths[0])
    write_report(second, paths[1])
    return paths


def test_merge_prints_a_table(reports: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run("merge", *reports, capsys=capsys)
    assert (code, err) == (0, "")
    assert "1 test ran nowhere\n  t.py::b\n    workstation  missing: needs 1 AMD GPU with ROCm" in out
    assert "t.py::a  passed   workstation: nvidia0" in out


def test_merge_fails_on_gaps_when_asked(reports: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("merge", "--fail-on-gaps", *reports, capsys=capsys)[0] == 1


def test_merge_without_gaps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "a.json")
    write_report(sessions.session(sessions.record("a")), path)
    assert run("merge", "--fail-on-gaps", path, capsys=capsys)[0] == 0


@pytest.mark.parametrize("suffix", [".json", ".md", ".html"])
def test_merge_writes_a_file(
    reports: list[str], tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"merged{suffix}"
    code, out, _err = run("merge", *reports, "-o", str(path), "--fail-on-gaps", capsys=capsys)
    assert (code, out) == (1, f"{path}: 2 tests, 1 ran nowhere\n")
    assert "t.py::b" in path.read_text(encoding="utf-8")


def test_merge_does_not_write_over_a_report(reports: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    error = fails("merge", *reports, "-o", reports[0], capsys=capsys)
    assert "is one of the reports to merge" in error


@pytest.mark.parametrize(("name", "found"), [("m.txt", ".json, .html, .md"), ("absent/m.md", "there is no folder")])
def test_merge_cannot_write_everywhere(
    reports: list[str], tmp_path: Path, name: str, found: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert found in fails("merge", *reports, "-o", str(tmp_path / name), capsys=capsys)


def test_merge_names_the_report_that_is_none(reports: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path(reports[1]).write_text("\x1b[2J{")
    assert "second.json is not JSON" in fails("merge", *reports, capsys=capsys)

"""`gpucoexist leases` as a person uses it, beside real processes that hold and wait."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.cli import common, main
from tests.conftest import ROOT
from tests.leases.machines import GIB, NVIDIA, User, board, told, with_process, workstation
from tests.reports.schemas import problems

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PROCESS = """
import os, sys, threading
from pytest_gpucoexist.leases.opening import open_leaser
from pytest_gpucoexist.model.groups import Group
from pytest_gpucoexist.model.requirement import Requirement
from pytest_gpucoexist.probes import discover
from pytest_gpucoexist.testing.demo import demo_host

folder, worker, test, memory, *keys = sys.argv[1:]
host = demo_host()
machine = discover(host, ask=("nvidia",))
leaser = open_leaser(lambda: machine, host, lease_dir=folder, session="run1", worker=worker)
group = Group(requirement=Requirement(memory_bytes=int(memory) or None), candidates=tuple(keys))
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
leaser.acquire([group], test, on_wait=lambda waiting: print("waits", flush=True))
print("holds", flush=True)
threading.Event().wait()
"""
N0, N1, A0, A1 = "0000:03:00.0", "0000:04:00.0", "0000:05:00.0", "0000:83:00.0"


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Callable[..., int]]:
    """Start processes that hold or wait, each once it does; all end with the test."""
    with ExitStack() as stack:

        def start(worker: str, test: str, *keys: str, memory: int = 0, says: str = "holds") -> int:
            argv = [sys.executable, "-c", PROCESS, str(tmp_path), worker, test, str(memory), *keys]
            child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
            assert child.stdin is not None
            assert child.stdout is not None
            stack.enter_context(child.stdout)
            stack.callback(child.wait)
            stack.callback(child.stdin.close)
            assert child.stdout.readline() == f"{says}\n"
            return child.pid

        yield start


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["leases", *arguments]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    return said.out


def on_demo(tmp_path: Path, *more: str) -> tuple[str, ...]:
    return "--machine", "demo", "--lease-dir", str(tmp_path), *more


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wide screen, and no records of this computer's other sessions, which run beside these tests."""
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr("pytest_gpucoexist.leases.view.user_folders", lambda: iter(()))


def test_nobody_holds_anything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, *on_demo(tmp_path))
    assert out.startswith("Leases of demo (SIMULATED: a replayed machine): 0 of 4 devices held\n")
    assert len(re.findall(r"^\w+ 0000:\S+ +free$", out, re.MULTILINE)) == 4
    assert f"kept in    the folder {tmp_path}\n" in out
    assert "leases are for people who cooperate" in out


def test_who_holds_and_who_waits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], process: Callable[..., int]
) -> None:
    whole = process("gw0", "test_a.py::test_whole", N0)
    shares = [process(f"gw{at}", f"test_b.py::test_{at}", N1, memory=at * GIB) for at in (1, 2)]
    waiter = process("gw4", "test_d.py::test_waits", N0, says="waits")
    out = run(capsys, *on_demo(tmp_path))
    assert "2 of 4 devices held, 1 request waits\n" in out
    me = "root" if os.getuid() == 0 else r"\S.*"
    for line in (
        rf"nvidia0 {N0}  whole +\d+ s  {me}, pytest, PID {whole} \(gw0 of session run1\): test_a.py::test_whole",
        rf"nvidia1 {N1}  1 GiB +\d+ s  {me}, pytest, PID {shares[0]} \(gw1 of session run1\): test_b.py::test_1",
        rf" +2 GiB +\d+ s  {me}, pytest, PID {shares[1]} \(gw2 of session run1\): test_b.py::test_2",
        rf"nvidia0 +\d+ s  {me}, PID {waiter} \(gw4 of session run1\): test_d.py::test_waits",
    ):
        assert re.search(rf"^{line}$", out, re.MULTILINE), (line, out)


def test_json_is_what_the_schema_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], process: Callable[..., int]
) -> None:
    holder = process("gw0", "test_a.py::test_whole", A1)
    waiter = process("gw1", "test_a.py::test_waits", A1, says="waits")
    document = json.loads(run(capsys, *on_demo(tmp_path, "--json")))
    assert problems("leases", document) == []
    devices = {device["key"]: device for device in document["devices"]}
    assert [holder["pid"] for holder in devices[A1]["holders"]] == [holder]
    assert devices[A1]["holders"][0]["memory_bytes"] is None
    assert devices[A1]["waiting"] == 1
    assert devices[A0]["holders"] == []
    (wait,) = document["waiting"]
    assert (wait["pid"], wait["uid"], wait["devices"], wait["worker"]) == (waiter, os.getuid(), [A1], "gw1")
    assert document["place"]["folder"] == str(tmp_path)


def test_a_lock_without_a_record_is_somebodys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], process: Callable[..., int]
) -> None:
    process("gw0", "test_a.py::test_whole", N0)
    shutil.rmtree(tmp_path / str(os.getuid()))
    out = run(capsys, *on_demo(tmp_path))
    assert re.search(rf"^nvidia0 {N0}  \? +somebody without a record$", out, re.MULTILINE), out


def test_a_holder_that_ended_is_gone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], process: Callable[..., int]
) -> None:
    pid = process("gw0", "test_a.py::test_whole", N0)
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert "0 of 4 devices held" in run(capsys, *on_demo(tmp_path))


@pytest.fixture
def stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    """A workstation on which somebody trains without a lease, in place of this machine."""
    machine = with_process(workstation(), 4242, "python3").with_file("/etc/passwd", "bob:x:0:0::/home/bob:/bin/sh\n")
    host = told(machine, board(NVIDIA, User(4242, 6 * GIB)))
    monkeypatch.setattr("pytest_gpucoexist.cli.leases.open_machine", lambda _name: host)
    assert common.open_machine(None) is not host


@pytest.mark.usefixtures("stranger")
def test_who_uses_a_device_without_a_lease(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "--lease-dir", str(tmp_path))
    assert "0 of 2 devices held, 1 busy without a lease\n" in out
    assert re.search(rf"^nvidia0 {NVIDIA}  6 GiB +without a lease: bob, python3, PID 4242$", out, re.MULTILINE), out
    document = json.loads(run(capsys, "--lease-dir", str(tmp_path), "--json"))
    assert problems("leases", document) == []
    assert document["devices"][0]["holders"][0]["kind"] == "elsewhere"
    quiet = run(capsys, "--lease-dir", str(tmp_path), "--no-vendor")
    assert "without a lease" not in quiet.splitlines()[0]


@pytest.mark.parametrize("machine", [(), ("--machine", "demo")])
def test_a_folder_from_the_environment_as_for_sessions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, machine: tuple[str, ...]
) -> None:
    monkeypatch.setenv("PYTEST_GPU_LEASE_DIR", str(tmp_path))
    assert json.loads(run(capsys, *machine, "--json"))["place"]["folder"] == str(tmp_path)


@pytest.mark.parametrize("columns", ["40", "80", "120"])
def test_it_fits(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    process: Callable[..., int],
    columns: str,
) -> None:
    test = "tests/models/test_attention.py::TestFlash::test_backward[bf16-causal-4096]"
    process("gw0", test, N0)
    process("gw1", test, N0, says="waits")
    monkeypatch.setenv("COLUMNS", columns)
    out = run(capsys, *on_demo(tmp_path))
    assert max(map(len, out.splitlines())) <= int(columns)
    assert test in re.sub(r"\s", "", out)


def test_the_line_for_administrators(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "--print-tmpfiles")
    lines = [line for line in out.splitlines() if not line.startswith("#")]
    assert lines[0] == "d /run/gpucoexist 1777 root root -"
    assert all(re.fullmatch(r"[df] /run/gpucoexist\S* \d{4} root root -", line) for line in lines)
    assert "systemd-tmpfiles --create" in out
    assert "type=bind,source=/run/gpucoexist,target=/run/gpucoexist" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--lease-dir", "/nonexistent/folder"), "leases cannot be kept in /nonexistent/folder"),
        (("--machine", "machine.json"), "cannot use machine.json: leases belong to a machine"),
        (("--machine", "/nonexistent"), "there is no /nonexistent"),
        (("--json", "--print-tmpfiles"), "not allowed with argument"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    assert main(["leases", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert words in said.err
    assert said.err.count("\n") == 1


def watching(tmp_path: Path, *more: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "pytest_gpucoexist", "leases", *on_demo(tmp_path, "--watch", *more)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)


def stop(watch: subprocess.Popen[str]) -> None:
    watch.send_signal(signal.SIGINT)
    _out, err = watch.communicate()
    assert (watch.returncode, err) == (0, "")


def test_watched_without_a_terminal_it_says_what_changes(tmp_path: Path, process: Callable[..., int]) -> None:
    watch = watching(tmp_path)
    assert watch.stdout is not None
    first = [watch.stdout.readline() for _ in range(4)]
    assert all(line.endswith(": free\n") for line in first)
    pid = process("gw0", "test_a.py::test_whole", N1)
    assert re.search(rf" nvidia1 {N1}: .*PID {pid} .*: test_a.py::test_whole \(whole\)$", watch.stdout.readline())
    os.kill(pid, signal.SIGKILL)
    assert watch.stdout.readline().endswith(f" nvidia1 {N1}: free\n")
    stop(watch)


def test_watched_as_json_each_line_is_a_document(tmp_path: Path, process: Callable[..., int]) -> None:
    watch = watching(tmp_path, "--json")
    assert watch.stdout is not None
    documents: list[dict[str, Any]] = [json.loads(watch.stdout.readline())]
    pid = process("gw0", "test_a.py::test_whole", N1)
    documents.append(json.loads(watch.stdout.readline()))
    stop(watch)
    assert [problems("leases", document) for document in documents] == [[], []]
    held = [[holder["pid"] for device in each["devices"] for holder in device["holders"]] for each in documents]
    assert held == [[], [pid]]


def test_watched_on_a_terminal_it_is_drawn_in_place(tmp_path: Path, process: Callable[..., int]) -> None:
    import pty

    pid = process("gw0", "test_a.py::test_whole", N1)
    ours, theirs = pty.openpty()
    argv = [sys.executable, "-m", "pytest_gpucoexist", "leases", *on_demo(tmp_path, "--watch")]
    environ = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
    with subprocess.Popen(argv, stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL, env=environ, cwd=ROOT) as watch:
        os.close(theirs)
        drawn = b""
        while drawn.count(b"kept in") < 2:
            drawn += os.read(ours, 65536)
        watch.send_signal(signal.SIGINT)
        while True:
            try:
                drawn += os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
        assert watch.wait() == 0
    os.close(ours)
    text = drawn.decode()
    assert text.startswith("\x1b[?1049h")  # a screen of its own, given back at the end
    assert "\x1b[?1049l" in text
    assert f"PID {pid}" in text
    assert "Traceback" not in text


def test_looking_takes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str], process: Callable[..., int]) -> None:
    process("gw0", "test_a.py::test_whole", N0)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    descriptors = len(os.listdir("/proc/self/fd"))
    run(capsys, *on_demo(tmp_path))
    assert sorted(path.name for path in tmp_path.rglob("*")) == before
    assert len(os.listdir("/proc/self/fd")) == descriptors

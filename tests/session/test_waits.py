"""Waiting for devices that another session holds: what is said, for how long, and what becomes of the test."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest

from pytest_gpucoexist.errors import DeviceBusyError
from pytest_gpucoexist.leases.lease import Holder, Waiting
from pytest_gpucoexist.model.groups import Group
from pytest_gpucoexist.model.requirement import Requirement
from pytest_gpucoexist.session import waits
from pytest_gpucoexist.session.waits import Watch
from pytest_gpucoexist.session.waitwords import gave_up_words, holder_words, span, waiting_words
from tests.beside.running import ON_DEMO
from tests.fixtures.machines import NVIDIA0, NVIDIA1, workstation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_gpucoexist.session.state import GpuSession

    Session = Callable[..., pytest.RunResult]

BOTH_WAYS = pytest.mark.parametrize("way", [(), ("-n1",)], ids=["serial", "xdist"])

needs_locks = pytest.mark.skipif(sys.platform == "win32", reason="on Windows leases bind one process only")

# Another session, of another process that is not above ours: it has every device of the demo machine until it is told.
HOLDER = """
import sys
from pytest_gpucoexist.host import local_host
from pytest_gpucoexist.leases.opening import open_leaser
from pytest_gpucoexist.model.groups import Group
from pytest_gpucoexist.model.requirement import Requirement
from pytest_gpucoexist.probes import discover
from pytest_gpucoexist.testing.demo import demo_host

machine = discover(demo_host())
keys = tuple(gpu.key for gpu in machine.gpus if gpu.is_compute)
leaser = open_leaser(lambda: machine, demo_host(), lease_dir=sys.argv[1], session="another session")
requirement = Requirement(count=len(keys))
lease = leaser.acquire([Group(requirement=requirement, candidates=keys)], "test_other.py::test_long")
print("holds", flush=True)
sys.stdin.readline()
leaser.release(lease)
"""


@pytest.fixture
def others() -> Iterator[subprocess.Popen[str]]:
    """Have all devices of the demo machine held; a line ends it."""
    argv = [sys.executable, "-c", HOLDER, os.environ["PYTEST_GPU_LEASE_DIR"]]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            assert process.stdout.readline() == "holds\n"
            yield process
        finally:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()


SUITE = "def test_it(cuda_gpu): pass\ndef test_plain(): pass"


@needs_locks
@BOTH_WAYS
def test_a_wait_that_is_too_long_is_busy_and_says_who_holds(
    session: Session, pytester: pytest.Pytester, others: subprocess.Popen[str], way: tuple[str, ...]
) -> None:
    pytester.makepyfile(SUITE)
    arguments = ("--gpu-wait=0", "--gpu-report=r.json", "--junitxml=j.xml")
    result = session(*way, *ON_DEMO, *arguments, on=None)
    result.assert_outcomes(passed=1, errors=1)
    told = f"nvidia0 or nvidia1 did not become free within 0 s (--gpu-wait): *PID {others.pid}*"
    result.stdout.fnmatch_lines([told])
    result.stdout.fnmatch_lines(["1 test (busy): *test_other.py::test_long*"])
    tests = {
        test["nodeid"].rpartition("::")[2]: test for test in json.loads((pytester.path / "r.json").read_text())["tests"]
    }
    assert (tests["test_it"]["gpu_outcome"], tests["test_it"]["outcome"]) == ("busy", "error")
    assert str(others.pid) in tests["test_it"]["reason"]
    assert 'name="gpu_outcome" value="busy"' in (pytester.path / "j.xml").read_text()


@needs_locks
@BOTH_WAYS
def test_a_busy_test_is_skipped_if_that_is_wanted(
    session: Session, pytester: pytest.Pytester, others: subprocess.Popen[str], way: tuple[str, ...]
) -> None:
    pytester.makepyfile(SUITE)
    arguments = ("--gpu-wait=0", "--gpu-busy=skip", "--gpu-report=r.json", "--gpu-expect-skips=0", "-rs")
    result = session(*way, *ON_DEMO, *arguments, on=None)
    result.assert_outcomes(passed=1, skipped=1)
    assert result.ret == 0, "nothing of the hardware is missing"
    result.stdout.fnmatch_lines([f"SKIPPED * nvidia0 or nvidia1 did not become free*PID {others.pid}*"])
    (test,) = [test for test in json.loads((pytester.path / "r.json").read_text())["tests"] if test["requirement"]]
    assert (test["gpu_outcome"], test["outcome"]) == ("busy", "skipped")


LATE = """
import pytest

@pytest.mark.rocm(count=3)
def test_missing(): pass

def test_it(request):
    request.getfixturevalue("cuda_gpu")
"""


@needs_locks
@pytest.mark.parametrize(("busy", "outcome"), [("wait", "failed"), ("skip", "skipped")])
def test_what_is_asked_for_late_is_busy_too(
    session: Session, pytester: pytest.Pytester, others: subprocess.Popen[str], busy: str, outcome: str
) -> None:
    pytester.makepyfile(LATE)
    result = session(*ON_DEMO, "--gpu-wait=0", f"--gpu-busy={busy}", "-ra", on=None)
    assert result.parseoutcomes() == ({"skipped": 1, outcome: 1} if busy == "wait" else {outcome: 2})
    result.stdout.fnmatch_lines([f"*nvidia0 or nvidia1 did not become free*PID {others.pid}*"])


@needs_locks
@BOTH_WAYS
def test_a_wait_is_said_and_ends_when_the_devices_are_free(
    session: Session, pytester: pytest.Pytester, others: subprocess.Popen[str], way: tuple[str, ...]
) -> None:
    # The holder goes when the line has been said; the moment is the test's, no clock decides.
    assert others.stdin is not None
    pytester.makeconftest(
        f"""
        import os, signal
        from pytest_gpucoexist.session import waits

        BEFORE = waits.FIRST_LINE_S, waits.say_anywhere

        def say(session, line):
            BEFORE[1](session, line)
            os.kill({others.pid}, signal.SIGKILL)

        waits.FIRST_LINE_S, waits.say_anywhere = 0.0, say

        def pytest_unconfigure():
            # A session inside a test shares this module with the session around it.
            waits.FIRST_LINE_S, waits.say_anywhere = BEFORE
        """
    )
    pytester.makepyfile(SUITE)
    result = session(*way, *ON_DEMO, "--gpu-report=r.json", on=None)
    result.assert_outcomes(passed=2)
    who = "[[]gw0] " if way else ""
    waits_for = f"gpucoexist: {who}test_a_wait*::test_it has waited * s for nvidia0 or nvidia1"
    result.stdout.fnmatch_lines([f"{waits_for}: nvidia0 and * are held by *pytest (PID *"])
    (test,) = [test for test in json.loads((pytester.path / "r.json").read_text())["tests"] if test["requirement"]]
    assert test["waited_s"] > 0
    assert test["gpu_outcome"] == "simulated"


def test_lines_stand_alone_and_are_silent_if_told_so(session: Session, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import pytest
        from pytest_gpucoexist.session.speaking import say

        @pytest.hookimpl(tryfirst=True, wrapper=True)
        def pytest_runtest_protocol(item):
            if "second" in item.name:
                say(item.config, "a line")
            return (yield)
        """
    )
    pytester.makepyfile("def test_first(): pass\ndef test_second(): pass")
    for arguments in ((), ("-v",), ("-q",)):
        result = session(*arguments, on=None)
        assert "gpucoexist: a line" in result.outlines
        assert result.ret == 0
    assert "a line" not in session("-q", "-q", on=None).stdout.str()


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Waited:
    """A session that waits 10 s, and what it says."""

    run_id = "ours"
    link = None
    is_worker = True

    class options:  # noqa: N801
        wait_s = 10.0

    @staticmethod
    def machine() -> Any:
        return workstation()


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(waits, "say_anywhere", lambda _session, line: lines.append(line))
    return lines


def watch(clock: Clock, waited: Waited | None = None) -> Watch:
    group = Group(requirement=Requirement(), candidates=(NVIDIA0, NVIDIA1))
    return Watch(cast("GpuSession", waited or Waited()), [group], "test_a.py::test_it", clock=clock)


def holder(session: str | None, kind: Any = "lease", key: str = NVIDIA0) -> Holder:
    return Holder(key=key, kind=kind, session=session, pid=7, user="ann", program="pytest", memory_bytes=2 * 1024**3)


def last(clock: Clock, watched: Watch, holders: tuple[Holder, ...], times: int) -> None:
    for _ in range(times):
        clock.now += 1
        watched(Waiting(owner="test_a.py::test_it", waited_s=clock.now - 100, holders=holders))


def test_time_in_which_only_this_session_holds_does_not_count(said: list[str]) -> None:
    clock = Clock()
    watched = watch(clock)
    ours = (holder("ours"), holder("ours", key=NVIDIA1))
    last(clock, watched, ours, 500)
    last(clock, watched, (holder("theirs"), ours[1]), 10)
    last(clock, watched, ours, 2)  # the tenth second ends here
    with pytest.raises(DeviceBusyError, match=r"^nvidia0 or nvidia1 did not become free within 10 s .--gpu-wait.: "):
        last(clock, watched, (holder("theirs"),), 1)
    assert len(said) == 18, "after 2 s and then every 30 s"


@pytest.mark.parametrize("kind", ["elsewhere", "leftover", "unknown"])
def test_everybody_else_counts(said: list[str], kind: str) -> None:
    clock = Clock()
    watched = watch(clock)
    with pytest.raises(DeviceBusyError, match=": nvidia0 is "):
        last(clock, watched, (holder("ours", kind),), 11)
    assert said


def test_nobody_to_be_seen_counts_too() -> None:
    clock = Clock()
    with pytest.raises(DeviceBusyError, match="did not become free"):
        last(clock, watch(clock), (), 11)


class Impatient(Waited):
    """A session that does not wait for others (`--gpu-wait=0`)."""

    class options:  # noqa: N801
        wait_s = 0.0


@pytest.mark.parametrize("between", [(), (holder(None, "unknown"),)], ids=["nobody", "unnamed"])
def test_the_moment_of_a_release_is_no_stranger(between: tuple[Holder, ...]) -> None:
    clock = Clock()
    watched = watch(clock, Impatient())
    for _ in range(3):
        last(clock, watched, between, 1)
        last(clock, watched, (holder("ours"),), 1)
    last(clock, watched, between, 1)
    with pytest.raises(DeviceBusyError, match="within 0 s"):
        last(clock, watched, between, 1)


@pytest.mark.parametrize("kind", ["lease", "elsewhere", "leftover"])
def test_a_stranger_that_is_seen_is_not_waited_for(kind: str) -> None:
    clock = Clock()
    with pytest.raises(DeviceBusyError, match="within 0 s"):
        last(clock, watch(clock, Impatient()), (holder("theirs", kind),), 1)


def test_words_for_holders() -> None:
    now_s = 1_000_000.0
    full = Holder(
        key=NVIDIA0, kind="lease", pid=4711, user="ann", program="pytest", worker="gw1", test="test_a.py::test_x",
        since_s=now_s - 750, memory_bytes=8 * 1024**3,
    )  # fmt: skip
    assert holder_words(full, now_s) == "ann's pytest (PID 4711, gw1, test_a.py::test_x), for 12 min, 8 GiB"
    assert holder_words(Holder(key=NVIDIA0, kind="elsewhere", uid=1000), now_s) == "a process of uid 1000"
    assert holder_words(Holder(key=NVIDIA0, kind="unknown"), now_s) == "somebody"
    assert [span(seconds) for seconds in (0, 119.9, 120, 7200, 7260)] == ["0 s", "119 s", "2 min", "2 h", "2 h 1 min"]


def test_words_for_a_wait_name_no_device_twice() -> None:
    now_s = 1_000_000.0
    both = Group(requirement=Requirement(count=2), candidates=(NVIDIA0, NVIDIA1))
    ours = [
        Holder(key=key, kind="lease", pid=7, user="ann", program="pytest", since_s=now_s - 5) for key in both.candidates
    ]
    waiting = Waiting(owner="test_a.py::test_it", waited_s=3.0, holders=tuple(ours), ahead=1)
    assert waiting_words("test_a.py::test_it", waiting, [both], workstation(), now_s) == (
        "test_a.py::test_it has waited 3 s for nvidia0 and nvidia1: held by ann's pytest (PID 7), for 5 s; "
        "1 before it in the queue"
    )
    assert gave_up_words(replace(waiting, holders=tuple(ours[:1]), ahead=0), [both], workstation(), now_s, 60.0) == (
        "nvidia0 and nvidia1 did not become free within 60 s (--gpu-wait): nvidia0 is held by ann's pytest (PID 7), "
        "for 5 s; `gpucoexist leases` shows who has what"
    )

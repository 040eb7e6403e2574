"""Each way in which a helper process can fail becomes a reply, and nothing of it stays behind."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.host import helpers, processes
from pytest_gpucoexist.host.helpers import ask_helpers
from pytest_gpucoexist.host.local import LocalHost
from tests.helpers.conftest import Ask, children, descriptors

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HANG = """
    import signal, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    def answer(request):
        while True:
            time.sleep(3600)
"""


def test_an_answer_comes_with_its_data(ask: Ask) -> None:
    reply = ask("def answer(request): return {'twice': request['n'] * 2, 'text': 'µ'}", {"n": 21})
    assert (reply.status, reply.data, reply.detail) == ("ok", {"twice": 42, "text": "µ"}, None)


@pytest.mark.parametrize(
    ("name", "status"),
    [("Absent", "absent"), ("Unsupported", "unsupported"), ("Denied", "denied"), ("Broken", "broken")],
)
def test_a_refusal_is_a_status_with_its_reason(ask: Ask, name: str, status: str) -> None:
    reply = ask(
        f"""
        from pytest_gpucoexist.helpers.protocol import Helper{name}
        def answer(request):
            raise Helper{name}("because")
        """
    )
    assert (reply.status, reply.data, reply.detail) == (status, None, "because")


def test_a_hang_costs_its_deadline_and_ignoring_sigterm_does_not_help(ask: Ask) -> None:
    reply = ask(HANG, deadline_s=0.3)
    assert (reply.status, reply.detail, reply.left_behind) == ("broken", "no answer within 0.3 s", None)


def test_a_grandchild_of_a_hang_is_killed_with_it(ask: Ask, tmp_path: Path) -> None:
    fifo = tmp_path / "alive"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    code = f"""
        import os, subprocess, time
        def answer(request):
            pipe = os.open({str(fifo)!r}, os.O_WRONLY)
            subprocess.Popen(["sleep", "3600"], pass_fds=(pipe,))
            os.write(pipe, b"started")
            time.sleep(3600)
    """
    try:
        reply = ask(code, deadline_s=3.0)
        assert reply.status == "broken"
        assert os.read(reader, 64) == b"started"
        # The end of the pipe: no process holds it open any more.
        os.set_blocking(reader, True)
        assert os.read(reader, 64) == b""
    finally:
        os.close(reader)


def test_a_helper_that_cannot_be_killed_is_left_and_named(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_kill_group", lambda _pid: None)
    monkeypatch.setattr(processes, "KILL_WAIT_S", 0.05)
    reply = ask(HANG, deadline_s=0.2)
    assert reply.status == "broken"
    assert reply.left_behind is not None
    assert f"process {reply.left_behind} cannot be killed" in (reply.detail or "")
    assert reply.left_behind in children()
    # When the driver lets go at last, the next round collects it.
    os.kill(reply.left_behind, signal.SIGKILL)
    os.waitid(os.P_PID, reply.left_behind, os.WEXITED | os.WNOWAIT)
    processes.reap_left_behind()
    assert reply.left_behind not in children()
    assert processes._left_behind == []


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV", "SIGABRT", "SIGBUS"])
def test_a_helper_that_a_signal_kills_says_which(ask: Ask, name: str) -> None:
    reply = ask(
        f"""
        import os, signal
        def answer(request):
            os.kill(os.getpid(), signal.{name})
        """
    )
    assert (reply.status, reply.data) == ("broken", None)
    assert (reply.detail or "").startswith(f"it was killed by {name} without an answer")


def test_a_crash_leaves_no_core_dump(ask: Ask) -> None:
    reply = ask(
        """
        import resource
        def answer(request):
            return resource.getrlimit(resource.RLIMIT_CORE)[0]
        """
    )
    assert reply.data == 0


def test_an_end_without_an_answer_says_the_status(ask: Ask) -> None:
    reply = ask("import os\ndef answer(request): os._exit(3)")
    assert (reply.status, reply.detail) == ("broken", "it ended with status 3 without an answer")


def test_text_on_stdout_is_noted_and_harmless(ask: Ask) -> None:
    reply = ask(
        """
        import os
        print("library says hello")
        def answer(request):
            os.write(1, b'{"status": "ok", "data": "forged"}')
            return "true"
        """
    )
    assert (reply.status, reply.data) == ("ok", "true")
    assert "text on its stdout" in (reply.detail or "")
    assert "library says hello" in (reply.detail or "")


def test_endless_text_on_stdout_does_not_fill_the_memory_or_stop_the_answer(ask: Ask) -> None:
    reply = ask(
        """
        import os
        def answer(request):
            for _ in range(1000):
                os.write(1, b"x" * 4096)
            return "still here"
        """
    )
    assert (reply.status, reply.data) == ("ok", "still here")
    assert len(reply.detail or "") < 1000


def test_text_on_stderr_explains_what_is_broken(ask: Ask) -> None:
    reply = ask(
        """
        import os, sys
        def answer(request):
            print("libfoo: cannot talk to the driver", file=sys.stderr)
            sys.stderr.flush()
            os._exit(1)
        """
    )
    assert "it ended with status 1 without an answer" in (reply.detail or "")
    assert "libfoo: cannot talk to the driver" in (reply.detail or "")


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        ("b'garbage'", "its answer is not JSON"),
        ("b'\\xff\\xfe\\x00'", "its answer is not JSON"),
        ("b'[1, 2]'", "its answer has no status"),
        ('b\'{"status": "fine"}\'', "its answer has no status"),
        ("b'{\"status\": 1}'", "its answer has no status"),
        ('b\'{"status": "ok", "data": [1, 2\'', "its answer is not JSON"),
        ("b'[' * 100000", "its answer is not JSON"),
    ],
)
def test_garbage_on_the_answer_pipe_is_broken(ask: Ask, sent: str, words: str) -> None:
    reply = ask(
        f"""
        import os, sys
        def answer(request):
            os.write(int(sys.argv[1]), {sent})
            os._exit(0)
        """
    )
    assert (reply.status, reply.data) == ("broken", None)
    assert words in (reply.detail or "")


def test_half_an_answer_of_a_crashed_helper_names_the_crash(ask: Ask) -> None:
    reply = ask(
        """
        import os, signal, sys
        def answer(request):
            os.write(int(sys.argv[1]), b'{"status": "ok", "da')
            os.kill(os.getpid(), signal.SIGSEGV)
        """
    )
    assert reply.status == "broken"
    assert "not JSON" in (reply.detail or "")
    assert "killed by SIGSEGV" in (reply.detail or "")


def test_half_an_answer_before_a_hang_is_no_answer(ask: Ask) -> None:
    reply = ask(
        """
        import os, sys, time
        def answer(request):
            os.write(int(sys.argv[1]), b'{"status": "ok"')
            time.sleep(3600)
        """,
        deadline_s=2.0,
    )
    assert (reply.status, reply.detail) == ("broken", "no answer within 2 s")


def test_a_huge_answer_is_refused_without_being_read(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helpers, "MAX_ANSWER_BYTES", 100_000)
    reply = ask("def answer(request): return 'x' * 10_000_000")
    assert (reply.status, reply.data, reply.detail) == ("broken", None, "its answer is larger than 100000 bytes")


def test_an_answer_larger_than_a_pipe_arrives_whole(ask: Ask) -> None:
    reply = ask("def answer(request): return 'x' * 1_000_000")
    assert (reply.status, len(reply.data)) == ("ok", 1_000_000)


@pytest.mark.parametrize(
    ("code", "detail"),
    [
        ("raise KeyError('libamd_smi.so')", "KeyError: 'libamd_smi.so'"),
        ("import ctypes\nctypes.CDLL(None).amdsmi_get_nothing", "AttributeError"),
        ("import no_such_module_here", "ModuleNotFoundError: No module named 'no_such_module_here'"),
        ("import sys\nsys.exit('no driver')", "SystemExit: no driver"),
        ("def answer(request): return {1, 2}", "TypeError: Object of type set is not JSON serializable"),
        ("def answer(request): raise RuntimeError('x' * 100_000)", "RuntimeError: xxx"),
        ("", "AttributeError: module 'purpose.it' has no attribute 'answer'"),
        ("def answer(request): return (", "SyntaxError"),
    ],
)
def test_an_exception_anywhere_is_broken_and_named(ask: Ask, code: str, detail: str) -> None:
    reply = ask(code)
    assert (reply.status, reply.data) == ("broken", None)
    assert detail in (reply.detail or "")
    assert len(reply.detail or "") < 3000


def test_a_grandchild_that_holds_the_pipe_does_not_delay_the_answer(ask: Ask) -> None:
    reply = ask(
        """
        import os, signal
        def answer(request):
            if os.fork() == 0:
                while True:
                    signal.pause()
            return "answered"
        """
    )
    assert (reply.status, reply.data) == ("ok", "answered")


def test_an_answer_counts_although_the_exit_hangs(ask: Ask) -> None:
    reply = ask(
        """
        import atexit, time
        atexit.register(time.sleep, 3600)
        def answer(request): return "answered"
        """
    )
    assert (reply.status, reply.data) == ("ok", "answered")


def test_an_interrupt_ends_the_helpers_too(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            ask(
                """
                import os, signal, time
                def answer(request):
                    os.kill(os.getppid(), signal.SIGINT)
                    time.sleep(3600)
                """
            )
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_interrupt_while_starting_ends_those_that_run(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object, **kwargs: object) -> processes.Child:
        if started:
            raise KeyboardInterrupt
        started.append(processes.start(*args, **kwargs))  # type: ignore[arg-type]
        return started[0]

    started: list[processes.Child] = []
    monkeypatch.setattr(helpers, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ask_helpers(["nvml", "amdsmi"], {}, environ=os.environ, python_path=sys.path, deadline_s=60.0)
    assert started[0].process.returncode is not None


@pytest.mark.parametrize("code", ["def answer(request): return 1", "import os\ndef answer(request): os.abort()", HANG])
def test_kernels_without_pidfd_give_the_same(ask: Ask, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setattr(processes, "_pidfd", lambda _pid: None)
    reply = ask(code, deadline_s=1.0 if code == HANG else 60.0)
    assert reply.status == ("ok" if "return 1" in code else "broken")
    assert reply.left_behind is None


def test_without_pidfd_open_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert processes._pidfd(os.getpid()) is None


def test_helpers_run_at_the_same_time(purpose: Callable[[str, str], None], tmp_path: Path, nothing_left: None) -> None:
    os.mkfifo(tmp_path / "meet")
    # Each opens its end and waits until the other has opened too: one after the other, neither would answer.
    for name, flag in (("one", "os.O_RDONLY"), ("two", "os.O_WRONLY")):
        purpose(name, f"import os\ndef answer(request): return os.open({str(tmp_path / 'meet')!r}, {flag}) > 0")
    replies = ask_helpers(
        ["one", "two"],
        {},
        environ=os.environ,
        python_path=[str(tmp_path), *sys.path],
        deadline_s=60.0,
        package="purpose",
    )
    assert {name: reply.data for name, reply in replies.items()} == {"one": True, "two": True}


def test_one_that_hangs_does_not_spoil_the_others(
    purpose: Callable[[str, str], None], tmp_path: Path, nothing_left: None
) -> None:
    purpose("hangs", HANG)
    purpose("crashes", "import os\ndef answer(request): os.abort()")
    purpose("works", "def answer(request): return 7")
    replies = ask_helpers(
        ["hangs", "crashes", "works", "not a name"],
        {},
        environ=os.environ,
        python_path=[str(tmp_path), *sys.path],
        deadline_s=5.0,
        package="purpose",
    )
    assert {name: reply.status for name, reply in replies.items()} == {
        "hangs": "broken",
        "crashes": "broken",
        "works": "ok",
        "not a name": "broken",
    }
    assert replies["works"].data == 7


def test_the_environment_and_the_path_are_the_hosts(ask: Ask, tmp_path: Path) -> None:
    before = dict(os.environ)
    reply = ask(
        """
        import os, sys
        def answer(request): return [os.environ["LD_LIBRARY_PATH"], sys.path]
        """,
        LD_LIBRARY_PATH="/opt/fake/lib",
    )
    assert reply.data == ["/opt/fake/lib", [str(tmp_path), *sys.path]]
    assert dict(os.environ) == before


def test_no_test_framework_and_no_multiprocessing_is_loaded(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG"):
        monkeypatch.delenv(variable, raising=False)  # coverage measures helpers too, and loads what it needs
    reply = ask("import sys\ndef answer(request): return sorted(sys.modules)")
    for name in ("pytest", "_pytest", "pluggy", "multiprocessing", "subprocess", "numpy", "pytest_gpucoexist.plugin"):
        assert name not in reply.data


def test_sitecustomize_runs_as_in_this_process(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.customized = True\n")
    reply = ask(
        "import builtins\ndef answer(request): return getattr(builtins, 'customized', False)", PYTHONPATH=str(tmp_path)
    )
    assert reply.data is True


@pytest.mark.parametrize(
    ("attribute", "option"),
    [("isolated", "-I"), ("no_site", "-S"), ("ignore_environment", "-E"), ("no_user_site", "-s")],
)
def test_interpreter_options_are_passed_on(monkeypatch: pytest.MonkeyPatch, attribute: str, option: str) -> None:
    class Flags:
        utf8_mode = 1

    setattr(Flags, attribute, 1)
    monkeypatch.setattr(sys, "flags", Flags)
    assert helpers._interpreter_flags() == [option, "-X", "utf8"]


def test_an_interpreter_that_cannot_start_is_broken(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    reply = ask("def answer(request): return 1")
    assert reply.status == "broken"
    assert "did not start" in (reply.detail or "")
    assert "No such file" in (reply.detail or "")


@pytest.mark.parametrize("executable", ["", None])
def test_a_program_that_embeds_python_is_broken(
    ask: Ask, monkeypatch: pytest.MonkeyPatch, executable: str | None
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    reply = ask("def answer(request): return 1")
    assert reply.status == "broken"
    assert "does not say where its Python is" in (reply.detail or "")


def test_a_request_that_is_no_json_is_broken(ask: Ask) -> None:
    reply = ask("def answer(request): return 1", {"what": object()})
    assert reply.status == "broken"
    assert "did not start" in (reply.detail or "")


def test_an_unknown_signal_has_a_number() -> None:
    assert helpers.ending(-63) in {"it was killed by signal 63", "it was killed by SIGRTMAX-1"}


def test_the_packages_own_helpers_are_found() -> None:
    before = descriptors()
    replies = LocalHost().ask_all(["nvml", "amdsmi"], deadline_s=60.0)
    assert set(replies) == {"nvml", "amdsmi"}
    assert all(reply.detail != "no answer within 60 s" for reply in replies.values())
    assert descriptors() == before


def test_a_helper_that_does_not_exist_is_broken() -> None:
    reply = LocalHost().ask("no_such_helper", deadline_s=60.0)
    assert reply.status == "broken"
    assert "ModuleNotFoundError" in (reply.detail or "")

"""This machine, through the same door: bounded reads, errors with an errno, nothing on other systems."""

from __future__ import annotations

import ast
import errno
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.host import Host, local_host
from pytest_gpucoexist.host.local import LocalHost

if TYPE_CHECKING:
    from collections.abc import Callable

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")


def code_of(call: Callable[[], object]) -> int | None:
    try:
        call()
    except OSError as exc:
        return exc.errno
    pytest.fail("no error")


def test_it_is_a_host_and_not_simulated() -> None:
    host = local_host()
    assert isinstance(host, Host)
    assert not host.simulated
    assert host.platform == sys.platform
    assert host.name
    assert host.time() > 1_700_000_000


def test_the_environment_and_the_path_are_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_TEST", "before")
    host = LocalHost()
    monkeypatch.setenv("GPU_TEST", "after")
    monkeypatch.syspath_prepend("/added/later")
    assert host.environ["GPU_TEST"] == "before"
    assert "/added/later" not in host.python_path
    with pytest.raises(TypeError):
        host.environ["GPU_TEST"] = "changed"  # type: ignore[index]


@linux
def test_identity_is_the_effective_one_with_every_group() -> None:
    me = LocalHost().identity()
    assert (me.uid, me.gid) == (os.geteuid(), os.getegid())
    assert set(me.groups) == {os.getegid(), *os.getgroups()}
    assert set(me.group_names.values()) <= {*me.groups, *me.group_names.values()}


@linux
def test_reading_is_bounded_even_where_a_file_has_no_end() -> None:
    host = LocalHost()
    assert host.read_bytes("/dev/zero", 3_000_000) == bytes(3_000_000)
    assert host.read_bytes("/proc/self/status", 4) == b"Name"
    assert host.read_text("/proc/sys/kernel/ostype") == "Linux"


@linux
def test_a_pipe_without_a_writer_does_not_stall(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert LocalHost().read_bytes(str(tmp_path / "pipe")) == b""


@linux
def test_files_folders_and_links(tmp_path: Path) -> None:
    host = LocalHost()
    (tmp_path / "b").write_bytes(b"text\0\0\n")
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "dangling").symlink_to("none")
    root = str(tmp_path)
    assert host.list_dir(root) == ["a", "b", "dangling"]
    assert host.read_link(f"{root}/a") == "b"
    assert host.resolve(f"{root}/a") == os.path.realpath(f"{root}/b")
    assert host.read_text(f"{root}/a") == "text"
    assert (host.stat(f"{root}/a").kind, host.stat(f"{root}/a").size_bytes) == ("file", 7)
    assert host.stat(root).kind == "dir"
    assert not host.exists(f"{root}/dangling")
    assert code_of(lambda: host.resolve(f"{root}/dangling")) == errno.ENOENT
    assert code_of(lambda: host.read_link(f"{root}/b")) == errno.EINVAL
    assert code_of(lambda: host.read_bytes(root)) == errno.EISDIR
    assert code_of(lambda: host.list_dir(f"{root}/b")) == errno.ENOTDIR


@linux
def test_nodes_have_their_numbers() -> None:
    node = LocalHost().stat("/dev/null")
    assert (node.kind, node.major, node.minor) == ("chardev", 1, 3)


@linux
@pytest.mark.parametrize("path", ["/sys/\0", "/sys/\udcff\ud800"])
def test_a_name_that_no_file_can_have_is_an_oserror(path: str) -> None:
    host = LocalHost()
    calls: list[Callable[[str], object]] = [host.read_bytes, host.list_dir, host.stat, host.read_link, host.resolve]
    for call in calls:
        assert code_of(partial(call, path)) in {errno.EINVAL, errno.ENOENT}
    assert not host.exists(path)


@linux
def test_a_process_that_ended_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(path: str) -> list[str]:
        raise ProcessLookupError(errno.ESRCH, "No such process")

    monkeypatch.setattr(os, "listdir", gone)
    assert code_of(lambda: LocalHost().list_dir("/proc/7/fd")) == errno.ENOENT


@linux
def test_an_oserror_without_an_errno_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def odd(path: str) -> list[str]:
        raise OSError("odd")

    monkeypatch.setattr(os, "listdir", odd)
    assert code_of(lambda: LocalHost().list_dir("/proc")) == errno.EIO


@linux
def test_access_is_asked_without_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = LocalHost()
    path = tmp_path / "node"
    path.touch()
    host.may_open(str(path), write=True)
    assert code_of(lambda: host.may_open(str(tmp_path / "none"), write=False)) == errno.ENOENT
    monkeypatch.setattr(os, "access", lambda *_args, **_kwargs: False)
    assert code_of(lambda: host.may_open(str(path), write=True)) == errno.EACCES


@linux
def test_it_covers_everything() -> None:
    assert LocalHost().covers("/dev/kfd")


def test_other_systems_import_and_find_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    host = LocalHost()
    assert not host.covers("/sys")
    assert not host.exists("/")
    calls: list[Callable[[str], object]] = [host.read_bytes, host.read_text, host.list_dir, host.read_link, host.stat]
    for call in (*calls, host.resolve):
        assert code_of(partial(call, "/")) == errno.ENOENT
    assert code_of(lambda: host.may_open("/dev/null", write=False)) == errno.ENOENT
    assert host.ask("nvml").detail == "not asked on darwin"
    assert (host.identity().uid, host.identity().groups) == (0, ())


def test_nothing_that_only_unix_has_is_imported_with_the_package() -> None:
    """`grp`, `fcntl`, `resource` and `pwd` do not exist on Windows: they may be imported in functions only."""
    root = Path(__file__).parents[2] / "pytest_gpucoexist"
    for folder in ("host", "helpers", "testing"):
        for path in (root / folder).glob("*.py"):
            for node in ast.parse(path.read_text()).body:
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                assert not {"grp", "pwd", "fcntl", "resource", "multiprocessing"} & set(names), path


@linux
class TestPrograms:
    def test_output_and_status(self) -> None:
        done = LocalHost().run(["sh", "-c", "echo out; echo err >&2; exit 3"])
        assert (done.returncode, done.stdout, done.stderr, done.timed_out) == (3, b"out\n", b"err\n", False)

    def test_a_program_that_is_not_there(self) -> None:
        assert code_of(lambda: LocalHost().run(["/nonexistent/program"])) == errno.ENOENT
        assert code_of(lambda: LocalHost().run(["echo", "\0"])) == errno.EINVAL

    def test_a_program_that_hangs_is_ended(self) -> None:
        done = LocalHost().run(["sleep", "3600"], timeout_s=0.2)
        assert (done.returncode, done.timed_out) == (None, True)

    def test_the_environment_is_the_snapshot(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GPU_TEST", "before")
        host = LocalHost()
        monkeypatch.setenv("GPU_TEST", "after")
        assert host.run(["sh", "-c", "echo $GPU_TEST"]).stdout == b"before\n"


def test_importing_the_host_loads_nothing_heavy() -> None:
    code = (
        "import sys; import pytest_gpucoexist.host as h; h.local_host();"
        "print(sorted({'ctypes', 'multiprocessing', 'tarfile', 'lzma', 'subprocess'} & set(sys.modules)))"
    )
    environ = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environ)
    assert done.stdout.strip() == "[]"


@linux
def test_groups_are_read_from_the_file_and_asked_of_no_name_service(monkeypatch: pytest.MonkeyPatch) -> None:
    host = LocalHost()
    own = os.getegid()
    text = f"root:x:0:\nmine:x:{own}:\nrender:x:105:\nstrangers:x:54321:\n+::\nbroken\nbad:x:y:\n"
    monkeypatch.setattr(LocalHost, "read_text", lambda _self, path, _limit: text if path == "/etc/group" else "")
    names = host.identity().group_names
    assert names["mine"] == own
    assert names["render"] == 105
    assert "strangers" not in names
    monkeypatch.setattr(LocalHost, "read_text", lambda _self, path, _limit: Path("/nonexistent", path[1:]).read_text())
    assert host.identity().group_names == {}


@linux
def test_files_are_opened_for_reading_at_any_place_and_nothing_else_is_opened(tmp_path: Path) -> None:
    host = LocalHost()
    path = tmp_path / "libbig.so"
    path.write_bytes(b"\x7fELF" + b"." * 100 + b"end")
    with host.open_file(str(path)) as file:
        file.seek(-3, os.SEEK_END)
        assert file.read() == b"end"
        assert not file.writable()
    os.mkfifo(tmp_path / "fifo")
    for other in ("/dev/null", str(tmp_path), str(tmp_path / "fifo")):
        assert code_of(partial(host.open_file, other)) == errno.EINVAL
    assert code_of(partial(host.open_file, str(tmp_path / "none"))) == errno.ENOENT

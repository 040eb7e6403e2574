"""Where leases are kept: which folders do, which are refused, and what is said about them."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import warnings
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.errors import DeviceBusyError, GpuCoexistError, UserError
from pytest_gpucoexist.host import local_host, open_recording
from pytest_gpucoexist.leases import places, table
from pytest_gpucoexist.leases.machine import Identity, MachineLeaser
from pytest_gpucoexist.leases.places import Place, find_place
from pytest_gpucoexist.model.groups import Group
from pytest_gpucoexist.model.requirement import Requirement
from tests.machines import GIB

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucoexist.model.machine import Machine

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="places of Linux")

N0, N1 = "0000:41:00.0", "0000:42:00.0"


def needs(*keys: str, memory_bytes: int | None = None, count: int = 1) -> list[Group]:
    return [Group(requirement=Requirement(memory_bytes=memory_bytes, count=count), candidates=keys)]


@pytest.fixture
def roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Stand-ins for /tmp and /var/tmp, and no folder of an administrator."""
    found = (tmp_path / "tmp", tmp_path / "var")
    for each in found:
        each.mkdir()
        each.chmod(0o1777)
    monkeypatch.setattr(places, "_roots", lambda: tuple(map(str, found)))
    monkeypatch.setattr(places, "ADMIN_FOLDER", str(tmp_path / "run"))
    return found


def test_a_named_folder_is_used(folder: Path) -> None:
    place = find_place(local_host(), str(folder))
    assert (place.kind, place.folder, place.locks, place.notes) == ("folder", str(folder), "table", ())
    assert stat.S_IMODE((folder / "table").stat().st_mode) == 0o666
    assert str(folder) in place.where
    assert place.protects.startswith(f"every process that uses {folder}, of whichever user")
    assert any(f"Containers and sessions without {folder} are not held back" in each for each in place.limits)


def test_a_folder_that_is_no_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"gpu_lease_dir: leases cannot be kept in .*: no such file or directory"):
        find_place(local_host(), str(tmp_path / "absent"))
    with pytest.raises(UserError, match=r"it is no folder\. Make it a local folder"):
        find_place(local_host(), str(tmp_path / "file"))


def test_a_link_in_place_of_the_table_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (folder / "table").symlink_to(tmp_path / "victim")
    with pytest.raises(UserError, match=r"its table is a link of user \d+ with mode"):
        find_place(local_host(), str(folder))
    assert (tmp_path / "victim").read_text() == "precious"


def test_what_is_no_plain_file_in_place_of_the_table_is_refused(folder: Path) -> None:
    os.mkfifo(folder / "table")
    with pytest.raises(UserError, match="its table is no plain file"):
        find_place(local_host(), str(folder))


def test_a_dangling_link_makes_no_file(folder: Path, tmp_path: Path) -> None:
    (folder / "table").symlink_to(tmp_path / "made")
    with pytest.raises(UserError):
        find_place(local_host(), str(folder))
    assert not (tmp_path / "made").exists()


def test_what_is_doubtful_about_a_folder_is_said(root: None, folder: Path) -> None:
    folder.chmod(0o777)
    assert find_place(local_host(), str(folder)).notes == (
        f"Anybody may remove the table of {folder}: it should have mode 1777.",
    )
    folder.chmod(0o1777)
    os.chown(folder, 12345, 12345)
    assert find_place(local_host(), str(folder)).notes == (
        f"{folder} belongs to user 12345, who may remove its table.",
    )


@pytest.mark.parametrize(("mode", "table_mode"), [(0o1777, 0o666), (0o2770, 0o660), (0o700, 0o600), (0o755, 0o600)])
def test_who_may_write_the_folder_may_lock(folder: Path, mode: int, table_mode: int) -> None:
    folder.chmod(mode)
    before = os.umask(0o077)
    try:
        find_place(local_host(), str(folder))
    finally:
        os.umask(before)
    assert stat.S_IMODE((folder / "table").stat().st_mode) == table_mode


def test_without_one_the_users_own_folder(roots: tuple[Path, Path]) -> None:
    place = find_place(local_host())
    own = roots[0] / f"gpucoexist-{os.geteuid()}"
    assert (place.kind, place.folder, place.notes) == ("user", str(own), ())
    assert stat.S_IMODE(own.stat().st_mode) == 0o755
    assert stat.S_IMODE((own / "table").stat().st_mode) == 0o600
    assert "of this user" in place.protects
    assert list(places.user_folders()) == [(str(own), os.geteuid())]


def test_the_administrators_folder_comes_first(roots: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(0o1777)
    assert find_place(local_host()).folder == str(tmp_path / "run")
    (tmp_path / "run" / "table").unlink()
    (tmp_path / "run" / "table").symlink_to("/nowhere")
    place = find_place(local_host())
    assert place.kind == "user"
    assert "run is not used: its table is a link" in place.notes[0]


@pytest.mark.parametrize(
    ("spoilt", "words"),
    [("owner", "it belongs to user 12345"), ("mode", "others may write it (mode 0777)"), ("link", "it is no folder")],
)
def test_a_users_folder_that_others_command_is_refused(
    root: None, roots: tuple[Path, Path], spoilt: str, words: str
) -> None:
    own = roots[0] / f"gpucoexist-{os.geteuid()}"
    if spoilt == "link":
        own.symlink_to(roots[1])
    else:
        own.mkdir()
        if spoilt == "owner":
            os.chown(own, 12345, 12345)
        else:
            own.chmod(0o777)
    place = find_place(local_host())
    assert place.folder == str(roots[1] / own.name)
    assert len(place.notes) == 1
    assert words in place.notes[0]


def test_where_no_folder_can_be_written_it_is_said(
    roots: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, box: Machine
) -> None:
    def refuse(path: str, mode: int = 0o777) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    monkeypatch.setattr(os, "mkdir", refuse)
    place = find_place(local_host())
    assert (place.kind, place.folder, place.locks) == ("process", None, "process")
    assert [each.endswith("is not used: read-only file system.") for each in place.notes] == [True, True]
    one, two = (MachineLeaser(lambda: box, place, Identity("s")) for _ in range(2))
    lease = one.acquire(needs(N0), "test_a")
    with pytest.raises(DeviceBusyError):
        two.acquire(needs(N0), "test_b", timeout_s=0)
    one.release(lease)
    assert two.acquire(needs(N0, N1, count=2), "test_b").keys == (N0, N1)
    assert one.token(lease) is None
    two.close()


@pytest.mark.parametrize("named", [False, True])
def test_who_has_no_descriptor_left_gets_no_worse_place(roots: tuple[Path, Path], folder: Path, *, named: bool) -> None:
    """Others would take the better one: they would not meet."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    used: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, before[1]))
        with contextlib.suppress(OSError):
            while True:
                used.append(os.open(os.devnull, os.O_RDONLY))
        with pytest.raises(GpuCoexistError, match="no place for leases can be looked for: too many open files"):
            find_place(local_host(), str(folder) if named else None)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for each in used:
            os.close(each)
    assert find_place(local_host()).kind == "user"


def test_a_file_system_without_ranges_has_whole_devices(
    folder: Path, monkeypatch: pytest.MonkeyPatch, box: Machine
) -> None:
    def refuse(fd: int, start: int, length: int, *, shared: bool = False) -> bool:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(places, "lock", refuse)
    place = find_place(local_host(), str(folder))
    assert place.locks == "flock"
    assert place.notes == ("Devices are leased whole: its file system has no locks on ranges (Invalid argument).",)
    assert any("always leased whole" in each for each in place.limits)
    one, two = (MachineLeaser(lambda: box, place, Identity("s")) for _ in range(2))
    lease = one.acquire(needs(N0, memory_bytes=GIB), "test_a")
    with pytest.raises(DeviceBusyError):
        two.acquire(needs(N0, memory_bytes=GIB), "test_b", timeout_s=0)
    one.release(lease)
    two.acquire(needs(N0, memory_bytes=GIB), "test_b")
    two.close()


def test_a_table_of_another_user_that_is_closed_to_others(everybodys: Path) -> None:
    """Names whose it is: only that user or an administrator can help."""
    folder = everybodys
    find_place(local_host(), str(folder))
    os.chown(folder / "table", 12345, 12345)
    (folder / "table").chmod(0o600)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of other tests: this child only opens files
        pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.setgroups([])
            os.setgid(54321)
            os.setuid(54321)
            find_place(local_host(), str(folder))
        except UserError as error:
            status = 0 if "its table is a file of user 12345 with mode 0600 (permission denied)" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_sticky_folder_with_protected_files_works(root: None, folder: Path) -> None:
    """The kernel forbids O_CREAT on another user's file there (fs.protected_regular); the table is opened without."""
    path = "/proc/sys/fs/protected_regular"
    try:
        with open(path) as setting:
            before = setting.read()
        with open(path, "w") as setting:
            setting.write("2")
    except OSError as error:
        pytest.skip(f"needs to set fs.protected_regular: {error}")
    try:
        find_place(local_host(), str(folder))
        os.chown(folder / "table", 12345, 12345)
        with pytest.raises(PermissionError):
            os.open(folder / "table", os.O_RDWR | os.O_CREAT)
        assert find_place(local_host(), str(folder)).folder == str(folder)
    finally:
        with open(path, "w") as setting:
            setting.write(before)


def test_a_replayed_machine_locks_no_function_here(shared: Path, roots: tuple[Path, Path]) -> None:
    recording = next((shared / "machines").rglob("*.tar.xz"))
    assert find_place(open_recording(str(recording))).functions is None


def test_the_administrators_lines_make_what_is_looked_for() -> None:
    kinds = [line.split()[:3] for line in places.TMPFILES.splitlines() if not line.startswith("#")]
    assert kinds == [["d", "/run/gpucoexist", "1777"], ["f", f"/run/gpucoexist/{table.NAME}", "0666"]]


def test_what_every_place_says() -> None:
    for kind in ("folder", "user", "process"):
        for functions in (None, places.FUNCTIONS):
            place = Place(kind=kind, folder=None if kind == "process" else "/x", functions=functions)
            assert place.where
            assert place.protects
            assert all(each.endswith(".") for each in place.limits)
            assert ("network namespace" in " ".join(place.limits)) == (functions is not None)

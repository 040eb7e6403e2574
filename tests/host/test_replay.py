"""A recorded machine answers as its kernel did: links inside the tree, errors with their errno, no guesses."""

from __future__ import annotations

import errno
import json
import os
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.errors import RecordingError
from pytest_gpucoexist.host import open_recording
from pytest_gpucoexist.host.base import HelperReply, Host, Identity, Node
from pytest_gpucoexist.host.layout import MountedTree, find_mounts
from pytest_gpucoexist.host.manifest import Manifest, ProgramRun
from pytest_gpucoexist.host.replay import ReplayHost
from pytest_gpucoexist.host.tree import FolderTree, MemoryTree
from pytest_gpucoexist.host.writing import write_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GPU = "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0"


def a_tree() -> MemoryTree:
    tree = MemoryTree()
    tree.add_file(f"{GPU}/vendor", b"0x10de\n")
    tree.add_file(f"{GPU}/padded", b"nvidia\0\0\0\0")
    tree.add_file(f"{GPU}/garbage", b"\xff\xfe\x00\x01")
    tree.add_link("/sys/bus/pci/devices/0000:01:00.0", "../../../devices/pci0000:00/0000:00:01.0/0000:01:00.0")
    tree.add_link(f"{GPU}/driver", "../../../../bus/pci/drivers/nvidia")
    tree.add_link("/sys/class/drm/card0", "../../bus/pci/devices/0000:01:00.0/drm/card0")
    tree.add_file(f"{GPU}/drm/card0/dev", b"226:0\n")
    tree.add_link(f"{GPU}/drm/card0/device", "../../../0000:01:00.0")
    tree.add_link("/sys/loop/a", "b")
    tree.add_link("/sys/loop/b", "a")
    tree.add_link("/sys/self", ".")
    tree.add_link("/sys/absolute", "/sys/bus/pci")
    tree.add_link("/sys/above", "../../../../sys/bus")
    return tree


@pytest.fixture(params=["memory", "folder", "mounted"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Host:
    tree = a_tree()
    if request.param == "memory":
        return ReplayHost(tree, name="m")
    if request.param == "mounted":
        return ReplayHost(MountedTree(tree, find_mounts(tree, "m")), name="m")
    for path, kind in tree.walk():
        target = tmp_path / "m" / path[1:]
        target.parent.mkdir(parents=True, exist_ok=True)
        if kind == "file":
            target.write_bytes(tree.read(path, 100))
        elif kind == "link":
            target.symlink_to(tree.target(path))
    return open_recording(str(tmp_path / "m"))


def code_of(call: Callable[[], object]) -> int | None:
    try:
        call()
    except OSError as exc:
        return exc.errno
    pytest.fail("no error")


def test_it_is_a_host(host: Host) -> None:
    assert isinstance(host, Host)
    assert (host.name, host.simulated, host.platform, dict(host.environ)) == ("m", True, "linux", {})


def test_links_are_followed_through_folders_that_are_links(host: Host) -> None:
    assert host.resolve("/sys/class/drm/card0/device") == GPU
    assert host.read_text("/sys/class/drm/card0/device/vendor") == "0x10de"
    assert host.read_text("/sys/absolute/devices/0000:01:00.0/vendor") == "0x10de"
    assert host.read_text("/sys/self/self/class/drm/card0/dev") == "226:0"
    assert host.resolve("/") == "/"


def test_links_above_the_root_stay_at_the_root(host: Host) -> None:
    assert host.resolve("/sys/above/pci") == "/sys/bus/pci"
    assert host.read_text("/../../sys/bus//pci/./devices/0000:01:00.0/vendor") == "0x10de"


def test_text_loses_padding_and_keeps_the_rest(host: Host) -> None:
    assert host.read_text(f"{GPU}/padded") == "nvidia"
    assert host.read_text(f"{GPU}/garbage") == "\ufffd\ufffd\0\x01"
    assert host.read_bytes(f"{GPU}/padded", 3) == b"nvi"


def test_listings_are_sorted(host: Host) -> None:
    assert host.list_dir(GPU) == ["driver", "drm", "garbage", "padded", "vendor"]


def test_errors_are_the_kernels(host: Host) -> None:
    assert code_of(lambda: host.read_bytes("/sys/nothing")) == errno.ENOENT
    assert code_of(lambda: host.read_bytes(f"{GPU}/driver")) == errno.ENOENT
    assert code_of(lambda: host.read_bytes(f"{GPU}/vendor/deeper")) == errno.ENOTDIR
    assert code_of(lambda: host.read_bytes(GPU)) == errno.EISDIR
    assert code_of(lambda: host.list_dir(f"{GPU}/vendor")) == errno.ENOTDIR
    assert code_of(lambda: host.read_bytes("/sys/loop/a")) == errno.ELOOP
    assert code_of(lambda: host.resolve("/sys/loop/a/x")) == errno.ELOOP
    assert code_of(lambda: host.read_link(f"{GPU}/vendor")) == errno.EINVAL
    assert code_of(lambda: host.read_link(f"{GPU}/none")) == errno.ENOENT
    assert code_of(lambda: host.stat("/sys/loop/b")) == errno.ELOOP


def test_links_are_read_though_they_dangle(host: Host) -> None:
    assert host.read_link("/sys/bus/pci/devices/0000:01:00.0/driver") == "../../../../bus/pci/drivers/nvidia"
    assert not host.exists(f"{GPU}/driver")
    assert host.exists("/sys/class/drm/card0")


def test_stat_tells_files_from_folders(host: Host) -> None:
    assert host.stat(f"{GPU}/vendor").kind == "file"
    assert host.stat(f"{GPU}/vendor").size_bytes == 7
    assert host.stat("/sys/class/drm/card0/device").kind == "dir"


def test_a_recording_covers_only_what_it_has(host: Host) -> None:
    assert host.covers("/sys/bus/pci/devices/0000:09:00.0")
    assert host.covers("/sys/class/drm/card7")
    for path in ("/dev/kfd", "/proc/modules", "/sys/class/kfd/kfd", "/sys/module/nvidia", "/etc/os-release"):
        assert not host.covers(path)


def test_access_to_what_is_not_recorded_is_not_known(host: Host) -> None:
    assert code_of(lambda: host.may_open("/dev/nvidia0", write=True)) == errno.ENODATA


def test_programs_and_helpers_that_were_not_recorded(host: Host) -> None:
    assert code_of(lambda: host.run(["modinfo", "nvidia"])) == errno.ENOENT
    replies = host.ask_all(["nvml", "amdsmi"])
    assert {reply.status for reply in replies.values()} == {"absent"}
    assert host.ask("nvml").detail == "not recorded"
    assert host.identity().uid == 65534


def test_a_folder_is_not_left_through_its_links(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("outside")
    (tmp_path / "m/sys").mkdir(parents=True)
    (tmp_path / "m/sys/direct").symlink_to(tmp_path / "secret")
    (tmp_path / "m/sys/folder").symlink_to(tmp_path)
    (tmp_path / "m/sys/relative").symlink_to("../../secret")
    host = open_recording(str(tmp_path / "m"))
    for path in ("/sys/direct", "/sys/folder/secret", "/sys/relative", "/../secret", "/sys/../../secret"):
        assert not host.exists(path)
        assert code_of(lambda path=path: host.read_bytes(path)) == errno.ENOENT  # type: ignore[misc]


def test_special_files_in_a_folder_are_never_opened(tmp_path: Path) -> None:
    (tmp_path / "sys").mkdir()
    os.mkfifo(tmp_path / "sys/pipe")  # opening it would wait for a writer
    host = open_recording(str(tmp_path))
    assert host.stat("/sys/pipe").kind == "other"
    assert code_of(lambda: host.read_bytes("/sys/pipe")) == errno.ENODATA


def test_a_folder_under_a_trailing_slash_and_a_name_that_no_file_has(tmp_path: Path) -> None:
    (tmp_path / "machine/sys").mkdir(parents=True)
    host = open_recording(f"{tmp_path}/machine/")
    assert host.name == "machine"
    assert not host.exists("/sys/\0")
    assert FolderTree("/").kind("") == "dir"
    assert "sys" in FolderTree("/").names("")
    assert FolderTree("/").node("").kind == "dir"


class TestManifest:
    def host(self, **fields: object) -> ReplayHost:
        return ReplayHost(a_tree(), Manifest(**fields), name="m", time=5.0)  # type: ignore[arg-type]

    def test_errors_of_reading_are_replayed_by_any_name(self) -> None:
        host = self.host(errors={f"{GPU}/vendor": errno.EACCES, GPU: errno.EPERM, "/sys/x": errno.EIO})
        assert code_of(lambda: host.read_bytes(f"{GPU}/vendor")) == errno.EACCES
        assert code_of(lambda: host.read_text("/sys/class/drm/card0/device/vendor")) == errno.EACCES
        assert code_of(lambda: host.list_dir(GPU)) == errno.EPERM
        assert host.stat(f"{GPU}/vendor").kind == "file"
        assert code_of(lambda: host.stat("/sys/x")) == errno.EIO
        assert host.read_bytes(f"{GPU}/padded", 2) == b"nv"

    def test_listings_may_name_more_than_the_tree_holds(self) -> None:
        host = self.host(listings={GPU: ("vendor", "zzz", "aaa")})
        assert host.list_dir("/sys/class/drm/card0/device") == ["aaa", "vendor", "zzz"]

    def test_nodes_are_entries(self) -> None:
        node = Node(kind="chardev", mode=0o660, gid=105, major=226, minor=128)
        host = self.host(
            nodes={
                "/dev/dri/renderD128": node,
                "/proc/7": Node(kind="dir"),
                f"{GPU}/vendor": Node(kind="file", mode=0o400),
            }
        )
        assert host.stat("/dev/dri/renderD128") == node
        assert host.list_dir("/dev/dri") == ["renderD128"]
        assert host.list_dir("/proc/7") == []
        assert host.stat(f"{GPU}/vendor").mode == 0o400
        assert host.read_text(f"{GPU}/vendor") == "0x10de"
        assert code_of(lambda: host.read_bytes("/dev/dri/renderD128")) == errno.ENODATA

    def test_a_manifest_that_contradicts_itself_still_opens(self) -> None:
        host = self.host(nodes={"/dev/a": Node(kind="file"), "/dev/a/b": Node(kind="file")})
        assert host.list_dir("/dev") == ["a"]

    def test_recorded_access_wins(self) -> None:
        host = self.host(may_open={"/dev/kfd": {"read": 0, "write": errno.EPERM}})
        host.may_open("/dev//kfd/", write=False)
        assert code_of(lambda: host.may_open("/dev/kfd", write=True)) == errno.EPERM

    @pytest.mark.parametrize(
        ("uid", "groups", "mode", "code"),
        [
            (0, (0,), 0o000, None),
            (1000, (1000, 105), 0o660, None),
            (1000, (1000,), 0o660, errno.EACCES),
            (1000, (1000,), 0o666, None),
            (7, (105,), 0o060, errno.EACCES),  # the owner's class decides, although the group's would allow
            (7, (7,), 0o600, None),
            (1000, (105,), 0o606, errno.EACCES),
        ],
    )
    def test_access_by_mode_owner_and_groups(
        self, uid: int, groups: tuple[int, ...], mode: int, code: int | None
    ) -> None:
        node = Node(kind="chardev", mode=mode, uid=7, gid=105)
        host = self.host(nodes={"/dev/kfd": node}, identity=Identity(uid=uid, gid=groups[0], groups=groups))
        if code is None:
            host.may_open("/dev/kfd", write=True)
        else:
            assert code_of(lambda: host.may_open("/dev/kfd", write=True)) == code

    def test_access_without_an_identity_is_known_only_when_everybody_may(self) -> None:
        host = self.host(nodes={"/dev/a": Node(kind="chardev", mode=0o666), "/dev/b": Node(kind="chardev", mode=0o660)})
        host.may_open("/dev/a", write=True)
        assert code_of(lambda: host.may_open("/dev/b", write=True)) == errno.ENODATA
        assert code_of(lambda: host.may_open("/dev/c", write=True)) == errno.ENOENT

    def test_covers_is_what_was_looked_at(self) -> None:
        host = self.host(covers=("/dev", "/sys/class/kfd"))
        assert host.covers("/dev/kfd")
        assert host.covers("/sys/class/kfd/kfd/topology")
        assert not host.covers("/sys/bus/pci/devices")

    def test_programs_helpers_time_and_environment(self) -> None:
        host = self.host(
            time=9.0,
            environ={"A": "1"},
            python_path=("/x",),
            helpers={"nvml": HelperReply(status="ok", data=3)},
            programs=(
                ProgramRun(argv=("modinfo",), returncode=0, stdout="\udcff"),
                ProgramRun(argv=("gone",), error=errno.EACCES),
            ),
        )
        assert host.run(["modinfo"]).stdout == b"\xff"
        assert code_of(lambda: host.run(["gone"])) == errno.EACCES
        assert host.ask("nvml").data == 3
        assert (host.time(), dict(host.environ), host.python_path) == (9.0, {"A": "1"}, ("/x",))
        assert self.host().time() == 5.0

    def test_link_text_that_the_archive_wrote_differently(self, tmp_path: Path) -> None:
        write_folder(a_tree(), Manifest(name="m"), str(tmp_path / "m"))
        assert os.readlink(tmp_path / "m/sys/absolute") == "bus/pci"
        assert open_recording(str(tmp_path / "m")).read_link("/sys/absolute") == "/sys/bus/pci"

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("{", "is not JSON"),
            ("[]", "version None"),
            ('{"record": 2}', "version 2; this release reads version 1"),
            ('{"record": 1, "errors": {"/x": "y"}}', r"does not fit: \$\.errors\./x"),
            ('{"record": 1, "x": ' + "[" * 99999 + "]" * 99999 + "}", "is not JSON"),
            ('{"record": 1, "time": 1e999}', "no time: inf"),
            ('{"record": 1, "errors": {"/x": -5}}', "no errno: -5 of '/x'"),
            ('{"record": 1, "may_open": {"/x": {"read": 1152921504606846976}}}', "no errno: 1152921504606846976"),
            ('{"record": 1, "programs": [{"argv": []}]}', "a program without a name"),
            ('{"record": 1, "nodes": {"x/y": {"kind": "file"}}}', "not an absolute path: 'x/y'"),
            ('{"record": 1, "nodes": {"/x//y": {"kind": "file"}}}', "not an absolute path: '/x//y'"),
            ('{"record": 1, "nodes": {"' + "/x" * 300 + '": {"kind": "file"}}}', "not an absolute path"),
        ],
    )
    def test_a_manifest_that_does_not_fit_is_refused(self, tmp_path: Path, text: str, words: str) -> None:
        (tmp_path / "gpucoexist").mkdir()
        (tmp_path / "gpucoexist/record.json").write_text(text)
        with pytest.raises(RecordingError, match=words):
            open_recording(str(tmp_path))

    def test_unknown_keys_of_a_later_release_are_ignored(self, tmp_path: Path) -> None:
        (tmp_path / "gpucoexist").mkdir()
        (tmp_path / "gpucoexist/record.json").write_text(json.dumps({"record": 1, "later": 1, "name": "n"}))
        assert open_recording(str(tmp_path)).name == "n"

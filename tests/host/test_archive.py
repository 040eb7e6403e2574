"""Archives are read into memory; what would leave the tree or blow it up is refused by name."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import tarfile
from pathlib import Path

import pytest

from pytest_gpucoexist.errors import RecordingError
from pytest_gpucoexist.host import archive
from pytest_gpucoexist.host.archive import load_archive
from pytest_gpucoexist.host.replay import open_recording

Entry = tuple[str, bytes, bytes | str]


def member(name: str, kind: bytes = tarfile.REGTYPE, content: bytes | str = b"") -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type = kind
    data = content if isinstance(content, bytes) else b""
    info.size = len(data)
    if isinstance(content, str):
        info.linkname = content
    return info, data


def write(path: Path, *entries: tuple[tarfile.TarInfo, bytes], mode: str = "w") -> str:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for info, data in entries:
            tar.addfile(info, io.BytesIO(data))
    return str(path)


VENDOR = member("top/sys/bus/pci/devices/0000:01:00.0/vendor", content=b"0x10de\n")


@pytest.mark.parametrize(
    ("suffix", "mode"), [("tar", "w"), ("tar.gz", "w:gz"), ("tar.xz", "w:xz"), ("tar.bz2", "w:bz2")]
)
def test_every_compression_is_read_by_content_whatever_the_name(tmp_path: Path, suffix: str, mode: str) -> None:
    path = write(tmp_path / f"machine.{suffix}", VENDOR, mode=mode)
    host = open_recording(path)
    assert host.read_text("/sys/bus/pci/devices/0000:01:00.0/vendor") == "0x10de"
    assert host.name == "machine"
    os.rename(path, tmp_path / "no-suffix")
    assert open_recording(str(tmp_path / "no-suffix")).list_dir("/sys/bus/pci/devices") == ["0000:01:00.0"]


def test_nothing_is_unpacked_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    path = write(tmp_path / "m.tar.gz", VENDOR, mode="w:gz")
    open_recording(path)
    assert sorted(os.listdir(tmp_path)) == ["m.tar.gz", "temporary"]
    assert os.listdir(tmp_path / "temporary") == []


@pytest.mark.parametrize(
    "entry",
    [
        member("/etc/passwd", content=b"x"),
        member("top/../../etc/passwd", content=b"x"),
        member("../sys/x", content=b"x"),
        member("sys\\..\\x", content=b"x"),
        member("C:/sys/x", content=b"x"),
        member("sys/evil", tarfile.SYMTYPE, "/etc/passwd"),
        member("sys/evil", tarfile.SYMTYPE, "../../etc/passwd"),
        member("top/sys/evil", tarfile.SYMTYPE, "../../../sys/bus"),
        member("sys/evil", tarfile.LNKTYPE, "/etc/passwd"),
        member("sys/evil", tarfile.LNKTYPE, "../etc/passwd"),
        member("sys/evil", tarfile.LNKTYPE, "sys/not/before"),
        member("sys/evil", tarfile.CHRTYPE),
        member("sys/evil", tarfile.BLKTYPE),
        member("sys/evil", tarfile.FIFOTYPE),
    ],
    ids=lambda entry: f"{entry[0].type.decode()} {entry[0].name} {entry[0].linkname}",
)
def test_a_member_that_leaves_the_tree_is_refused_by_name(tmp_path: Path, entry: tuple[tarfile.TarInfo, bytes]) -> None:
    first = member("sys/bus/pci/devices/0000:01:00.0/vendor", content=b"0x10de\n")
    path = write(tmp_path / "m.tar", first, entry)
    with pytest.raises(RecordingError) as error:
        open_recording(path)
    assert repr(entry[0].name) in str(error.value)
    assert "refused" in str(error.value)


def test_a_file_below_a_link_is_refused(tmp_path: Path) -> None:
    path = write(
        tmp_path / "m.tar",
        member("sys/outside", tarfile.SYMTYPE, "bus"),
        member("sys/outside/planted", content=b"x"),
    )
    with pytest.raises(RecordingError, match="'sys/outside/planted' lies below"):
        load_archive(path)


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("sys/bus/pci/devices/0000:01:00.0", "../../../devices/pci0000:00/0000:01:00.0"),
        ("sys/gone", "../sys/never/recorded"),
        ("proc/self/fd/3", "/home/somebody/secret"),
        ("proc/123/exe", "/usr/bin/python3"),
        ("top/proc/1/ns/net", "net:[4026531840]"),
        ("sys/class/x", "/sys/devices/x"),
        ("sys/fs/cgroup/dev-disk-by\\x2duuid.device", "../x"),
        ("etc/alternatives/libcuda.so", "/usr/lib/libcuda.so.1"),
    ],
)
def test_links_inside_and_links_that_dangle_are_kept(tmp_path: Path, name: str, target: str) -> None:
    path = write(
        tmp_path / "m.tar",
        member("usr/lib/placeholder"),
        member(name, tarfile.SYMTYPE, target),
    )
    assert load_archive(path).target(f"/{name}") == target


def test_in_a_part_of_sysfs_the_kernels_own_links_dangle(tmp_path: Path) -> None:
    path = write(
        tmp_path / "m.tar",
        member("card1/device/vendor", content=b"0x1002\n"),
        member("card1/device/driver", tarfile.SYMTYPE, "../../../../../bus/pci/drivers/amdgpu"),
    )
    host = open_recording(path)
    assert host.read_link("/sys/class/drm/card1/device/driver").endswith("/amdgpu")
    assert not host.exists("/sys/class/drm/card1/device/driver")


def test_a_hard_link_to_an_earlier_file_has_its_content(tmp_path: Path) -> None:
    path = write(tmp_path / "m.tar", VENDOR, member("top/sys/again", tarfile.LNKTYPE, VENDOR[0].name))
    assert open_recording(path).read_text("/sys/again") == "0x10de"


def test_the_number_of_members_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_MEMBERS", 10)
    path = write(tmp_path / "m.tar", *(member(f"sys/{number}") for number in range(11)))
    with pytest.raises(RecordingError, match="more than 10 members"):
        load_archive(path)


def test_the_size_of_a_member_is_bounded_by_what_it_claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_FILE_BYTES", 1000)
    path = write(tmp_path / "m.tar", member("sys/large", content=b"x" * 1001))
    with pytest.raises(RecordingError, match="'sys/large' has 1001 bytes"):
        load_archive(path)


def test_a_sparse_member_is_refused(tmp_path: Path) -> None:
    info, _data = member("sys/sparse")
    info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(2**40)}
    block = b"0\n".ljust(512, b"\0")
    info.size = len(block)
    path = write(tmp_path / "m.tar", (info, block))
    with pytest.raises(RecordingError, match="'sys/sparse' is a device, pipe or sparse file"):
        load_archive(path)


@pytest.mark.parametrize("squeeze", [gzip.compress, lzma.compress])
def test_a_decompression_bomb_is_refused_while_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, squeeze: object
) -> None:
    monkeypatch.setattr(archive, "MAX_UNPACKED_BYTES", 2**20)
    bomb = tmp_path / "bomb.tar"
    # The header claims little; the archive goes on behind it. Only counting what comes out of the unpacker helps.
    path = write(bomb, *(member(f"sys/{number}", content=b"\0" * 100_000) for number in range(40)))
    packed = squeeze(Path(path).read_bytes())  # type: ignore[operator]
    assert len(packed) < 30_000
    bomb.write_bytes(packed)
    with pytest.raises(RecordingError, match="unpacks to more than 1048576 bytes"):
        load_archive(path)


def test_an_archive_of_several_streams_is_one(tmp_path: Path) -> None:
    path = Path(write(tmp_path / "m.tar", VENDOR))
    data = path.read_bytes()
    path.write_bytes(gzip.compress(data[:700]) + gzip.compress(data[700:]) + b"\0" * 100)
    assert load_archive(str(path)).kind("/top/sys/bus/pci/devices/0000:01:00.0/vendor") == "file"


@pytest.mark.parametrize("squeeze", [gzip.compress, lzma.compress, bytes])
def test_an_archive_that_is_cut_short_is_refused(tmp_path: Path, squeeze: object) -> None:
    path = Path(write(tmp_path / "m.tar", member("sys/noise", content=os.urandom(50_000))))
    data = squeeze(path.read_bytes())  # type: ignore[operator]
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(RecordingError, match=r"cut short|not a readable tar archive"):
        load_archive(str(path))


@pytest.mark.parametrize(
    "content", [b"", b"just text\n" * 100, b"\x1f\x8bgarbage", b"\xfd7zXZ\x00garbage", b"BZh9garbage", b"PK\x03\x04zip"]
)
def test_what_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.tar.gz"
    path.write_bytes(content)
    with pytest.raises(RecordingError, match=r"m\.tar\.gz"):
        open_recording(str(path))


def test_a_missing_recording_says_so(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"cannot open the recording .*No such file"):
        open_recording(str(tmp_path / "none.tar.gz"))


def test_the_root_member_itself_means_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "m.tar", member(".", tarfile.DIRTYPE), member("./sys/x", content=b"1\n"))
    assert open_recording(path).read_text("/sys/x") == "1"


def test_a_damaged_disk_is_not_a_damaged_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "m.tar.gz", VENDOR, mode="w:gz")

    def broken(*_args: object) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(archive._BoundedReader, "read", broken)
    with pytest.raises(RecordingError, match="Input/output error"):
        open_recording(path)


def test_a_member_cut_short_behind_a_whole_header(tmp_path: Path) -> None:
    path = Path(write(tmp_path / "m.tar", member("sys/noise", content=b"x" * 5000)))
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(RecordingError, match=r"cut short in member 'sys/noise'|unexpected end of data"):
        load_archive(str(path))


@pytest.mark.parametrize("name", ["m/sys/" + "a/" * 70 + "x", "m/sys/" + "a" * 1100])
def test_paths_that_no_machine_has_are_refused(tmp_path: Path, name: str) -> None:
    """A folder is kept for every name above a member: a long path is a bomb of its own."""
    with pytest.raises(RecordingError, match=r"letters in \d+ folders; refused"):
        load_archive(write(tmp_path / "m.tar", member(name, content=b"1")))


def test_folders_that_members_only_imply_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_MEMBERS", 20)
    entries = [member(f"m/sys/{number}/" + "a/" * 30 + "x", content=b"1") for number in range(3)]
    assert load_archive(write(tmp_path / "few.tar", *entries[:1])).kind("/m/sys/0") == "dir"
    with pytest.raises(RecordingError, match="more than 20 folders; refused"):
        load_archive(write(tmp_path / "many.tar", *entries))

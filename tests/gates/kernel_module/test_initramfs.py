"""What an initramfs has, against the disk."""

from __future__ import annotations

import errno
import gzip
import io
import lzma
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings, strategies as st

from pytest_gpucoexist.gates.kernel_module.archive import CannotUnpack, members
from tests.gates.judging import verdict, verdicts
from tests.gates.kernel_module.installed import KERNEL, a_module, wanting, with_modules

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucoexist.testing.builder import MachineBuilder

GATE = "kmod.initramfs_drift"
INITRD = f"/boot/initrd.img-{KERNEL}"
CONF = "etc/modprobe.d/blacklist-nouveau.conf"
NVIDIA = f"usr/lib/modules/{KERNEL}/updates/dkms/nvidia.ko"
NOUVEAU = f"usr/lib/modules/{KERNEL}/kernel/drivers/gpu/drm/nouveau/nouveau.ko.zst"


def cpio(files: Mapping[str, bytes]) -> bytes:
    """Pack files in the format newc."""
    packed = b""
    for name, data in {**files, "TRAILER!!!": b""}.items():
        text = name.encode() + b"\0"
        fields = (1, 0o100644, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(text), 0)
        head = b"070701" + b"".join(f"{field:08X}".encode() for field in fields) + text
        packed += head + bytes(-len(head) % 4) + data + bytes(-len(data) % 4)
    return packed + bytes(-len(packed) % 512)


MICROCODE = cpio({"kernel/x86/microcode/AuthenticAMD.bin": b"\0" * 100})


def nvidia(inside: Mapping[str, bytes], *, version: str = "570.133.07") -> MachineBuilder:
    """A machine with nvidia and a blacklist of nouveau on disk, and an initramfs with these files."""
    machine = with_modules(wanting("rtx4090"), {"updates/dkms/nvidia.ko": a_module("nvidia", version=version)})
    machine = machine.with_file(f"/{CONF}", "blacklist nouveau\n")
    return machine.with_file(INITRD, MICROCODE + gzip.compress(cpio(inside), mtime=0))


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress])
def test_members_of_several_archives(pack: type[bytes]) -> None:
    content = MICROCODE + pack(cpio({"./usr/a.conf": b"12345", "usr/b": b"", "init": b"#!"}))
    found = list(members(io.BytesIO(content), lambda path: path != "init"))
    assert found == [("kernel/x86/microcode/AuthenticAMD.bin", b"\0" * 100), ("usr/a.conf", b"12345"), ("usr/b", b"")]


@pytest.mark.proves(GATE, "PASS", on="tree")
def test_an_initramfs_that_agrees() -> None:
    inside = {NVIDIA: a_module("nvidia", version="570.133.07"), NOUVEAU: b"", CONF: b"blacklist nouveau\n"}
    said = verdict(nvidia(inside), GATE)
    assert said.status == "PASS"
    assert said.evidence[0].found == "drivers: nvidia, nouveau; agree with the disk"
    assert verdict(nvidia({"init": b""}), GATE).status == "PASS"


@pytest.mark.proves(GATE, "WARN", on="tree")
def test_an_initramfs_with_the_driver_before_the_update() -> None:
    said = verdict(nvidia({NVIDIA: a_module("nvidia", version="565.77")}), GATE)
    assert said.status == "WARN"
    assert said.reason == "the initramfs has another nvidia than the disk: version 565.77, not 570.133.07"
    assert said.fix[0].lines[0] == "sudo update-initramfs -u"


@pytest.mark.proves(GATE, "WARN", on="tree")
def test_an_initramfs_before_the_blacklist() -> None:
    """The line is on disk, and nouveau still takes the card at every boot: the initramfs loads it before."""
    said = verdict(nvidia({NOUVEAU: b""}), GATE)
    assert said.reason == "the initramfs loads nouveau without `blacklist nouveau`"
    assert said.evidence[0].source == f"/{CONF}:1"


def test_an_option_that_the_initramfs_does_not_have() -> None:
    machine = wanting("rx7900xtx").with_file("/etc/modprobe.d/amdgpu.conf", "options amdgpu runpm=0\n")
    path = f"lib/modules/{KERNEL}/kernel/drivers/gpu/drm/amd/amdgpu/amdgpu.ko"
    machine = machine.with_file(INITRD, cpio({path: a_module("amdgpu")}))
    assert [each.reason for each in verdicts(machine, GATE)] == [
        "the initramfs loads amdgpu without `options amdgpu runpm=0`"
    ]


def test_the_initramfs_of_other_distributions() -> None:
    machine = nvidia({}).without(INITRD)
    assert verdict(machine, GATE).status == "SKIP"
    content = cpio({NOUVEAU: b""})
    for path in (f"/boot/initramfs-{KERNEL}.img", f"/boot/initrd-{KERNEL}", "/boot/initramfs-linux-lts.img"):
        there = machine.with_file(path, content).with_file(f"/lib/modules/{KERNEL}/pkgbase", "linux-lts\n")
        assert verdict(there, GATE).status == "WARN"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it ends too early"),
        (MICROCODE + b"\x02\x21\x4c\x18" + b"x" * 20, "compressed by lz4"),
        (b"not an archive" * 20, "it is no cpio archive"),
        (gzip.compress(cpio({NVIDIA: b"1" * 5000}), mtime=0)[:40], "cannot be unpacked"),
        (cpio({NVIDIA: b"1" * 5000})[:2000], "it ends too early"),
    ],
)
@pytest.mark.proves(GATE, "UNKNOWN", on="tree")
def test_an_initramfs_that_cannot_be_unpacked(content: bytes, words: str) -> None:
    said = verdict(nvidia({}).with_file(INITRD, content), GATE)
    assert said.status == "UNKNOWN"
    assert words in said.reason


def test_an_initramfs_that_only_root_may_read() -> None:
    said = verdict(nvidia({}).with_error(INITRD, errno.EACCES), GATE)
    assert said.status == "UNKNOWN"
    assert "Permission denied" in said.reason


def test_a_container_and_level_quick() -> None:
    assert verdict(nvidia({NOUVEAU: b""}).with_file("/.dockerenv", ""), GATE).status == "SKIP"


WHOLE = MICROCODE + cpio({NVIDIA: a_module("nvidia"), CONF: b"blacklist nouveau\n"})


@settings(max_examples=100)
@given(st.data())
def test_no_damaged_archive_breaks_the_reader(data: st.DataObject) -> None:
    content = bytearray(WHOLE[: data.draw(st.integers(0, len(WHOLE)))])
    for place in data.draw(st.lists(st.integers(0, len(WHOLE) - 1), max_size=6)):
        if place < len(content):
            content[place] = data.draw(st.integers(0, 255))
    with suppress(CannotUnpack):
        list(members(io.BytesIO(bytes(content)), lambda _path: True))


def test_zstd_where_python_reads_it() -> None:
    zstd = pytest.importorskip("compression.zstd", reason="zstd is in the standard library from Python 3.14 on")
    machine = nvidia({}).with_file(INITRD, MICROCODE + zstd.compress(cpio({NOUVEAU: b""})))
    assert verdict(machine, GATE).status == "WARN"


def test_zstd_where_python_does_not_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "compression", None)
    said = verdict(nvidia({}).with_file(INITRD, MICROCODE + b"\x28\xb5\x2f\xfd" + bytes(20)), GATE)
    assert said.status == "UNKNOWN"
    assert "compressed by zstd, which Python reads from version 3.14 on" in said.reason

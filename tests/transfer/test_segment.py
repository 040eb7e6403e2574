"""One segment in two processes: sealed, present, on its node, opened by a descriptor, and gone without a trace."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.errors import SegmentError
from pytest_gpucoexist.transfer import nodes, segment as segment_module
from pytest_gpucoexist.transfer.segment import Layout, Place, Segment
from tests.transfer.bench import left_behind
from tests.transfer.remote import Remote

if TYPE_CHECKING:
    from collections.abc import Iterator

LAYOUT = Layout(slots=3, slot_bytes=10_000)


@pytest.fixture
def segment() -> Iterator[Segment]:
    """A small segment; nothing of it may be left after the test."""
    before = left_behind()
    made = Segment.create(LAYOUT)
    yield made
    made.close()
    assert left_behind() == before


def test_slots_begin_on_pages_and_have_guards_on_both_sides(segment: Segment) -> None:
    addresses = [segment.slot_address(slot) for slot in range(3)]
    assert [address % mmap.PAGESIZE for address in addresses] == [0, 0, 0]
    edges = [segment.address + 4096, *addresses, segment.address + segment.size_bytes]
    ends = [edges[0], *(address + LAYOUT.slot_bytes for address in addresses)]
    assert all(begin - end >= LAYOUT.guard_bytes for begin, end in zip(edges[1:], ends, strict=True))
    with pytest.raises(IndexError, match="slot 3 of 3"):
        segment.slot_address(3)


def test_it_can_neither_shrink_nor_grow(segment: Segment) -> None:
    for size in (4096, segment.size_bytes * 2):
        with pytest.raises(PermissionError):
            os.ftruncate(segment.descriptor, size)
    with pytest.raises(PermissionError):
        fcntl.fcntl(segment.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_every_page_is_there_before_it_is_used(segment: Segment) -> None:
    assert os.fstat(segment.descriptor).st_blocks * 512 >= segment.size_bytes


@pytest.mark.parametrize("how", ["passed", "found"])
def test_another_process_maps_the_same_memory(segment: Segment, how: str) -> None:
    address = segment.slot_address(2)
    with Remote(descriptors=(segment.descriptor,) if how == "passed" else ()) as other:
        before = other.ask("left")
        base = other.ask("attach", segment.descriptor if how == "passed" else segment.place)
        other.ask("put", base + LAYOUT.offset(2), b"written over there")
        assert os.pread(segment.descriptor, 18, address - segment.address) == b"written over there"
        segment.control.announce("sender", 77, 1 << 40, 1 << 20)
        assert other.ask("get", base + 0x80 + 16, 4) == (77).to_bytes(4, sys.byteorder)
        other.ask("close")
        after = other.ask("left")
        assert after == before
        assert other.end() == 0


def test_what_a_killed_process_had_is_gone(segment: Segment) -> None:
    with Remote() as other:
        other.ask("attach", segment.place)
        other.signal(signal.SIGKILL)
        assert other.end() == -signal.SIGKILL
    assert segment.control.announced("sender") == (0, 0, 0)


def test_a_process_that_has_closed_it(segment: Segment) -> None:
    place = segment.place
    segment.close()
    segment.close()
    with Remote() as other, pytest.raises(SegmentError, match=r"No such file.*has ended, or has closed it"):
        other.ask("attach", place)
    for use in (lambda: segment.slot_address(0), lambda: segment.control, lambda: segment.size_bytes):
        with pytest.raises(SegmentError, match="the segment is closed"):
            use()


def test_a_process_that_has_ended() -> None:
    with Remote() as other:
        place = Place(pid=other.pid, descriptor=3)
    with pytest.raises(SegmentError, match=rf"cannot open the segment /proc/{place.pid}/fd/3: .*has ended"):
        Segment.open_at(place)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: only root can become another user")
def test_another_user_s_process(segment: Segment) -> None:
    code = (
        "import os, sys; from pytest_gpucoexist.transfer.segment import Place, Segment\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        f"Segment.open_at(Place(pid={os.getpid()}, descriptor={segment.descriptor}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "SegmentError: cannot open the segment" in done.stderr
    assert "Permission denied; the process belongs to another user" in done.stderr


def test_other_files_are_no_segments(tmp_path: Any) -> None:
    before = left_behind()
    path = tmp_path / "file"
    path.write_bytes(bytes(8192))
    plain, sealed = os.open(path, os.O_RDWR), os.memfd_create("other", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with pytest.raises(SegmentError, match="not sealed, so it could shrink"):
            Segment.open(plain)
        with pytest.raises(SegmentError, match="not sealed, so it could shrink"):
            Segment.open(sealed)
        os.ftruncate(sealed, 8192)
        fcntl.fcntl(sealed, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        with pytest.raises(SegmentError, match="another program's memory"):
            Segment.open(sealed)
        os.pwrite(sealed, segment_module._HEADER.pack(b"gpucoex\0", 1, 0, 8192, 1000, 1000, 0), 0)
        with pytest.raises(SegmentError, match="another version of this package: version 1, 8192 bytes of 8192"):
            Segment.open(sealed)
    finally:
        os.close(plain)
        os.close(sealed)
    assert left_behind() == before


def test_another_descriptor_of_a_process_is_no_segment() -> None:
    before = left_behind()
    with Remote() as other, pytest.raises(SegmentError, match="not a segment"):
        Segment.open_at(Place(pid=other.pid, descriptor=0))
    assert left_behind() == before


def test_sizes_that_are_none() -> None:
    for layout in (Layout(slots=0, slot_bytes=1), Layout(slots=1, slot_bytes=0)):
        with pytest.raises(SegmentError, match="both must be positive"):
            Segment.create(layout)


def test_more_memory_than_there_is_leaves_nothing() -> None:
    before = left_behind()
    with pytest.raises(
        SegmentError, match=r"no shared memory of \d+ bytes: no transparent huge pages: .*no base pages"
    ):
        Segment.create(Layout(slots=1, slot_bytes=1 << 60))
    assert left_behind() == before


def test_reserved_huge_pages_or_why_not(segment: Segment) -> None:
    made = Segment.create(LAYOUT, huge_pages="reserved")
    try:
        assert made.pages == "reserved" or any("no reserved huge pages: " in reason for reason in made.reasons)
        assert made.size_bytes >= LAYOUT.size_bytes
    finally:
        made.close()


def test_an_older_kernel_gets_its_pages_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_module, "_POPULATE_WRITE", 9999)  # EINVAL, as before Linux 5.14
    made = Segment.create(LAYOUT)
    try:
        assert os.fstat(made.descriptor).st_blocks * 512 >= made.size_bytes
    finally:
        made.close()


def test_the_node_of_its_pages() -> None:
    made = Segment.create(LAYOUT, node=0)
    try:
        if any(reason.startswith("not bound to NUMA node 0") for reason in made.reasons):
            pytest.skip(f"needs a kernel that binds memory: {made.reasons}")
        assert made.node() == 0
    finally:
        made.close()


@pytest.mark.parametrize("node", [977, 5000, -1])
def test_a_node_that_is_not_there_is_said(node: int) -> None:
    made = Segment.create(LAYOUT, node=node)
    try:
        assert [reason for reason in made.reasons if f"not bound to NUMA node {node}: " in reason]
    finally:
        made.close()


def test_a_kernel_without_memory_policy_is_said(segment: Segment, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(name: str, *arguments: object) -> int:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(nodes, "syscall", without)
    assert segment.node() is None
    made = Segment.create(LAYOUT, node=0)
    made.close()
    assert made.reasons[-1] == "not bound to NUMA node 0: Function not implemented"

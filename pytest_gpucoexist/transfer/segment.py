"""Memory that two processes share for a staged copy: one memfd, a page of control words, then slots between guards.

It cannot shrink (sealed: a peer cannot make the other one fault), its pages exist before the first copy, they lie on
the node that was asked for, and it is gone with the last descriptor and mapping, whoever dies. What could not be had
is in `reasons`.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import struct
from dataclasses import dataclass
from typing import Literal

from pytest_gpucoexist.errors import SegmentError
from pytest_gpucoexist.transfer.control import HEADER_BYTES, Control
from pytest_gpucoexist.transfer.nodes import bind_mapping, node_of_page

__all__ = ["Layout", "Place", "Segment"]

HugePages = Literal["reserved", "transparent"]

_HEADER = struct.Struct("<8sIIQQQQ")
_MAGIC, _VERSION = b"gpucoex\0", 1
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, Linux 5.14 (asm-generic/mman-common.h): an error where a touch is a SIGBUS
_RESERVED_PAGE_BYTES = 1 << 21  # of MFD_HUGETLB with no size named, on x86-64 and on aarch64 with pages of 4 KiB
_PAGE = mmap.PAGESIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where the slots are. Each begins on a page; between them, before and after, are `guard_bytes` or more."""

    slots: int
    slot_bytes: int
    guard_bytes: int = _PAGE

    @property
    def stride_bytes(self) -> int:
        """From the beginning of a slot to that of the next."""
        return _pages(self.slot_bytes) + _pages(self.guard_bytes)

    @property
    def size_bytes(self) -> int:
        """Everything."""
        return self.offset(self.slots)

    def offset(self, slot: int) -> int:
        """Return where a slot begins."""
        return _pages(HEADER_BYTES) + _pages(self.guard_bytes) + slot * self.stride_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where another process of the same user finds a segment: a descriptor of the process that has it open."""

    pid: int
    descriptor: int

    @property
    def path(self) -> str:
        """The file that opens it."""
        return f"/proc/{self.pid}/fd/{self.descriptor}"


class Segment:
    """A segment that is mapped here. Make one by `create`, `open` or `open_at`; `close` unmaps it.

    `pages` are those that it was made of, where it was made: "reserved", "base", or "transparent", which is a request:
    the kernel follows it as /sys/kernel/mm/transparent_hugepage/shmem_enabled says. `reasons` say what was lacking.
    """

    def __init__(
        self, descriptor: int, mapping: mmap.mmap, layout: Layout, *, pages: str = "", reasons: tuple[str, ...] = ()
    ) -> None:
        self.descriptor = descriptor
        self.layout = layout
        self.pages = pages
        self.reasons = reasons
        self.address = _address(mapping)
        self._control = Control(self.address)
        self._mapping: mmap.mmap | None = mapping

    @classmethod
    def create(
        cls, layout: Layout, *, node: int | None = None, huge_pages: HugePages | None = "transparent"
    ) -> Segment:
        """Make a segment, on a NUMA node where one is given. Raises SegmentError when there is no memory for it.

        Reserved huge pages are taken only when they are asked for, because they were reserved for somebody. What is
        not to be had is done without and named in `reasons`: the pages, the node.
        """
        if layout.slots < 1 or layout.slot_bytes < 1 or layout.guard_bytes < 0:
            raise SegmentError(f"a segment of {layout.slots} slots of {layout.slot_bytes} bytes: both must be positive")
        reasons: list[str] = []
        order = {
            "reserved": ["reserved", "transparent", "base"],
            "transparent": ["transparent", "base"],
            None: ["base"],
        }
        for pages in order[huge_pages]:
            try:
                return cls._made(layout, node, pages, reasons)
            except OSError as error:
                reasons.append(f"no {pages} {'huge ' if pages != 'base' else ''}pages: {error.strerror or error}")
        raise SegmentError(f"no shared memory of {layout.size_bytes} bytes: {'; '.join(reasons)}")

    @classmethod
    def open(cls, descriptor: int) -> Segment:
        """Map a segment by a descriptor that this process was given, and which stays the caller's.

        Raises SegmentError when it is no segment, or one that could shrink.
        """
        own = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
        try:
            return cls._mapped(own, _layout_of(own))
        except BaseException:
            os.close(own)
            raise

    @classmethod
    def open_at(cls, place: Place) -> Segment:
        """Map a segment of another process. Raises SegmentError: gone, not allowed, no segment."""
        try:
            own = os.open(place.path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            why = {
                errno.ENOENT: "the process has ended, or has closed it",
                errno.ESRCH: "the process has ended",
                errno.EACCES: "the process belongs to another user, or may not be looked into (PR_SET_DUMPABLE)",
                errno.EPERM: "the process belongs to another user",
            }.get(error.errno or 0, "a descriptor of another kind")
            raise SegmentError(f"cannot open the segment {place.path}: {error.strerror}; {why}") from None
        try:
            return cls._mapped(own, _layout_of(own))
        except BaseException:
            os.close(own)
            raise

    @property
    def control(self) -> Control:
        """The control words, which must not be used after `close`."""
        self._open()
        return self._control

    @property
    def size_bytes(self) -> int:
        """What is mapped, and what a runtime pins."""
        return len(self._open())

    @property
    def place(self) -> Place:
        """Where another process finds it, as long as this one has it open."""
        return Place(pid=os.getpid(), descriptor=self.descriptor)

    def slot_address(self, slot: int) -> int:
        """Return where a slot begins in this process. Raises IndexError."""
        self._open()
        if not 0 <= slot < self.layout.slots:
            raise IndexError(f"slot {slot} of {self.layout.slots}")
        return self.address + self.layout.offset(slot)

    def node(self) -> int | None:
        """Return the NUMA node of the first slot's first page; None where the kernel does not say."""
        try:
            return node_of_page(self.slot_address(0))
        except OSError:
            return None

    def close(self) -> None:
        """Unmap and close; runtimes must have unpinned it before. A second time does nothing."""
        if self._mapping is not None:
            self._mapping.close()
            self._mapping = None
            os.close(self.descriptor)

    def _open(self) -> mmap.mmap:
        if self._mapping is None:
            raise SegmentError("the segment is closed")
        return self._mapping

    @classmethod
    def _made(cls, layout: Layout, node: int | None, pages: str, reasons: list[str]) -> Segment:
        size = layout.size_bytes
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        if pages == "reserved":
            flags |= os.MFD_HUGETLB
            size = -(-size // _RESERVED_PAGE_BYTES) * _RESERVED_PAGE_BYTES
        descriptor = os.memfd_create("gpucoexist", flags)
        mapping = None
        try:
            os.ftruncate(descriptor, size)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            mapping = mmap.mmap(descriptor, size)
            if pages == "transparent":
                mapping.madvise(mmap.MADV_HUGEPAGE)
            more = _bound(mapping, node)
            _populate(mapping, descriptor)
            header = (_MAGIC, _VERSION, 0, size, layout.slots, layout.slot_bytes, layout.guard_bytes)
            _HEADER.pack_into(mapping, 0, *header)
        except BaseException:
            if mapping is not None:
                mapping.close()
            os.close(descriptor)
            raise
        return cls(descriptor, mapping, layout, pages=pages, reasons=(*reasons, *more))

    @classmethod
    def _mapped(cls, descriptor: int, layout: Layout) -> Segment:
        try:
            mapping = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
            _populate(mapping, descriptor)
        except OSError as error:
            raise SegmentError(f"cannot map a segment of {layout.size_bytes} bytes: {error.strerror}") from None
        return cls(descriptor, mapping, layout)


def _layout_of(descriptor: int) -> Layout:
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:
        seals = 0  # EINVAL: a file that has none
    if not seals & fcntl.F_SEAL_SHRINK:
        raise SegmentError("not a segment: it is not sealed, so it could shrink while it is in use")
    raw = os.pread(descriptor, _HEADER.size, 0)
    size = os.fstat(descriptor).st_size
    if len(raw) < _HEADER.size or raw[: len(_MAGIC)] != _MAGIC:
        raise SegmentError("not a segment: another program's memory")
    _, version, _, told, slots, slot_bytes, guard_bytes = _HEADER.unpack(raw)
    layout = Layout(slots=slots, slot_bytes=slot_bytes, guard_bytes=guard_bytes)
    if version != _VERSION or told != size or layout.size_bytes > size:
        found = f"version {version}, {told} bytes of {size}"
        raise SegmentError(f"a segment of another version of this package: {found}")
    return layout


def _bound(mapping: mmap.mmap, node: int | None) -> list[str]:
    if node is None:
        return []
    try:
        bind_mapping(_address(mapping), len(mapping), node)
    except OSError as error:
        return [f"not bound to NUMA node {node}: {error.strerror}"]
    return []


def _populate(mapping: mmap.mmap, descriptor: int) -> None:
    """Make every page. Raises OSError where there is no memory for them."""
    try:
        mapping.madvise(_POPULATE_WRITE)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        # An older kernel: the file gets its pages (an error, no SIGBUS, when there are none), then they are mapped.
        os.posix_fallocate(descriptor, 0, len(mapping))
        for at in range(0, len(mapping), _PAGE):
            mapping[at]


def _address(mapping: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(mapping))


def _pages(size_bytes: int) -> int:
    return -(-size_bytes // _PAGE) * _PAGE

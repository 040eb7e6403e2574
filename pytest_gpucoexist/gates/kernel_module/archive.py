"""Files inside an initramfs: several cpio archives one after the other, the last one usually compressed.

Source: the kernel's Documentation/driver-api/early-userspace/buffer-format.rst (format `newc`) and lib/decompress.c
(the first bytes of each compression). Uncompressed, gzip and xz are read by the standard library, zstd from Python 3.14
on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["CannotUnpack", "members"]

_CPIO = (b"070701", b"070702")
_HEADER = 110
_LAST = "TRAILER!!!"
_CHUNK = 1 << 20
_MAX_NAME = 4096
LIMIT = 256 << 20
"""Bytes that are unpacked at most: beyond it the answer would take seconds."""

_COMPRESSIONS = (
    (b"\x1f\x8b", "gzip"),
    (b"\xfd7zXZ", "xz"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"\x02\x21\x4c\x18", "lz4"),
    (b"\x5d\x00\x00", "lzma"),
    (b"BZh", "bzip2"),
    (b"\x89LZO", "lzo"),
)


class CannotUnpack(ValueError):  # noqa: N818 - a reason, not a fault of the program
    """Why the content is not known: a compression that cannot be read here, or an archive that makes no sense."""


def members(file: BinaryIO, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Yield (path, content) of the regular files whose path (without a slash in front) is wanted.

    Raises CannotUnpack, and OSError or EOFError as reading and unpacking do.
    """
    while True:
        start = file.tell()
        head = file.read(6)
        file.seek(start)
        compression = next((name for magic, name in _COMPRESSIONS if head.startswith(magic)), None)
        if compression is not None:
            yield from _Archive(_unpacker(file, compression), wanted).members()
            return
        yield from _Archive(file, wanted).members()
        if not _after_padding(file):
            return


def _after_padding(file: BinaryIO) -> bool:
    """Go to the first byte after a segment's NUL padding; False at the end of the file."""
    while True:
        place = file.tell()
        chunk = file.read(_CHUNK)
        left = chunk.lstrip(b"\0")
        if left:
            file.seek(place + len(chunk) - len(left))
        if left or not chunk:
            return bool(left)


def _unpacker(file: BinaryIO, compression: str) -> BinaryIO:
    if compression == "gzip":
        import gzip

        return cast("BinaryIO", gzip.open(file))
    if compression == "xz":
        import lzma

        return cast("BinaryIO", lzma.open(file))
    if compression == "zstd":
        try:
            from compression import zstd  # type: ignore[import-not-found]
        except ImportError:
            raise CannotUnpack("it is compressed by zstd, which Python reads from version 3.14 on") from None
        return cast("BinaryIO", zstd.open(file))
    raise CannotUnpack(f"it is compressed by {compression}, which is not read here")


class _Archive:
    """One cpio archive; afterwards its file stands behind the trailer."""

    def __init__(self, file: BinaryIO, wanted: Callable[[str], bool]) -> None:
        self._file = file
        self._wanted = wanted
        self._read = 0

    def members(self) -> Iterator[tuple[str, bytes]]:
        while True:
            header = self._take(_HEADER)
            if header[:6] not in _CPIO:
                raise CannotUnpack("it is no cpio archive")
            try:
                fields = [int(header[at : at + 8], 16) for at in range(6, _HEADER, 8)]
            except ValueError:
                raise CannotUnpack("a header in it makes no sense") from None
            mode, size, name_size = fields[1], fields[6], fields[11]
            if not 0 < name_size <= _MAX_NAME:
                raise CannotUnpack("a name in it makes no sense")
            name = self._take(name_size + -(_HEADER + name_size) % 4)[: name_size - 1].decode("utf-8", "replace")
            if name == _LAST:
                return
            path = name.removeprefix("./").lstrip("/")
            if mode & 0o170000 == 0o100000 and self._wanted(path):
                yield path, self._take(size)
                self._skip(-size % 4)
            else:
                self._skip(size + -size % 4)

    def _take(self, size: int) -> bytes:
        self._count(size)
        data = self._file.read(size)
        if len(data) < size:
            raise CannotUnpack("it ends too early")
        return data

    def _skip(self, size: int) -> None:
        self._count(size)
        while size > 0:
            data = self._file.read(min(size, _CHUNK))
            if not data:
                raise CannotUnpack("it ends too early")
            size -= len(data)

    def _count(self, size: int) -> None:
        self._read += size
        if self._read > LIMIT:
            raise CannotUnpack(f"it is larger than {LIMIT >> 20} MiB")

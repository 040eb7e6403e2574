"""Read a recorded archive into memory: nothing is unpacked on disk, nothing may leave the tree, sizes are bounded."""

from __future__ import annotations

import bz2
import io
import lzma
import re
import tarfile
import zlib
from typing import IO, Protocol

from pytest_gpucoexist.errors import RecordingError
from pytest_gpucoexist.host.manifest import MAX_DEPTH, MAX_PATH_BYTES
from pytest_gpucoexist.host.tree import MemoryTree

__all__ = ["MAX_FILE_BYTES", "MAX_MEMBERS", "MAX_UNPACKED_BYTES", "load_archive"]

MAX_MEMBERS = 200_000
"""A complete /sys and /proc of an eight-GPU server has about 150,000 entries."""
MAX_FILE_BYTES = 16 * 2**20
"""No file that a probe reads is near this."""
MAX_UNPACKED_BYTES = 256 * 2**20
"""Bound of the unpacked stream, headers included: each member costs at least 512 bytes."""

_CHUNK_BYTES = 64 * 1024
_XZ_MEMORY_BYTES = 128 * 2**20  # `xz -9` needs 65 MiB to unpack
# Only the text of these links matters, and the kernel lets them point anywhere (proc(5)).
_PROCESS_LINK = re.compile(r"(?:.*/)?proc/[^/]+/(?:(?:task/\d+/)?(?:cwd|exe|root|fd/\d+|ns/\w+|map_files/.+))")
# Where the kernel's own links in /sys lead; in a tree that holds only a part of /sys they dangle, and mean no harm.
_SYSFS_TARGET = re.compile(
    r"(?:\.\./)+(?:block|bus|class|dev|devices|firmware|fs|kernel|module|pci[0-9a-f:.]*|virtual)(?:/.*)?"
)
_KERNEL_AREAS = frozenset({"dev", "proc", "run", "sys"})
_MAGIC = ((b"\x1f\x8b", "gz"), (b"BZh", "bz2"), (b"\xfd7zXZ\x00", "xz"))


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _Gzip:
    """zlib's object with the interface of the other two."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, max_length)


class _BoundedReader(io.RawIOBase):
    """The unpacked stream of an archive, which ends with a RecordingError where it grows beyond the bound."""

    def __init__(self, file: IO[bytes], kind: str | None, where: str) -> None:
        self._file = file
        self._kind = kind
        self._where = where
        self._codec = self._new_codec()
        self._left = MAX_UNPACKED_BYTES
        self._input_ended = False

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        assert size > 0
        data = self._unpack(size)
        self._left -= len(data)
        if self._left < 0:
            raise RecordingError(f"{self._where}: unpacks to more than {MAX_UNPACKED_BYTES} bytes; refused")
        return data

    def _unpack(self, size: int) -> bytes:
        if self._codec is None:
            return self._file.read(size)
        raw = b""
        while True:
            if self._codec.eof:
                rest = self._codec.unused_data or self._file.read(_CHUNK_BYTES)
                # Several streams one after another are one archive (pigz, pbzip2); padding after the last is not.
                if not rest.startswith(tuple(magic for magic, _kind in _MAGIC)):
                    return b""
                self._codec = self._new_codec()
                assert self._codec is not None
                raw = rest
            data = self._codec.decompress(raw, size)
            if data:
                return data
            raw = b""
            if not self._codec.eof:
                raw = self._file.read(_CHUNK_BYTES)
                if not raw:
                    if self._input_ended:
                        raise RecordingError(f"{self._where}: the archive is cut short")
                    self._input_ended = True

    def _new_codec(self) -> _Decompressor | None:
        if self._kind == "gz":
            return _Gzip()
        if self._kind == "bz2":
            return bz2.BZ2Decompressor()
        if self._kind == "xz":
            return lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES)
        return None


def load_archive(path: str) -> MemoryTree:
    """Read a `.tar`, `.tar.gz`, `.tar.xz` or `.tar.bz2`, told apart by content.

    Raises RecordingError, naming the member, for one that leaves the tree (absolute path, `..`, a link or hard link
    to outside, something below a link), for devices and sockets, beyond the bounds, and for what is no archive.
    OSError (missing, denied) passes.
    """
    with open(path, "rb") as file:
        head = file.read(8)
        file.seek(0)
        kind = next((kind for magic, kind in _MAGIC if head.startswith(magic)), None)
        stream = _BoundedReader(file, kind, path)
        try:
            with tarfile.open(fileobj=stream, mode="r|", bufsize=_CHUNK_BYTES) as archive:
                return _load(archive, path)
        except (tarfile.TarError, EOFError, lzma.LZMAError, zlib.error, ValueError, OverflowError) as exc:
            raise RecordingError(f"{path}: not a readable tar archive ({exc})") from exc
        except OSError as exc:
            if exc.errno is not None:
                raise
            raise RecordingError(f"{path}: not a readable tar archive ({exc})") from exc


def _load(archive: tarfile.TarFile, where: str) -> MemoryTree:
    tree = MemoryTree()
    folders: set[str] = set()
    links: list[tuple[str, str]] = []
    for count, member in enumerate(archive):
        if count >= MAX_MEMBERS:
            raise RecordingError(f"{where}: more than {MAX_MEMBERS} members; refused")
        path = _safe_path(member.name, where)
        if not path:
            continue
        if path.rpartition("/")[0] not in folders:
            folders.update(path[:at] for at, letter in enumerate(path) if letter == "/")
        if count + len(folders) > 2 * MAX_MEMBERS:
            raise RecordingError(f"{where}: more than {MAX_MEMBERS} folders; refused")
        try:
            if member.isdir():
                tree.add_dir(path)
            elif member.issym():
                tree.add_link(path, member.linkname)
                links.append((path, member.linkname))
            elif member.islnk():
                tree.add_file(path, _linked_content(tree, member, where))
            elif member.isreg() and not member.issparse():
                tree.add_file(path, _content(archive, member, where))
            else:
                raise RecordingError(f"{where}: member {member.name!r} is a device, pipe or sparse file; refused")
        except OSError as exc:
            if exc.errno is None or exc.filename is None:
                raise
            raise RecordingError(
                f"{where}: member {member.name!r} lies below, or in place of, something else ({exc.strerror}); refused"
            ) from exc
    for path, target in links:
        if tree.kind(path) == "link" and not _stays_inside(tree, path, target):
            raise RecordingError(f"{where}: member {path[1:]!r} links out of the tree, to {target!r}; refused")
    return tree


def _safe_path(name: str, where: str) -> str:
    if name.startswith(("/", "\\")) or re.match(r"[A-Za-z]:[/\\]", name):
        raise RecordingError(f"{where}: member {name!r} has an absolute path; refused")
    # A backslash is a letter of many names (`dev-disk-by\\x2duuid.device`), but two dots beside it are no name.
    if ".." in re.split(r"[/\\]", name):
        raise RecordingError(f"{where}: member {name!r} leaves the tree; refused")
    parts = [part for part in name.split("/") if part not in {"", "."}]
    if len(name) > MAX_PATH_BYTES or len(parts) > MAX_DEPTH:
        raise RecordingError(f"{where}: a member's name has {len(name)} letters in {len(parts)} folders; refused")
    return "".join(f"/{part}" for part in parts)


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo, where: str) -> bytes:
    if member.size > MAX_FILE_BYTES:
        raise RecordingError(f"{where}: member {member.name!r} has {member.size} bytes; at most {MAX_FILE_BYTES}")
    file = archive.extractfile(member)
    assert file is not None, member.name
    content = file.read()
    if len(content) < member.size:
        raise RecordingError(f"{where}: the archive is cut short in member {member.name!r}")
    return content


def _linked_content(tree: MemoryTree, member: tarfile.TarInfo, where: str) -> bytes:
    try:
        target = _safe_path(member.linkname, where)
    except RecordingError:
        target = ""
    if tree.kind(target) != "file":
        raise RecordingError(
            f"{where}: member {member.name!r} is a hard link to {member.linkname!r}, no file before it; refused"
        )
    return tree.read(target, MAX_FILE_BYTES)


def _stays_inside(tree: MemoryTree, path: str, target: str) -> bool:
    """Whether a link means something inside; links are never followed on disk, this is to name a forged archive."""
    if _PROCESS_LINK.fullmatch(path[1:]):
        return True
    if target.startswith("/"):
        # As the recorded machine has it: inside when that area can be in the tree.
        area = target.lstrip("/").partition("/")[0]
        top = path[1:].partition("/")[0]
        return area in _KERNEL_AREAS or tree.kind(f"/{area}") == "dir" or tree.kind(f"/{top}/{area}") == "dir"
    depth = path.count("/") - 1
    for part in target.split("/"):
        if part == "..":
            depth -= 1
        elif part not in {"", "."}:
            depth += 1
        if depth < 0:
            return _SYSFS_TARGET.fullmatch(target) is not None and tree.kind("/sys") is None
    return True

"""Write a tree and its manifest as a record: an archive or a folder that `open_recording` reads.

Files appear complete or not at all: they are written under a temporary name beside the target and renamed.
"""

from __future__ import annotations

import contextlib
import io
import os
import posixpath
import re
import shutil
import tarfile
import tempfile
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from pytest_gpucoexist.errors import RecordingError
from pytest_gpucoexist.host.manifest import MANIFEST_PATH, Manifest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.host.tree import EntryKind, MemoryTree

__all__ = ["write_archive", "write_folder"]

_MODES: dict[str, Literal["w", "w:gz", "w:xz", "w:bz2"]] = {
    ".tar": "w",
    ".tar.gz": "w:gz",
    ".tgz": "w:gz",
    ".tar.xz": "w:xz",
    ".txz": "w:xz",
    ".tar.bz2": "w:bz2",
    ".tbz2": "w:bz2",
}


def write_archive(tree: MemoryTree, manifest: Manifest, path: str) -> None:
    """Write a `.tar`, `.tar.gz`, `.tar.xz` or `.tar.bz2`; an existing file is replaced at the end, in one step.

    Raises RecordingError for another suffix or a name that cannot be written.
    """
    mode = next((_MODES[suffix] for suffix in sorted(_MODES, key=len, reverse=True) if path.endswith(suffix)), None)
    if mode is None:
        raise RecordingError(f"cannot write {path}: a record is a {', '.join(sorted(_MODES))} file")
    manifest = _complete(tree, manifest)
    top = re.sub(r"[^A-Za-z0-9._+-]+", "-", manifest.name or "machine").strip(".-") or "machine"
    stamp = int(manifest.time or 0)
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(prefix=".record-", dir=os.path.dirname(os.path.abspath(path)))
        with open(handle, "wb") as file, tarfile.open(fileobj=file, mode=mode, format=tarfile.PAX_FORMAT) as archive:
            _add(archive, tarfile.TarInfo(top), stamp, tarfile.DIRTYPE)
            for entry, kind in _entries(tree):
                member = tarfile.TarInfo(f"{top}{entry}")
                if kind == "dir":
                    _add(archive, member, stamp, tarfile.DIRTYPE)
                elif kind == "link":
                    member.linkname = _relative(entry, tree.target(entry))
                    _add(archive, member, stamp, tarfile.SYMTYPE)
                else:
                    _add(archive, member, stamp, tarfile.REGTYPE, _content(tree, entry))
            member = tarfile.TarInfo(f"{top}{MANIFEST_PATH}")
            _add(archive, member, stamp, tarfile.REGTYPE, manifest.to_text().encode())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
        temporary = None
    except OSError as exc:
        raise RecordingError(f"cannot write {path}: {exc.strerror or exc}") from exc
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def write_folder(tree: MemoryTree, manifest: Manifest, path: str) -> None:
    """Write a folder, which must not exist or be empty. Raises RecordingError."""
    manifest = _complete(tree, manifest)
    path = os.path.abspath(path)
    temporary = None
    try:
        temporary = tempfile.mkdtemp(prefix=".record-", dir=os.path.dirname(path))
        for entry, kind in _entries(tree):
            target = temporary + entry
            if kind == "dir":
                os.makedirs(target, exist_ok=True)
            elif kind == "link":
                os.symlink(_relative(entry, tree.target(entry)), target)
            else:
                with open(target, "wb") as file:
                    file.write(_content(tree, entry))
        os.makedirs(os.path.dirname(temporary + MANIFEST_PATH), exist_ok=True)
        with open(temporary + MANIFEST_PATH, "w", encoding="utf-8") as text:
            text.write(manifest.to_text())
        os.chmod(temporary, 0o755)
        os.rename(temporary, path)
        temporary = None
    except OSError as exc:
        raise RecordingError(f"cannot write {path}: {exc.strerror or exc}") from exc
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def _complete(tree: MemoryTree, manifest: Manifest) -> Manifest:
    """Move into the manifest what a file system cannot hold without privileges, or what would lead out of it."""
    nodes = dict(manifest.nodes)
    links = dict(manifest.links)
    for path, kind in tree.walk():
        if kind == "node":
            nodes.setdefault(path, tree.node(path))
        elif kind == "link" and _relative(path, tree.target(path)) != tree.target(path):
            links.setdefault(path, tree.target(path))
    return replace(manifest, nodes=nodes, links=links)


def _entries(tree: MemoryTree) -> Iterator[tuple[str, EntryKind]]:
    return ((path, kind) for path, kind in tree.walk() if kind != "node" and path != MANIFEST_PATH)


def _relative(path: str, target: str) -> str:
    """Return a link's text without an absolute path: it means the same in the recorded tree, and nothing elsewhere."""
    return posixpath.relpath(target, posixpath.dirname(path)) if target.startswith("/") else target


def _content(tree: MemoryTree, path: str) -> bytes:
    return tree.read(path, 2**31)


def _add(archive: tarfile.TarFile, member: tarfile.TarInfo, stamp: int, kind: bytes, content: bytes = b"") -> None:
    # Nothing of this machine: no owner, no time of its own.
    member.type = kind
    member.mtime = stamp
    member.mode = 0o755 if kind == tarfile.DIRTYPE else 0o777 if kind == tarfile.SYMTYPE else 0o644
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content) if content else None)

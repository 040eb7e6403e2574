"""Recorded files, links and nodes, by path.

A tree answers about single entries and follows no link: `ReplayHost` does that, inside the tree. Paths are absolute
without a trailing slash; the root is the empty string.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Literal, Protocol

from pytest_gpucoexist.host.base import Node
from pytest_gpucoexist.host.common import os_error

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["EntryKind", "FolderTree", "LayeredTree", "MemoryTree", "Tree", "node_of_stat"]

EntryKind = Literal["file", "dir", "link", "node"]


class Tree(Protocol):
    """Entries by path. All methods but `kind` may assume that the entry has the kind they ask for."""

    def kind(self, path: str) -> EntryKind | None:
        """Return what is at `path`, or None."""
        ...

    def read(self, path: str, limit: int) -> bytes:
        """Return at most `limit` bytes of a file. Raises OSError."""
        ...

    def target(self, path: str) -> str:
        """Return the text of a link."""
        ...

    def names(self, path: str) -> list[str]:
        """Return the names in a folder, in no order."""
        ...

    def node(self, path: str) -> Node:
        """Return what `stat` said of an entry that is no link."""
        ...


class MemoryTree:
    """A tree in memory: an archive that was read, or a machine that was built in code."""

    def __init__(self) -> None:
        # bytes: a file; str: a link; dict: a folder (its names); Node: something known but not readable
        self._entries: dict[str, bytes | str | dict[str, None] | Node] = {"": {}}

    def add_dir(self, path: str) -> None:
        """Make a folder and those above it. Raises OSError (ENOTDIR) when a file or link is in the way."""
        entry = self._entries.get(path)
        if isinstance(entry, dict):
            return
        if entry is not None:
            raise os_error(errno.ENOTDIR, path)
        self._put(path, {})

    def add_file(self, path: str, content: bytes) -> None:
        """Put a file; an older entry of that path is replaced."""
        self._put(path, content)

    def add_link(self, path: str, target: str) -> None:
        """Put a link; an older entry of that path is replaced."""
        self._put(path, target)

    def add_node(self, path: str, node: Node) -> None:
        """Put an entry of which only the `stat` is known (device nodes, files that were not read)."""
        if node.kind == "dir":
            self.add_dir(path)
        else:
            self._put(path, node)

    def remove(self, path: str) -> None:
        """Take an entry away, with everything below it. Nothing happens when it is not there."""
        entry = self._entries.pop(path, None)
        if isinstance(entry, dict):
            for name in entry:
                self._remove_below(f"{path}/{name}")
        parent, _, name = path.rpartition("/")
        siblings = self._entries.get(parent)
        if isinstance(siblings, dict):
            siblings.pop(name, None)

    def below(self, folder: str) -> MemoryTree:
        """Return what is below a folder, as a tree of its own; contents are shared."""
        if not folder:
            return self
        tree = MemoryTree()
        cut = len(folder)
        tree._entries = {
            path[cut:]: entry
            for path, entry in self._entries.items()
            if path == folder or path.startswith(f"{folder}/")
        }
        return tree

    def walk(self) -> Iterator[tuple[str, EntryKind]]:
        """Yield every entry below the root with its kind, folders before what is in them."""
        pending = [""]
        while pending:
            folder = pending.pop()
            for name in sorted(self.names(folder)):
                path = f"{folder}/{name}"
                kind = self.kind(path)
                assert kind is not None, path
                yield path, kind
                if kind == "dir":
                    pending.append(path)

    def kind(self, path: str) -> EntryKind | None:
        """Return what is at `path`, or None."""
        entry = self._entries.get(path)
        if entry is None:
            return None
        if isinstance(entry, bytes):
            return "file"
        if isinstance(entry, str):
            return "link"
        return "dir" if isinstance(entry, dict) else "node"

    def read(self, path: str, limit: int) -> bytes:
        """Return at most `limit` bytes of a file."""
        entry = self._entries[path]
        assert isinstance(entry, bytes)
        return entry[:limit]

    def target(self, path: str) -> str:
        """Return the text of a link."""
        entry = self._entries[path]
        assert isinstance(entry, str)
        return entry

    def names(self, path: str) -> list[str]:
        """Return the names in a folder."""
        entry = self._entries[path]
        assert isinstance(entry, dict)
        return list(entry)

    def node(self, path: str) -> Node:
        """Return the node of an entry; a recorded file is taken for readable by all, as sysfs files are."""
        entry = self._entries[path]
        if isinstance(entry, Node):
            return entry
        if isinstance(entry, bytes):
            return Node(kind="file", mode=0o444, size_bytes=len(entry))
        return Node(kind="dir", mode=0o755)

    def _put(self, path: str, entry: bytes | str | dict[str, None] | Node) -> None:
        if path not in self._entries:
            parent, _, name = path.rpartition("/")
            self.add_dir(parent)
            siblings = self._entries[parent]
            assert isinstance(siblings, dict)
            siblings[name] = None
        elif isinstance(self._entries[path], dict):
            raise os_error(errno.EISDIR, path)
        self._entries[path] = entry

    def _remove_below(self, path: str) -> None:
        entry = self._entries.pop(path)
        if isinstance(entry, dict):
            for name in entry:
                self._remove_below(f"{path}/{name}")


class FolderTree:
    """A folder of this machine that holds a recording. Read when asked, never through a link."""

    def __init__(self, root: str) -> None:
        self._root = root.rstrip("/")

    def kind(self, path: str) -> EntryKind | None:
        """Return what is at `path`, or None (also when this process may not look)."""
        try:
            mode = os.lstat(self._root + path).st_mode if path else os.stat(self._root or "/").st_mode
        except (OSError, ValueError):
            return None
        if stat.S_ISLNK(mode):
            return "link"
        if stat.S_ISDIR(mode):
            return "dir"
        return "file" if stat.S_ISREG(mode) else "node"

    def read(self, path: str, limit: int) -> bytes:
        """Return at most `limit` bytes of a file. Raises OSError."""
        handle = os.open(self._root + path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0))
        with open(handle, "rb", buffering=0) as file:
            return file.read(limit)

    def target(self, path: str) -> str:
        """Return the text of a link. Raises OSError."""
        return os.readlink(self._root + path).replace(os.sep, "/")

    def names(self, path: str) -> list[str]:
        """Return the names in a folder. Raises OSError."""
        return os.listdir(self._root + path if path else self._root or "/")

    def node(self, path: str) -> Node:
        """Return what `lstat` says. Raises OSError."""
        return node_of_stat(os.lstat(self._root + path) if path else os.stat(self._root or "/"))


class LayeredTree:
    """One tree over another: entries of `top` win, folders of both are one."""

    def __init__(self, top: MemoryTree, base: Tree) -> None:
        self._top = top
        self._base = base

    def kind(self, path: str) -> EntryKind | None:
        """Return what is at `path`, or None."""
        return self._top.kind(path) or self._base.kind(path)

    def read(self, path: str, limit: int) -> bytes:
        """Return at most `limit` bytes of a file."""
        return self._layer(path).read(path, limit)

    def target(self, path: str) -> str:
        """Return the text of a link."""
        return self._layer(path).target(path)

    def names(self, path: str) -> list[str]:
        """Return the names of both layers."""
        names: dict[str, None] = {}
        for layer in (self._top, self._base):
            if layer.kind(path) == "dir":
                names.update(dict.fromkeys(layer.names(path)))
        return list(names)

    def node(self, path: str) -> Node:
        """Return the node of the upper entry."""
        return self._layer(path).node(path)

    def _layer(self, path: str) -> Tree:
        return self._top if self._top.kind(path) is not None else self._base


def node_of_stat(result: os.stat_result) -> Node:
    """Translate a `stat` result."""
    mode = result.st_mode
    special = stat.S_ISCHR(mode) or stat.S_ISBLK(mode)
    return Node(
        kind="file"
        if stat.S_ISREG(mode)
        else "dir"
        if stat.S_ISDIR(mode)
        else "chardev"
        if stat.S_ISCHR(mode)
        else "blockdev"
        if stat.S_ISBLK(mode)
        else "other",
        mode=stat.S_IMODE(mode),
        uid=result.st_uid,
        gid=result.st_gid,
        size_bytes=result.st_size,
        major=os.major(result.st_rdev) if special else None,
        minor=os.minor(result.st_rdev) if special else None,
    )

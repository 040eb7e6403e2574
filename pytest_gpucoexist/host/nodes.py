"""Entries of a recording that are known by description: its manifest's nodes, or a `dev.list` beside the tree."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.host.base import Node
from pytest_gpucoexist.host.tree import MemoryTree, Tree

if TYPE_CHECKING:
    from pytest_gpucoexist.host.manifest import Manifest

__all__ = ["overlay_of", "parse_dev_list"]

_DEV_LIST_PATHS = ("/extra/dev.list", "/dev.list")
_DEV_LIST_BYTES = 4 * 2**20
_NODE_LINE = re.compile(r"(/dev/\S+) ([cb]) (\d+):(\d+) ([0-7]{1,4}) (\d+):(\d+)")
_LINK_LINE = re.compile(r"(/dev/\S+) -> (\S+)")


def overlay_of(tree: Tree, manifest: Manifest) -> MemoryTree | None:
    """Return the entries to lay over the tree, or None when there are none."""
    overlay = MemoryTree()
    for path in _DEV_LIST_PATHS:
        if tree.kind(path) == "file":
            parse_dev_list(tree.read(path, _DEV_LIST_BYTES).decode("utf-8", "replace"), overlay)
    for path, node in manifest.nodes.items():
        if path and tree.kind(path) is None:
            with contextlib.suppress(OSError):  # a manifest that contradicts itself: the first entry stays
                overlay.add_node(path, node)
    return overlay if overlay.names("") else None


def parse_dev_list(text: str, into: MemoryTree) -> None:
    """Read lines `PATH c MAJOR:MINOR MODE UID:GID` and `PATH -> TARGET`; others mean nothing here."""
    for line in text.splitlines():
        with contextlib.suppress(OSError):
            node = _NODE_LINE.fullmatch(line.strip())
            if node is not None:
                path, kind, major, minor, mode, uid, gid = node.groups()
                into.add_node(
                    path,
                    Node(
                        kind="chardev" if kind == "c" else "blockdev",
                        mode=int(mode, 8),
                        uid=int(uid),
                        gid=int(gid),
                        major=int(major),
                        minor=int(minor),
                    ),
                )
                continue
            link = _LINK_LINE.fullmatch(line.strip())
            if link is not None:
                into.add_link(*link.groups())

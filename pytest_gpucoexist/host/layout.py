"""Where the pieces of a recording belong on a machine.

People record whole trees (`sys/`, `proc/`), hwloc gathers them, LACT keeps single `cardN/device` folders, ROCm's tests
keep `topology/nodes`. Each becomes the absolute paths that a probe asks for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucoexist.errors import RecordingError
from pytest_gpucoexist.host.base import Node
from pytest_gpucoexist.host.tree import MemoryTree

if TYPE_CHECKING:
    from pytest_gpucoexist.host.tree import EntryKind, Tree

__all__ = ["Mount", "MountedTree", "find_mounts", "mounted"]

_DEPTH = 4
_CARD = re.compile(r"card\d+")
_NUMBER = re.compile(r"\d+")
_TOPOLOGIES = (
    ("kfd/kfd/topology", "/sys/class/kfd/kfd"),
    ("kfd/topology", "/sys/class/kfd/kfd"),
    ("topology", "/sys/class/kfd/kfd/topology"),
    ("", "/sys/class/kfd/kfd/topology"),
)
_TOPS = frozenset({"sys", "proc", "gpucoexist"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """Folder `source` of the recording stands at `at` of the machine."""

    at: str
    source: str


def mounted(tree: Tree, mounts: tuple[Mount, ...]) -> Tree:
    """Return the tree as the machine had it."""
    if isinstance(tree, MemoryTree) and len(mounts) == 1 and mounts[0].at == "":
        return tree.below(mounts[0].source)  # the usual case, without a detour at every read
    return MountedTree(tree, mounts)


def find_mounts(tree: Tree, where: str) -> tuple[Mount, ...]:
    """Recognise the layout: in the root, or below at most four folders that only wrap it.

    Raises RecordingError that names what was found in `where` when it is none of the known ones.
    """
    level = [""]
    for _depth in range(_DEPTH):
        for folder in level:
            mounts = _mounts_of(tree, folder)
            if mounts:
                return mounts
        level = [path for folder in level for path in _folders(tree, folder)][:64]
    names = sorted(tree.names(""))
    raise RecordingError(
        f"{where}: no known layout. Expected sys/ or proc/, cardN/device, topology/nodes, or a record of"
        f" `gpucoexist record`; found {', '.join(names[:8]) or 'nothing'}"
    )


def _folders(tree: Tree, folder: str) -> list[str]:
    return [f"{folder}/{name}" for name in sorted(tree.names(folder)) if tree.kind(f"{folder}/{name}") == "dir"]


def _mounts_of(tree: Tree, folder: str) -> tuple[Mount, ...]:
    folders = {path.rpartition("/")[2] for path in _folders(tree, folder)}
    if folders & _TOPS:
        return (Mount(at="", source=folder),)

    def has(path: str) -> bool:
        return tree.kind(f"{folder}/{path}") == "dir"

    if has("bus/pci/devices") or has("class/drm") or has("class/kfd"):
        return (Mount(at="/sys", source=folder),)
    mounts = [
        Mount(at=f"/sys/class/drm/{name}", source=f"{folder}/{name}")
        for name in sorted(folders)
        if _CARD.fullmatch(name) and has(f"{name}/device")
    ]
    for path, at in _TOPOLOGIES:
        if _is_topology(tree, f"{folder}/{path}" if path else folder):
            # The class device beside its topology has more than the nodes: /sys/class/kfd/kfd/dev.
            above = path.removesuffix("topology").rstrip("/") if path.startswith("kfd") else path
            mounts.append(Mount(at=at, source=f"{folder}/{above}" if above else folder))
            break
    if not mounts and tree.kind(f"{folder}/uevent") == "file" and tree.kind(f"{folder}/vendor") == "file":
        mounts.append(Mount(at="/sys/class/drm/card0/device", source=folder))
    return tuple(mounts)


def _is_topology(tree: Tree, folder: str) -> bool:
    nodes = f"{folder}/nodes"
    return tree.kind(nodes) == "dir" and any(_NUMBER.fullmatch(name) for name in tree.names(nodes))


class MountedTree:
    """A tree seen through its mounts, with the folders that lead to them."""

    def __init__(self, tree: Tree, mounts: tuple[Mount, ...]) -> None:
        self._tree = tree
        self._mounts = tuple(sorted(mounts, key=lambda mount: -len(mount.at)))
        self._above: dict[str, dict[str, None]] = {}
        for mount in mounts:
            path = mount.at
            while path:
                parent, _, name = path.rpartition("/")
                self._above.setdefault(parent, {})[name] = None
                path = parent

    def kind(self, path: str) -> EntryKind | None:
        """Return what is at `path`, or None."""
        source = self._source(path)
        if source is not None:
            return self._tree.kind(source)
        return "dir" if path in self._above else None

    def read(self, path: str, limit: int) -> bytes:
        """Return at most `limit` bytes of a file."""
        return self._tree.read(self._sure(path), limit)

    def target(self, path: str) -> str:
        """Return the text of a link."""
        return self._tree.target(self._sure(path))

    def names(self, path: str) -> list[str]:
        """Return the names in a folder."""
        source = self._source(path)
        return list(self._above[path]) if source is None else self._tree.names(source)

    def node(self, path: str) -> Node:
        """Return the node of an entry."""
        source = self._source(path)
        return Node(kind="dir", mode=0o755) if source is None else self._tree.node(source)

    def _source(self, path: str) -> str | None:
        for mount in self._mounts:
            at = mount.at
            if path.startswith(at) and (len(path) == len(at) or path[len(at)] == "/"):
                return mount.source + path[len(at) :]
        return None

    def _sure(self, path: str) -> str:
        source = self._source(path)
        assert source is not None, path
        return source

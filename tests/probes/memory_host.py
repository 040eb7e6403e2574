"""A machine in memory: files, links, nodes and errors, with the rights of a chosen process."""

from __future__ import annotations

import errno
import io
import os
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from pytest_gpucoexist.host.base import Completed, HelperReply, Identity, KernelLog, Node


def fault(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)


def a_node(mode: int = 0o660, *, uid: int = 0, gid: int = 105) -> Node:
    return Node(kind="chardev", mode=mode, uid=uid, gid=gid, major=226, minor=128)


ROOT = Identity(uid=0, gid=0, groups=(0,))
USER = Identity(uid=1000, gid=1000, groups=(1000,), group_names={"render": 105, "video": 44})
RENDER_USER = Identity(uid=1000, gid=1000, groups=(1000, 105), group_names={"render": 105, "video": 44})


@dataclass
class MemoryHost:
    """Implements `Host`. `errors` are raised by reads and listings, `open_errors` by `may_open`."""

    files: dict[str, str | bytes] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    open_errors: dict[str, int] = field(default_factory=dict)
    programs: dict[tuple[str, ...], Completed] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    me: Identity = ROOT
    lacks: tuple[str, ...] = ()
    name: str = "memory"
    simulated: bool = True
    platform: str = "linux"
    python_path: Sequence[str] = ()
    read: list[str] = field(default_factory=list)

    def identity(self) -> Identity:
        return self.me

    def read_bytes(self, path: str, limit: int = 65536) -> bytes:
        self.read.append(path)
        path = self.resolve(path)
        if path in self.errors:
            raise fault(self.errors[path], path)
        if path not in self.files:
            raise fault(errno.EISDIR if self._children(path) else errno.ENOENT, path)
        data = self.files[path]
        return (data.encode() if isinstance(data, str) else data)[:limit]

    def open_file(self, path: str) -> BinaryIO:
        return io.BytesIO(self.read_bytes(path, 1 << 28))

    def read_text(self, path: str, limit: int = 65536) -> str:
        return self.read_bytes(path, limit).decode("utf-8", "replace").rstrip("\0 \t\r\n")

    def list_dir(self, path: str) -> list[str]:
        path = self.resolve(path)
        if path in self.errors:
            raise fault(self.errors[path], path)
        names = self._children(path)
        if not names:
            raise fault(errno.ENOENT, path)
        return sorted(names)

    def read_link(self, path: str) -> str:
        if path in self.errors:
            raise fault(self.errors[path], path)
        if path not in self.links:
            raise fault(errno.EINVAL if self.exists(path) else errno.ENOENT, path)
        return self.links[path]

    def resolve(self, path: str) -> str:
        for link, target in self.links.items():
            if path == link or path.startswith(f"{link}/"):
                whole = posixpath.normpath(posixpath.join(posixpath.dirname(link), target))
                return self.resolve(whole + path[len(link) :])
        return path

    def stat(self, path: str) -> Node:
        path = self.resolve(path)
        if path in self.nodes:
            return self.nodes[path]
        if path in self.files:
            return Node(kind="file", mode=0o444)
        if self._children(path):
            return Node(kind="dir", mode=0o755)
        raise fault(errno.ENOENT, path)

    def exists(self, path: str) -> bool:
        try:
            self.stat(path)
        except OSError:
            return False
        return True

    def may_open(self, path: str, *, write: bool) -> None:
        if path in self.open_errors:
            raise fault(self.open_errors[path], path)
        node = self.stat(path)
        mode = node.mode >> (6 if node.uid == self.me.uid else 3 if node.gid in self.me.groups else 0)
        if self.me.uid != 0 and mode & 6 != 6:
            raise fault(errno.EACCES, path)

    def covers(self, path: str) -> bool:
        return not path.startswith(self.lacks) if self.lacks else True

    def run(self, argv: Sequence[str], *, timeout_s: float = 5.0) -> Completed:
        if tuple(argv) not in self.programs:
            raise fault(errno.ENOENT, argv[0])
        return self.programs[tuple(argv)]

    def ask(self, helper: str, request: Mapping[str, Any] | None = None, *, deadline_s: float = 5.0) -> HelperReply:
        return HelperReply(status="absent", detail="no helpers in memory")

    def ask_all(
        self, helpers: Sequence[str], request: Mapping[str, Any] | None = None, *, deadline_s: float = 5.0
    ) -> dict[str, HelperReply]:
        return {helper: self.ask(helper) for helper in helpers}

    def kernel_log(self, *, allow_programs: bool = False) -> KernelLog:
        return KernelLog(status="absent", source="memory", detail="no kernel log in memory")

    def time(self) -> float:
        return 0.0

    def _children(self, path: str) -> set[str]:
        prefix = path.rstrip("/") + "/"
        known = [*self.files, *self.links, *self.nodes, *self.errors]
        return {item[len(prefix) :].split("/")[0] for item in known if item.startswith(prefix)}

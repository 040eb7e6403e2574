"""A recorded machine as a Host: links are resolved inside the recording, nothing of this machine is read."""

from __future__ import annotations

import errno
import io
import os
import re
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO

from pytest_gpucoexist.errors import RecordingError
from pytest_gpucoexist.host.access import may_open_node
from pytest_gpucoexist.host.base import Completed, HelperReply, Identity, KernelLog, Node
from pytest_gpucoexist.host.common import as_text, os_error
from pytest_gpucoexist.host.layout import find_mounts, mounted
from pytest_gpucoexist.host.manifest import MANIFEST_PATH, Manifest, read_manifest
from pytest_gpucoexist.host.nodes import overlay_of
from pytest_gpucoexist.host.tree import FolderTree, LayeredTree, Tree

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["ReplayHost", "area_of", "normal_path", "open_recording"]

_MAX_LINKS = 40  # as the kernel's MAXSYMLINKS
_LOG_BYTES = 2**24
_SUFFIX = re.compile(r"\.(?:tar(?:\.(?:gz|xz|bz2))?|tgz|txz|tbz2?)$")
_OPEN_LIMIT_BYTES = 1 << 28
_NOBODY = Identity(uid=65534, gid=65534, groups=(65534,))


def open_recording(path: str) -> ReplayHost:
    """Open a folder or a `.tar`, `.tar.gz`, `.tar.xz`, `.tar.bz2` as a machine.

    Known layouts: `layout.find_mounts`. Raises RecordingError: missing, unreadable, unsafe, too large, unknown layout.
    """
    from pytest_gpucoexist.host.archive import MAX_FILE_BYTES, load_archive

    path = os.fspath(path)
    try:
        raw: Tree = FolderTree(path) if os.path.isdir(path) else load_archive(path)
        time = os.stat(path).st_mtime
        tree: Tree = mounted(raw, find_mounts(raw, path))
        manifest = Manifest()
        if tree.kind(MANIFEST_PATH) == "file":
            manifest = read_manifest(tree.read(MANIFEST_PATH, MAX_FILE_BYTES), path)
    except OSError as exc:
        raise RecordingError(f"cannot open the recording {path}: {exc.strerror or exc}") from exc
    name = manifest.name or _SUFFIX.sub("", os.path.basename(os.path.abspath(path)))
    return ReplayHost(tree, manifest, name=name, time=time)


class ReplayHost:
    """A Host over a Tree and what its Manifest knows beside the files."""

    def __init__(self, tree: Tree, manifest: Manifest | None = None, *, name: str, time: float = 0.0) -> None:
        self._manifest = manifest = manifest or Manifest()
        overlay = overlay_of(tree, manifest)
        self._tree: Tree = tree if overlay is None else LayeredTree(overlay, tree)
        self._name = name
        self._time = manifest.time if manifest.time is not None else time
        self._environ = MappingProxyType(dict(manifest.environ))
        self._real: dict[str, str] = {"": ""}  # path as asked for -> path without links

    @property
    def name(self) -> str:
        """The name that the recording carries, else its file's name."""
        return self._name

    @property
    def simulated(self) -> bool:
        """Always true: nothing here is of this machine."""
        return True

    @property
    def platform(self) -> str:
        """The platform of the recorded machine."""
        return self._manifest.platform

    @property
    def environ(self) -> Mapping[str, str]:
        """The recorded variables; none in a recording that is only a tree."""
        return self._environ

    @property
    def python_path(self) -> Sequence[str]:
        """The recorded `sys.path`."""
        return self._manifest.python_path

    def identity(self) -> Identity:
        """Return the recorded process; nobody where none was recorded."""
        return self._manifest.identity or _NOBODY

    def time(self) -> float:
        """When the recording was made."""
        return self._time

    def read_bytes(self, path: str, limit: int = 65536) -> bytes:
        """Read at most `limit` bytes. Raises OSError, the recorded one where reading failed on the machine."""
        real = self._readable(path)
        kind = self._tree.kind(real)
        if kind == "file":
            return self._tree.read(real, limit)
        raise os_error(errno.EISDIR if kind == "dir" else errno.ENODATA, path)

    def open_file(self, path: str) -> BinaryIO:
        """Open a file that the recording has as a whole. Raises OSError; ENODATA where it only knows that it is there.

        `RecordingHost` keeps no file that was opened: libraries are too large for a record.
        """
        real = self._readable(path)
        kind = self._tree.kind(real)
        if kind == "file":
            return io.BytesIO(self._tree.read(real, _OPEN_LIMIT_BYTES))
        node = self._manifest.nodes.get(real) or self._tree.node(real)
        raise os_error(errno.ENODATA if node.kind == "file" else errno.EINVAL, path)

    def read_text(self, path: str, limit: int = 65536) -> str:
        """Read as text, without padding. Raises OSError."""
        return as_text(self.read_bytes(path, limit))

    def list_dir(self, path: str) -> list[str]:
        """Names in a folder, sorted. Raises OSError."""
        real = self._readable(path)
        if self._tree.kind(real) != "dir":
            raise os_error(errno.ENOTDIR, path)
        recorded = self._manifest.listings.get(real)
        return sorted(recorded if recorded is not None else self._tree.names(real))

    def read_link(self, path: str) -> str:
        """Return the text of a symbolic link. Raises OSError (EINVAL when it is none)."""
        folder, name = _split(path)
        real = f"{self._resolve(folder)}/{name}"
        kind = self._tree.kind(real)
        if kind is None:
            raise self._missing(path, real)
        if kind != "link":
            raise os_error(errno.EINVAL, path)
        return self._manifest.links.get(real) or self._tree.target(real)

    def resolve(self, path: str) -> str:
        """Follow every link of a path. Raises OSError (ENOENT when it dangles, ELOOP)."""
        return self._resolve(path) or "/"

    def stat(self, path: str) -> Node:
        """Kind, mode and owner, links followed. Raises OSError."""
        real = self._resolve(path)
        return self._manifest.nodes.get(real) or self._tree.node(real)

    def exists(self, path: str) -> bool:
        """Whether `stat` would succeed."""
        try:
            self._resolve(path)
        except OSError:
            return False
        return True

    def may_open(self, path: str, *, write: bool) -> None:
        """Check that the recorded process may open the path. Raises OSError; ENODATA where nothing says."""
        recorded = self._manifest.may_open.get(normal_path(path), {}).get("write" if write else "read")
        if recorded is not None:
            if recorded:
                raise os_error(recorded, path)
            return
        if not self.covers(path):
            raise os_error(errno.ENODATA, path)
        try:
            node = self.stat(path)
        except OSError as exc:
            raise os_error(exc.errno or errno.EIO, path) from None
        code = may_open_node(node, self._manifest.identity, write=write)
        if code:
            raise os_error(code, path)

    def covers(self, path: str) -> bool:
        """Whether the recording has something of the area that the path belongs to."""
        area = area_of(path)
        if self._manifest.covers is not None:
            return any(area == known or area.startswith(f"{known}/") for known in self._manifest.covers)
        return self.exists(area)

    def run(self, argv: Sequence[str], *, timeout_s: float = 5.0) -> Completed:  # noqa: ARG002 - a recording waits for nothing
        """Return what the program printed while recording. Raises OSError (ENOENT when it was not run then)."""
        for run in self._manifest.programs:
            if run.argv == tuple(argv):
                if run.error is not None:
                    raise os_error(run.error, argv[0])
                return Completed(
                    returncode=run.returncode,
                    stdout=run.stdout.encode("utf-8", "surrogateescape"),
                    stderr=run.stderr.encode("utf-8", "surrogateescape"),
                    timed_out=run.timed_out,
                )
        raise os_error(errno.ENOENT, argv[0])

    def ask(
        self,
        helper: str,
        request: Mapping[str, Any] | None = None,  # noqa: ARG002 - one reply is recorded for each helper
        *,
        deadline_s: float = 5.0,  # noqa: ARG002
    ) -> HelperReply:
        """Return the recorded reply, or one that says that there is none."""
        return self._manifest.helpers.get(helper) or HelperReply(status="absent", detail="not recorded")

    def ask_all(
        self, helpers: Sequence[str], request: Mapping[str, Any] | None = None, *, deadline_s: float = 5.0
    ) -> dict[str, HelperReply]:
        """Return the recorded replies."""
        return {helper: self.ask(helper, request, deadline_s=deadline_s) for helper in helpers}

    def kernel_log(self, *, allow_programs: bool = False) -> KernelLog:  # noqa: ARG002 - what was read, was read
        """Return the recorded log, or a log file of the tree, or say that there is none."""
        from pytest_gpucoexist.host.kernel_log import KEPT_LOG, log_in_tree

        recorded = self._manifest.kernel_log
        if recorded is None:
            return log_in_tree(self)
        text = self.read_text(KEPT_LOG, _LOG_BYTES) if self.exists(KEPT_LOG) else ""
        return replace(recorded, text=text)

    def _readable(self, path: str) -> str:
        """Resolve a path whose content is wanted, or raise what reading it raised while recording."""
        errors = self._manifest.errors
        if errors:
            code = errors.get(normal_path(path))
            if code is None:
                real = self._resolve(path)
                code = errors.get(real)
            if code is not None:
                raise os_error(code, path)
        return self._resolve(path)

    def _resolve(self, path: str) -> str:
        real = self._real.get(path)
        if real is None:
            real = self._real[path] = self._walk("", path, path, 0)
        return real

    def _walk(self, base: str, path: str, asked: str, links: int) -> str:
        """Follow `path` from the folder `base`, which is free of links; `..` of the root is the root."""
        tree, known = self._tree, self._real
        for name in path.split("/"):
            if not name or name == ".":
                continue
            if name == "..":
                base = base.rpartition("/")[0]
                continue
            step = f"{base}/{name}"
            real = known.get(step)
            if real is None:
                kind = tree.kind(step)
                if kind is None:
                    if base and tree.kind(base) not in {"dir", None}:
                        raise os_error(errno.ENOTDIR, asked)
                    raise self._missing(asked, step)
                if kind == "link":
                    if links >= _MAX_LINKS:
                        raise os_error(errno.ELOOP, asked)
                    target = tree.target(step)
                    real = self._walk("" if target.startswith("/") else base, target, asked, links + 1)
                else:
                    real = step
                known[step] = real
            base = real
        return base

    def _missing(self, asked: str, step: str) -> OSError:
        """Build the error for an entry that is not there: the one met while recording, else ENOENT."""
        errors = self._manifest.errors
        return os_error(errors.get(normal_path(asked)) or errors.get(step) or errno.ENOENT, asked)


def normal_path(path: str) -> str:
    """Return a path without doubled or trailing slashes; the root is the empty string."""
    return path.rstrip("/") if "//" not in path else re.sub("/+", "/", path).rstrip("/")


def _split(path: str) -> tuple[str, str]:
    folder, _, name = normal_path(path).rpartition("/")
    return folder, name


def area_of(path: str) -> str:
    """Return what is recorded as one part: `/dev`, `/proc/modules`, `/sys/module`, `/sys/class/kfd`."""
    parts = normal_path(path).split("/")
    depth = 1
    if parts[1:2] == ["proc"]:
        depth = 2
    elif parts[1:2] == ["sys"]:
        depth = 3 if parts[2:3] in (["class"], ["bus"]) else 2
    return "/".join(parts[: depth + 1])

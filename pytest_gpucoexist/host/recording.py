"""Record what a discovery reads, so that it replays anywhere with the same result.

    host = RecordingHost(local_host())
    discover(host, ask=("nvidia", "amd"))
    write_recording(host, "machine.tar.gz")

A record holds what was read and nothing else: contents, links, listings, errors, answers about access, helpers and
programs, the environment variables that were looked at or belong to a GPU runtime.
"""

from __future__ import annotations

import contextlib
import errno
from dataclasses import replace
from typing import TYPE_CHECKING, Any, BinaryIO

from pytest_gpucoexist._version import __version__
from pytest_gpucoexist.host.anonymise import anonymised
from pytest_gpucoexist.host.base import Node
from pytest_gpucoexist.host.caller import people_of, recorded_variables
from pytest_gpucoexist.host.common import as_text
from pytest_gpucoexist.host.kernel_log import KEPT_LOG
from pytest_gpucoexist.host.manifest import Manifest, ProgramRun
from pytest_gpucoexist.host.replay import area_of, normal_path
from pytest_gpucoexist.host.tree import MemoryTree
from pytest_gpucoexist.host.writing import write_archive

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_gpucoexist.host.base import Completed, HelperReply, Host, Identity, KernelLog

__all__ = ["MAX_FILE_BYTES", "RecordingHost", "write_recording"]

MAX_FILE_BYTES = 8 * 2**20
"""What is larger is not kept; a record knows that it is there. A list of PCI ids has 1.4 MiB."""

_MAX_LINKS = 40
# Not there is told by a record's silence, as by the machine's.
_SILENT = {errno.ENOENT, errno.ENOTDIR}


class RecordingHost:
    """A Host that answers as `inner` does and keeps every answer."""

    def __init__(self, inner: Host) -> None:
        self._inner = inner
        self._contents: dict[str, bytes] = {}
        self._links: dict[str, str | None] = {"": None}
        self._listings: dict[str, tuple[str, ...]] = {}
        self._nodes: dict[str, Node] = {}
        self._errors: dict[str, int] = {}
        self._may_open: dict[str, dict[str, int]] = {}
        self._helpers: dict[str, HelperReply] = {}
        self._programs: dict[tuple[str, ...], ProgramRun] = {}
        self._covers: dict[str, None] = {}
        self._kernel_log: KernelLog | None = None

    @property
    def name(self) -> str:
        """The name of the inner host."""
        return self._inner.name

    @property
    def simulated(self) -> bool:
        """Whether the inner host is."""
        return self._inner.simulated

    @property
    def platform(self) -> str:
        """The platform of the inner host."""
        return self._inner.platform

    @property
    def environ(self) -> Mapping[str, str]:
        """The environment of the inner host."""
        return self._inner.environ

    @property
    def python_path(self) -> Sequence[str]:
        """The inner host's `sys.path`."""
        return self._inner.python_path

    def identity(self) -> Identity:
        """Whose rights count."""
        return self._inner.identity()

    def time(self) -> float:
        """Return what the inner host's clock says."""
        return self._inner.time()

    def read_bytes(self, path: str, limit: int = 65536) -> bytes:
        """Read, and keep the content or the error."""
        with self._noting(path) as real:
            data = self._inner.read_bytes(path, limit)
            if len(data) > MAX_FILE_BYTES:
                self._nodes.setdefault(real, Node(kind="file", mode=0o444, size_bytes=len(data)))
            elif len(data) >= len(self._contents.get(real, b"")):
                self._contents[real] = data
            self._errors.pop(real, None)
            return data

    def open_file(self, path: str) -> BinaryIO:
        """Open a file. Only that it is there is kept: a library is too large for a record."""
        with self._noting(path) as real:
            opened = self._inner.open_file(path)
            with contextlib.suppress(OSError):
                self._nodes.setdefault(real, self._inner.stat(path))
            return opened

    def read_text(self, path: str, limit: int = 65536) -> str:
        """Read as text."""
        return as_text(self.read_bytes(path, limit))

    def list_dir(self, path: str) -> list[str]:
        """List, and keep the names."""
        with self._noting(path) as real:
            names = self._inner.list_dir(path)
            self._listings[real] = tuple(names)
            return names

    def read_link(self, path: str) -> str:
        """Return the text of a link; it and the links above it are kept."""
        self._touch(path)
        folder, _, name = normal_path(path).rpartition("/")
        self._target(f"{self._follow(folder)}/{name}")  # what it leads to was not asked for
        return self._inner.read_link(path)

    def resolve(self, path: str) -> str:
        """Follow every link; they and what they lead to are kept."""
        with self._noting(path) as real:
            resolved = self._inner.resolve(path)
            with contextlib.suppress(OSError):
                self._nodes.setdefault(real, self._inner.stat(path))
            return resolved

    def stat(self, path: str) -> Node:
        """Stat, and keep the result."""
        with self._noting(path) as real:
            node = self._nodes[real] = self._inner.stat(path)
            return node

    def exists(self, path: str) -> bool:
        """Whether `stat` succeeds."""
        try:
            self.stat(path)
        except OSError:
            return False
        return True

    def may_open(self, path: str, *, write: bool) -> None:
        """Ask, and keep the answer, also that nobody knows (ENODATA)."""
        self._touch(path)
        code = 0
        try:
            self._inner.may_open(path, write=write)
        except OSError as exc:
            code = exc.errno or errno.EIO
            raise
        finally:
            self._may_open.setdefault(normal_path(path), {})["write" if write else "read"] = code

    def covers(self, path: str) -> bool:
        """Ask, and keep a yes."""
        covered = self._inner.covers(path)
        if covered:
            self._covers[area_of(path)] = None
        return covered

    def run(self, argv: Sequence[str], *, timeout_s: float = 5.0) -> Completed:
        """Run a program, and keep what it printed or why it could not start."""
        key = tuple(argv)
        try:
            done = self._inner.run(argv, timeout_s=timeout_s)
        except OSError as exc:
            self._programs[key] = ProgramRun(argv=key, error=exc.errno or errno.EIO)
            raise
        self._programs[key] = ProgramRun(
            argv=key,
            returncode=done.returncode,
            stdout=done.stdout.decode("utf-8", "surrogateescape"),
            stderr=done.stderr.decode("utf-8", "surrogateescape"),
            timed_out=done.timed_out,
        )
        return done

    def ask(self, helper: str, request: Mapping[str, Any] | None = None, *, deadline_s: float = 5.0) -> HelperReply:
        """Ask a helper, and keep its reply."""
        return self.ask_all([helper], request, deadline_s=deadline_s)[helper]

    def ask_all(
        self, helpers: Sequence[str], request: Mapping[str, Any] | None = None, *, deadline_s: float = 5.0
    ) -> dict[str, HelperReply]:
        """Ask several helpers, and keep their replies."""
        replies = self._inner.ask_all(helpers, request, deadline_s=deadline_s)
        self._helpers.update(replies)
        return replies

    def kernel_log(self, *, allow_programs: bool = False) -> KernelLog:
        """Read the kernel's log, and keep the one that says more."""
        log = self._inner.kernel_log(allow_programs=allow_programs)
        if self._kernel_log is None or len(log.text) >= len(self._kernel_log.text):
            self._kernel_log = log
        return log

    def recorded(self) -> tuple[MemoryTree, Manifest]:
        """Return what was kept so far, with every personal detail still in it."""
        tree = MemoryTree()
        # Copies: a gate that did not answer in time may still be reading.
        for path, target in dict(self._links).items():
            if target is not None:
                with contextlib.suppress(OSError):
                    tree.add_link(path, target)
        for path, content in dict(self._contents).items():
            with contextlib.suppress(OSError):  # it changed its kind between two reads
                tree.add_file(path, content)
        for path in tuple(self._listings):
            with contextlib.suppress(OSError):
                tree.add_dir(path)
        manifest = Manifest(
            name=self.name,
            time=self.time(),
            platform=self.platform,
            version=__version__,
            environ=recorded_variables(self.environ),
            python_path=tuple(self.python_path),
            identity=self.identity(),
            nodes=dict(self._nodes),
            errors=dict(self._errors),
            may_open={path: dict(codes) for path, codes in dict(self._may_open).items()},
            listings=dict(self._listings),
            helpers=dict(self._helpers),
            programs=tuple(dict(self._programs).values()),
            covers=tuple(self._covers),
            kernel_log=None if self._kernel_log is None else replace(self._kernel_log, text=""),
        )
        if self._kernel_log is not None and self._kernel_log.text:
            tree.add_file(KEPT_LOG, self._kernel_log.text.encode("utf-8", "replace"))
        return tree, manifest

    @contextlib.contextmanager
    def _noting(self, path: str) -> Iterator[str]:
        """Give the path without links, and keep the error that reading it raises."""
        self._touch(path)
        real = self._follow(path)
        try:
            yield real
        except OSError as exc:
            code = exc.errno or errno.EIO
            if code not in _SILENT:
                self._errors[real] = code
                with contextlib.suppress(OSError):  # it is there, although it cannot be read
                    self._nodes.setdefault(real, self._inner.stat(path))
            raise

    def _touch(self, path: str) -> None:
        if self._inner.covers(path):
            self._covers[area_of(path)] = None

    def _follow(self, path: str, links: int = 0) -> str:
        """Return `path` without links, as far as it exists, and keep every link met on the way."""
        base = ""
        for name in path.split("/"):
            if name in {"", "."}:
                continue
            if name == "..":
                base = base.rpartition("/")[0]
                continue
            step = f"{base}/{name}"
            target = self._target(step)
            if target is None or links >= _MAX_LINKS:
                base = step
            else:
                base = self._follow(target if target.startswith("/") else f"{base}/{target}", links + 1)
        return base

    def _target(self, step: str) -> str | None:
        if step not in self._links:
            try:
                self._links[step] = self._inner.read_link(step)
            except OSError:
                self._links[step] = None
        return self._links[step]


def write_recording(host: RecordingHost, path: str, *, name: str = "machine", key: bytes | None = None) -> None:
    """Write what `host` recorded as an archive, personal details replaced; equal values stay equal.

    `path` ends in `.tar.gz`, `.tar.xz`, `.tar.bz2` or `.tar`; an existing file is replaced in one step. The
    replacements cannot be undone, and differ from record to record unless `key` is given. Raises RecordingError.
    """
    tree, manifest = host.recorded()
    tree, manifest = anonymised(tree, manifest, people_of(host), key)
    write_archive(tree, replace(manifest, name=name), path)

"""`gpucoexist/record.json`: what a recording knows beside its files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_gpucoexist.errors import DataError, RecordingError
from pytest_gpucoexist.host.base import HelperReply, Identity, KernelLog, Node
from pytest_gpucoexist.model.codec import decode, encode

__all__ = ["MANIFEST_PATH", "MAX_DEPTH", "MAX_PATH_BYTES", "RECORD_VERSION", "Manifest", "ProgramRun", "read_manifest"]

MANIFEST_PATH = "/gpucoexist/record.json"
RECORD_VERSION = 1

MAX_PATH_BYTES = 1024
MAX_DEPTH = 64
"""The deepest file of the recorded machines has 14 folders above it. Each of them costs memory."""

_PATH = re.compile(r"(?:/[^/]+)*")
_LATEST = 2.0**40
_LAST_ERRNO = 4095  # include/linux/err.h, MAX_ERRNO


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRun:
    """A program that was run while recording. Output is text; undecodable bytes are surrogate escapes."""

    argv: tuple[str, ...]
    returncode: int | None = None
    stdout: str = ""
    stderr: str = ""
    timed_out: bool = False
    error: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The facts of a recording that no file of the tree carries.

    Paths are those of the recorded machine with their folders resolved. `errors` holds the errno of reading or
    listing a path, `may_open` the errno (0: allowed) of opening it for `read` and `write`, `listings` the names in
    folders of which the tree holds only a part, `links` the text of links that the archive had to write differently.
    `covers` are the areas that were looked at (None: whatever has files). `kernel_log` is without its text, which is a
    file of the tree.
    """

    record: int = RECORD_VERSION
    name: str | None = None
    time: float | None = None
    platform: str = "linux"
    version: str | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    python_path: tuple[str, ...] = ()
    identity: Identity | None = None
    nodes: Mapping[str, Node] = field(default_factory=dict)
    errors: Mapping[str, int] = field(default_factory=dict)
    may_open: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    listings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    helpers: Mapping[str, HelperReply] = field(default_factory=dict)
    programs: tuple[ProgramRun, ...] = ()
    covers: tuple[str, ...] | None = None
    kernel_log: KernelLog | None = None

    def to_text(self) -> str:
        """Return the JSON document."""
        return json.dumps(encode(self), indent=1, sort_keys=True) + "\n"


def read_manifest(data: bytes, where: str) -> Manifest:
    """Read a `record.json`. Raises RecordingError, naming `where` and what is wrong in it."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise RecordingError(f"{where}: gpucoexist/record.json is not JSON ({exc})") from exc
    version = document.get("record") if isinstance(document, dict) else None
    if version != RECORD_VERSION:
        raise RecordingError(
            f"{where}: a record of version {version!r}; this release reads version {RECORD_VERSION}"
            " (record it again, or use the release that made it)"
        )
    try:
        manifest = decode(Manifest, document)
        _check(manifest)
    except DataError as exc:
        raise RecordingError(f"{where}: gpucoexist/record.json does not fit: {exc}") from exc
    return manifest


def _check(manifest: Manifest) -> None:
    """Refuse what has the right type and means nothing: a replay would stumble over it much later. Raises DataError."""
    if manifest.time is not None and not 0 <= manifest.time < _LATEST:
        raise DataError(f"$.time: no time: {manifest.time}")
    for path in manifest.nodes:
        if _PATH.fullmatch(path) is None or len(path) > MAX_PATH_BYTES or path.count("/") > MAX_DEPTH:
            raise DataError(f"$.nodes: not an absolute path: {path[:80]!r}")
    codes = [*manifest.errors.items()]
    codes += [(path, code) for path, answers in manifest.may_open.items() for code in answers.values()]
    codes += [(" ".join(run.argv), run.error) for run in manifest.programs if run.error is not None]
    for path, code in codes:
        if not 0 <= code <= _LAST_ERRNO:
            raise DataError(f"no errno: {code} of {path[:80]!r}")
    if not all(run.argv for run in manifest.programs):
        raise DataError("$.programs: a program without a name")

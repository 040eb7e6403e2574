"""Ask the package's helpers: each in a process of its own, all at the same time, none longer than the deadline."""

from __future__ import annotations

import json
import re
import signal
import sys
from typing import TYPE_CHECKING, Any, get_args

from pytest_gpucoexist.host.base import HelperReply
from pytest_gpucoexist.host.processes import Child, drive, end, reap_left_behind, start
from pytest_gpucoexist.model.readings import Status

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["MAX_ANSWER_BYTES", "ask_helpers", "bootstrap", "ending", "read_answer"]

MAX_ANSWER_BYTES = 8 * 2**20
"""Eight GPUs with all their processes are below 1 MiB."""

_PACKAGE = "pytest_gpucoexist.helpers"
_NOISE_BYTES = 16 * 1024
_NOISE_CHARACTERS = 300
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_STATUSES = get_args(Status)
# The parent's own sys.path comes before the first import: the helper finds what the tests find. `-c` puts the current
# folder first, which the list overwrites.
_BOOTSTRAP = (
    "import sys, json; task = json.loads(sys.argv[2]); sys.path[:] = task['path'];"
    "from pytest_gpucoexist.helpers import runner;"
    "getattr(runner, task['how'])(int(sys.argv[1]), task['module'], task['request'], task['limit_s'])"
)


def ask_helpers(
    names: Sequence[str],
    request: Mapping[str, Any],
    *,
    environ: Mapping[str, str],
    python_path: Sequence[str],
    deadline_s: float,
    package: str = _PACKAGE,
) -> dict[str, HelperReply]:
    """Run each helper and return its reply. Never raises but on an interrupt, which ends the helpers too."""
    reap_left_behind()
    replies: dict[str, HelperReply] = {}
    children: dict[str, Child] = {}
    try:
        for name in dict.fromkeys(names):
            if not _NAME.fullmatch(name):
                replies[name] = HelperReply(status="broken", detail=f"no helper can be named {name!r}")
                continue
            try:
                argv = bootstrap("main", name, request, python_path, "{fd}", deadline_s + 5.0, package=package)
                children[name] = start(argv, environ, output_bytes=_NOISE_BYTES, answer_bytes=MAX_ANSWER_BYTES)
            except (OSError, TypeError, ValueError) as exc:
                replies[name] = HelperReply(status="broken", detail=f"the helper did not start: {exc}")
    except BaseException:
        end(list(children.values()))
        raise
    drive(list(children.values()), deadline_s)
    for name, child in children.items():
        replies[name] = _reply(child, deadline_s)
    return {name: replies[name] for name in names}


def bootstrap(
    how: str,
    name: str,
    request: Mapping[str, Any],
    python_path: Sequence[str],
    answer_fd: str,
    limit_s: float,
    *,
    package: str = _PACKAGE,
) -> list[str]:
    """Return the command that runs a helper: `main` answers once, `serve` each line of its standard input.

    Raises OSError, TypeError or ValueError when there is no such command.
    """
    task = {
        "path": list(python_path),
        "how": how,
        "module": f"{package}.{name}",
        "request": dict(request),
        "limit_s": limit_s,
    }
    return [_interpreter(), *_interpreter_flags(), "-c", _BOOTSTRAP, answer_fd, json.dumps(task)]


def _reply(child: Child, deadline_s: float) -> HelperReply:
    answer = child.answer
    assert answer is not None
    status, data, detail = "broken", None, None
    if answer.overflow:
        detail = f"its answer is larger than {MAX_ANSWER_BYTES} bytes"
    elif answer.data and not child.cut_off:
        status, data, detail = read_answer(bytes(answer.data))
        if status == "broken" and data is None and child.returncode:
            detail = f"{detail}; {ending(child.returncode)}"
    elif child.timed_out:
        detail = f"no answer within {deadline_s:g} s"
    else:
        detail = f"{ending(child.returncode)} without an answer"
    parts = [detail] if detail else []
    if child.left_behind:
        parts.append(f"process {child.process.pid} cannot be killed (blocked in the kernel?) and is left behind")
    for label, sink in (("stdout", child.stdout), ("stderr", child.stderr)):
        if sink.data and (label == "stdout" or status == "broken"):
            parts.append(f"text on its {label}: {_excerpt(bytes(sink.data))!r}")
    return HelperReply(
        status=status,  # type: ignore[arg-type]
        data=data,
        detail="; ".join(parts) or None,
        left_behind=child.process.pid if child.left_behind else None,
        duration_s=round(child.duration_s, 3),
    )


def read_answer(raw: bytes) -> tuple[str, Any, str | None]:
    """Return status, data and detail of what a helper sent; `broken` when it makes no sense."""
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as exc:
        return "broken", None, f"its answer is not JSON ({type(exc).__name__}): {_excerpt(raw)!r}"
    document = document if isinstance(document, dict) else {}
    status = document.get("status")
    if not isinstance(status, str) or status not in _STATUSES:
        return "broken", None, f"its answer has no status: {_excerpt(raw)!r}"
    detail = document.get("detail")
    return status, document.get("data"), None if detail is None else str(detail)


def ending(code: int | None) -> str:
    """Say how a process ended, by its status."""
    if code is not None and code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"it was killed by {name}"
    return f"it ended with status {code}"


def _excerpt(raw: bytes) -> str:
    """Return the end of a text: the last words of a crash are the ones that explain it."""
    text = raw.decode("utf-8", "replace").strip()
    return text if len(text) <= _NOISE_CHARACTERS else f"…{text[-_NOISE_CHARACTERS:]}"


def _interpreter() -> str:
    """Return the path of this Python. Raises OSError in a program that embeds it and does not say."""
    if not sys.executable:
        raise OSError("this program does not say where its Python is (sys.executable)")
    return sys.executable


def _interpreter_flags() -> list[str]:
    """Return the options that make the helper's start (site, sitecustomize, user site) like this process's."""
    flags = [
        option
        for attribute, option in (
            ("isolated", "-I"),
            ("ignore_environment", "-E"),
            ("no_user_site", "-s"),
            ("no_site", "-S"),
            ("safe_path", "-P"),
            ("dont_write_bytecode", "-B"),
        )
        if getattr(sys.flags, attribute, 0)
    ]
    if sys.flags.utf8_mode:
        flags += ["-X", "utf8"]
    return flags

"""Whether a mask was set after a runtime had read it: only the process itself can be asked."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.environment.variables import MASKS
from pytest_gpucoexist.gates.findings import Finding, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["import_order", "runtimes_in_maps"]

_MAPS, _ENVIRON = "/proc/self/maps", "/proc/self/environ"
_RUNTIME = re.compile(r"/(lib(?:cuda|amdhip64|hsa-runtime64|ze_loader|sycl)\.so[.\d]*)$")
_MAX_BYTES = 4 << 20


def runtimes_in_maps(text: str) -> tuple[str, ...]:
    """Return the GPU runtimes that are mapped, by the names of their files."""
    found = (_RUNTIME.search(line) for line in text.splitlines())
    return tuple(dict.fromkeys(match[1] for match in found if match is not None))


@gate(
    "env.import_order",
    group="environment",
    title="Masks were set before a runtime was loaded",
    reads="in a session: /proc/self/maps, the environment that the process was started with, and the one it has now",
    criterion="no visibility variable changed in this process, or no GPU runtime is loaded in it yet",
    why="a runtime reads its mask once, when it is initialised: a conftest that sets the variable after an import "
    "changes nothing, and the tests run on another GPU than the one that they print",
    action="set the variables in the shell that starts pytest",
    source="MoonshotAI/checkpoint-engine PR#98",
)
def import_order(subject: Subject) -> Iterator[Finding]:
    """Compare the process's environment at its start with the present one, where a runtime is loaded."""
    if subject.since_s is None:
        yield skipped("judged in a session alone: another process's imports say nothing about the tests'")
        return
    maps, started = subject.read(_MAPS, _MAX_BYTES), subject.read(_ENVIRON, _MAX_BYTES)
    if maps.text is None or started.text is None:
        missing = maps if maps.text is None else started
        yield unknown(
            "this process cannot be looked at", Evidence(source=missing.path, found=missing.detail or missing.status)
        )
        return
    loaded = runtimes_in_maps(maps.text)
    if not loaded:
        yield passed(
            "no GPU runtime is loaded in this process",
            Evidence(source=_MAPS, found="no libcuda, libamdhip64, libze_loader"),
        )
        return
    before = dict(part.split("=", 1) for part in started.text.split("\0") if "=" in part)
    now = subject.host.environ
    changed = [name for name in MASKS if before.get(name) != now.get(name)]
    rows = [Evidence(source=_MAPS, found=", ".join(loaded))]
    rows += [
        Evidence(
            source=name,
            found=f"now {now.get(name, 'not set')}",
            expected=f"{before.get(name, 'not set')}, as at the start",
        )
        for name in changed
    ]
    if changed:
        names = ", ".join(changed)
        reason = f"{names} changed in this process, in which {loaded[0]} is loaded: it may have read the old value"
        yield warned(reason, *rows)
        return
    yield passed(f"{', '.join(loaded)} is loaded, and no visibility variable changed since the process started", *rows)

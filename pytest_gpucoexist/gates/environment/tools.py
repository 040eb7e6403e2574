"""Gates about variables of debuggers and profilers, which change what a test measures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.environment.variables import (
    DEBUG_AMD,
    DEBUG_NVIDIA,
    is_on,
    not_recorded,
    rows_of,
    set_among,
)
from pytest_gpucoexist.gates.findings import Finding, passed, warned
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence, Fix

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["amd_tools", "launch_blocking", "nvidia_tools"]

_LOUD = 3
"""From this AMD_LOG_LEVEL on, HIP writes a line for every call."""


@gate(
    "env.dcgm_bad",
    group="environment",
    vendors=("nvidia",),
    title="No debugger or profiler sits in CUDA",
    reads=", ".join(DEBUG_NVIDIA),
    criterion="none is set",
    why="each loads a tool into every CUDA process, stops it at an error, or changes the clock: NVIDIA's own "
    "diagnostics refuse to run with them",
    action="unset them where the tests are started",
    source="NVIDIA/DCGM nvvs/src/Software.cpp (checkForBadEnvVaribles)",
)
def nvidia_tools(subject: Subject) -> Iterator[Finding]:
    """Look for the variables that NVIDIA's diagnostics refuse."""
    yield _none_set(subject, set_among(subject, DEBUG_NVIDIA), "no variable of a CUDA debugger or profiler is set")


@gate(
    "env.amd_tools",
    group="environment",
    vendors=("amd",),
    title="No tracer or serialiser sits in ROCm",
    reads=", ".join(DEBUG_AMD),
    criterion="none is set, AMD_LOG_LEVEL is below 3",
    why="they load a tool into every HSA process, write a line for each call, or make every kernel and copy wait: "
    "times and races are not those of a user",
    action="unset them where the tests are started",
    source="ROCm documentation, debugging environment variables (HSA_TOOLS_LIB, AMD_LOG_LEVEL, AMD_SERIALIZE_KERNEL)",
)
def amd_tools(subject: Subject) -> Iterator[Finding]:
    """Look for the same in ROCm."""
    given = set_among(subject, DEBUG_AMD)
    active = {
        name: value
        for name, value in given.items()
        if (_level(value) >= _LOUD if name == "AMD_LOG_LEVEL" else is_on(value))
    }
    yield _none_set(subject, active, "no variable of a ROCm tracer or serialiser is set")


@gate(
    "env.blocking",
    group="environment",
    vendors=("nvidia",),
    title="CUDA launches do not wait",
    reads="CUDA_LAUNCH_BLOCKING",
    criterion="not set, or 0",
    why="every launch waits for its kernel: races between streams do not show, and copies that should overlap do not",
    action="unset CUDA_LAUNCH_BLOCKING, except while looking for an error",
    source="CUDA C++ Programming Guide, environment variables (CUDA_LAUNCH_BLOCKING)",
)
def launch_blocking(subject: Subject) -> Iterator[Finding]:
    """Look at one switch."""
    given = set_among(subject, ("CUDA_LAUNCH_BLOCKING",))
    active = {name: value for name, value in given.items() if is_on(value)}
    yield _none_set(subject, active, "CUDA launches do not wait")


def _none_set(subject: Subject, active: Mapping[str, str], words: str) -> Finding:
    absent = not_recorded(subject)
    if absent is not None:
        return absent
    if not active:
        return passed(
            words, Evidence(source="environment", found=f"{len(subject.host.environ)} variables, none of these")
        )
    fix = [Fix(lines=(f"unset {' '.join(active)}",))]
    return warned(
        f"{', '.join(active)} {'is' if len(active) == 1 else 'are'} set", *rows_of(active, "not set"), fix=fix
    )


def _level(value: str) -> int:
    digits = value.strip()
    return int(digits) if digits.isdecimal() and digits.isascii() and len(digits) < 10 else 0

"""Why the kernel calls itself tainted.

Source: Documentation/admin-guide/tainted-kernels.rst and include/linux/panic.h (numbers of the bits).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.findings import Finding, failed, passed, unknown, warned
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence
from pytest_gpucoexist.probes.reader import excerpt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["taint", "taint_bits"]

_PATH = "/proc/sys/kernel/tainted"

_GRAVE = {
    4: "a processor reported a machine check",
    5: "a page of memory was found corrupt",
    7: "the kernel crashed (oops) and went on",
    14: "a processor hung in the kernel (soft lockup)",
}
_WARNING = 9
_HARMLESS = {
    0: "proprietary module",
    1: "module loaded by force",
    2: "processor out of specification",
    3: "module unloaded by force",
    6: "set by a program",
    8: "ACPI table replaced",
    9: "kernel warning",
    10: "staging driver",
    11: "firmware workaround",
    12: "module from outside the kernel",
    13: "unsigned module",
    15: "live patch",
    16: "set by the distribution",
    17: "randomised structures",
    18: "test run in the kernel",
    19: "firmware changed through fwctl",
}


def taint_bits(text: str) -> list[int] | None:
    """Return the bits that are set, lowest first; None when the text is no number that a kernel prints."""
    text = text.strip()
    if not (text.isascii() and text.isdecimal()) or len(text) > 20:
        return None
    value = int(text)
    return [bit for bit in range(64) if value >> bit & 1]


@gate(
    "kmod.taint",
    group="kernel-module",
    title="Nothing has gone wrong in the kernel since it booted",
    reads="/proc/sys/kernel/tainted, as bits",
    criterion="no machine check (4), corrupt page (5), oops (7) or soft lockup (14); no warning (9)",
    why="a kernel that has crashed once runs on with broken state: a driver may hang or return wrong data",
    action="look for the first such message in the kernel's log, and reboot before testing",
    source="the kernel's Documentation/admin-guide/tainted-kernels.rst; leptonai/gpud components/os",
    severity="fail",
)
def taint(subject: Subject) -> Iterator[Finding]:
    """Judge the bits that tell of something that happened, and record the others."""
    text = subject.read(_PATH, 64)
    if text.text is None:
        yield unknown(f"{_PATH}: {text.detail}")
        return
    bits = taint_bits(text.text)
    if bits is None:
        yield unknown(f"{_PATH} says {excerpt(text.text)}, which is no number")
        return
    others = [f"{bit} ({_HARMLESS.get(bit, 'unknown to this version')})" for bit in bits if bit not in _GRAVE]
    evidence = Evidence(source=_PATH, found=f"{text.text.strip()}: {', '.join(map(str, bits)) or 'no bit'}")
    grave = [f"{_GRAVE[bit]} (bit {bit})" for bit in bits if bit in _GRAVE]
    if grave:
        yield failed(f"since it booted, {'; '.join(grave)}", evidence)
    elif _WARNING in bits:
        yield warned("the kernel has printed a warning with a backtrace since it booted (bit 9)", evidence)
    elif others:
        yield passed(f"only bits that tell what is loaded: {', '.join(others)}", evidence)
    else:
        yield passed("the kernel is not tainted", evidence)

"""Whether this run itself asks for a vendor: a promise, or a selected test that names it.

Stronger than `Subject.wanted`, which also takes installed driver software for a wish.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["VENDOR_NAMES", "asked_by_name"]

VENDOR_NAMES = {"nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel"}

_PROMISES = {"nvidia": ("nvidia", "cuda"), "amd": ("amd", "rocm"), "intel": ("intel",)}


def asked_by_name(subject: Subject, vendor: str) -> str | None:
    """Say what asks for this vendor in this run, or None: then nobody would miss its GPUs."""
    for name in _PROMISES.get(vendor, ()):
        if subject.promised.get(name):
            return f"{name}:{subject.promised[name]} is promised"
    return "selected tests need it" if vendor in subject.needed else None

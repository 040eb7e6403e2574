"""Whether this run itself asks for a vendor: a promise, or a selected test that names it.

Weaker than a promise: a suite's CUDA tests are selected on every laptop, and in containers that were never meant to
have a GPU. Stronger than installed driver software, which `Subject.wanted` looks at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["VENDOR_NAMES", "asked_by_name", "promise_of"]

VENDOR_NAMES = {"nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel"}

_PROMISES = {"nvidia": ("nvidia", "cuda"), "amd": ("amd", "rocm"), "intel": ("intel",)}


def promise_of(subject: Subject, vendor: str) -> str | None:
    """Say what promises this vendor's GPUs to this run, or None."""
    for name in _PROMISES.get(vendor, ()):
        if subject.promised.get(name):
            return f"{name}:{subject.promised[name]} is promised"
    return None


def asked_by_name(subject: Subject, vendor: str) -> str | None:
    """Say what asks for this vendor in this run, or None: then nobody would miss its GPUs."""
    return promise_of(subject, vendor) or ("selected tests need it" if vendor in subject.needed else None)

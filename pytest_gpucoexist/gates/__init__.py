"""Judge the machine: a registry of small functions of Host and Machine, and the runner that asks them all."""

from pytest_gpucoexist.gates.findings import Finding, failed, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.registry import Gate, gate
from pytest_gpucoexist.gates.runner import judge
from pytest_gpucoexist.gates.subject import Subject

__all__ = [
    "Finding",
    "Gate",
    "Subject",
    "failed",
    "gate",
    "judge",
    "passed",
    "skipped",
    "unknown",
    "warned",
]

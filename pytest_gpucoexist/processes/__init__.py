"""Processes of one vendor each: their interpreter, their environment, calls into them, and their end."""

from __future__ import annotations

from pytest_gpucoexist.processes.isolation import Breach
from pytest_gpucoexist.processes.kin import Stuck
from pytest_gpucoexist.processes.opening import OpenedProcess, open_process
from pytest_gpucoexist.processes.process import VendorProcess
from pytest_gpucoexist.processes.records import CallRecord, CallResult
from pytest_gpucoexist.processes.scoping import Change, Kept, Scoped, scope_environment
from pytest_gpucoexist.processes.watchdog import Ending

__all__ = [
    "Breach",
    "CallRecord",
    "CallResult",
    "Change",
    "Ending",
    "Kept",
    "OpenedProcess",
    "Scoped",
    "Stuck",
    "VendorProcess",
    "open_process",
    "scope_environment",
]

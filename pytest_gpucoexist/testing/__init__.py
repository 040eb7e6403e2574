"""Build, load and break machines in tests of your own."""

from __future__ import annotations

from pytest_gpucoexist.testing.builder import MachineBuilder, a_machine
from pytest_gpucoexist.testing.catalogue import CATALOGUE, GpuModel
from pytest_gpucoexist.testing.demo import demo_host, demo_machine

__all__ = ["CATALOGUE", "GpuModel", "MachineBuilder", "a_machine", "demo_host", "demo_machine"]

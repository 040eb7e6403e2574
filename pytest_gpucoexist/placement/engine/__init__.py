"""The scheduler's decisions: which test runs where, when and with which devices. Pure: no I/O, no clock."""

from pytest_gpucoexist.placement.engine.engine import Engine

__all__ = ["Engine"]

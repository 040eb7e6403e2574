"""The fake drivers, loaded by this process's children."""

from tests.vendor.conftest import machine

__all__ = ["machine"]

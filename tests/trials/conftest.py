"""Trials on simulated devices and on drivers without hardware."""

from __future__ import annotations

from tests.staging.conftest import devices_of_fakes, opener, start

__all__ = ["devices_of_fakes", "opener", "start"]

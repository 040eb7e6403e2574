"""`current_gpu()` at import time in a process that is no worker: a controller imports the conftest files, too.

With `--gpu-workers=narrow` or `rotate` a conftest may ask for the home device while it is imported. In a worker its
environment answers. In a serial run, and in a controller (which runs no test), all devices that tests can use count as
the home. The machine is discovered when somebody asks, not before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.session.current import answer_at_import

if TYPE_CHECKING:
    from pytest_gpucoexist.model.machine import Gpu

__all__ = ["AtImport"]


class AtImport:
    """Answers `current_gpu()` until the first test runs."""

    def __init__(self, config: pytest.Config) -> None:
        """`config` is not set up yet."""
        self._config = config
        self._devices: tuple[Gpu, ...] | None = None
        self._former = answer_at_import(self._answer)

    def _answer(self) -> tuple[Gpu, ...]:
        if self._devices is None:
            from pytest_gpucoexist.placement.homes import usable_devices
            from pytest_gpucoexist.session.discovery import discover_machine
            from pytest_gpucoexist.session.options import read_options

            early: Any = _Early(self._config)
            machine = discover_machine(self._config, read_options(early), ())
            self._devices = tuple(gpu for gpus in usable_devices(machine).values() for gpu in gpus)
        return self._devices

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self) -> None:
        """From now on only a test has devices."""
        answer_at_import(None)

    def pytest_unconfigure(self) -> None:
        """Leave nothing behind for a session that comes after this one, or around it."""
        answer_at_import(self._former)


class _Early:
    """The part of a config that options are read from, at a time when only a preliminary parse has been made."""

    def __init__(self, config: pytest.Config) -> None:
        self.option = config.known_args_namespace
        self.getini = config.getini

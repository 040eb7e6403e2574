"""Fixtures: fake driver libraries, and a machine that they stand for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fakes.build import CannotBuild, amdsmi_library, nvml_library, runtime_libraries
from tests.fakes.machine import FakeMachine

if TYPE_CHECKING:
    from collections.abc import Mapping


@pytest.fixture(scope="session")
def fake_drivers_cache(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where libraries that were built stay from one run to the next."""
    cache = getattr(pytestconfig, "cache", None)  # not there under `-p no:cacheprovider`
    return tmp_path_factory.mktemp("fake_drivers") if cache is None else Path(cache.mkdir("fake_drivers"))


@pytest.fixture(scope="session")
def fake_drivers(fake_drivers_cache: Path) -> Mapping[str, str]:
    """The variables that make clients load the fake libraries."""
    try:
        nvml, amdsmi = nvml_library(fake_drivers_cache), amdsmi_library(fake_drivers_cache)
    except CannotBuild as reason:
        pytest.skip(f"fake drivers: {reason}")
    return {"LD_LIBRARY_PATH": str(nvml), "ROCM_PATH": str(amdsmi), "ROCM_HOME": str(amdsmi)}


@pytest.fixture
def fake_machine(fake_drivers: Mapping[str, str], tmp_path: Path) -> FakeMachine:
    """A machine without any driver, to be described; `fake_machine.environ` is the environment of its clients."""
    return FakeMachine(tmp_path, fake_drivers)


@pytest.fixture
def fake_runtimes(fake_machine: FakeMachine, fake_drivers_cache: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    """The same machine, whose CUDA, HSA, HIP and Level Zero are loaded by this process's children too."""
    try:
        runtimes = runtime_libraries(fake_drivers_cache)
    except CannotBuild as reason:
        pytest.skip(f"fake runtimes: {reason}")
    for name, value in fake_machine.environ.items():
        monkeypatch.setenv(name, f"{value}:{runtimes}" if name == "LD_LIBRARY_PATH" else value)
    return fake_machine

"""Fixtures: fake driver libraries, and a machine that they stand for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fakes.build import (
    CannotBuild,
    amdsmi_library,
    cuda_library,
    hip_library,
    nvml_library,
    runtime_libraries,
)
from tests.fakes.client import Driven, running_client
from tests.fakes.gpus import AMD_GPUS, NVIDIA_GPUS
from tests.fakes.machine import FakeMachine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


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


@pytest.fixture
def fake_gpus(fake_drivers_cache: Path, tmp_path: Path) -> FakeMachine:
    """Two NVIDIA and two AMD devices that can copy; those of a vendor are peers.

    Its libraries are CUDA's and HIP's, and NVML and amdsmi where those can be built. `fake_gpus.environ` has all of
    them; `fake_cuda` and `fake_hip` are environments with one vendor's.
    """
    folder = tmp_path / "gpus"
    folder.mkdir()
    machine = FakeMachine(folder, {})
    machine.nvidia(*NVIDIA_GPUS, p2p=[(0, 1)])
    machine.amd(*AMD_GPUS, p2p=[(0, 1)])
    for build in (nvml_library, cuda_library, hip_library):
        library = _built(build, fake_drivers_cache)
        if library is not None:
            machine.load(library)
    amdsmi = _built(amdsmi_library, fake_drivers_cache)
    if amdsmi is not None:
        machine.environ |= {"ROCM_PATH": str(amdsmi), "ROCM_HOME": str(amdsmi)}
    return machine


@pytest.fixture(params=["cuda", "hip"])
def driven(request: pytest.FixtureRequest, fake_gpus: FakeMachine) -> Iterator[Driven]:
    """A client process of one runtime, started, with its first device in use."""
    environ = request.getfixturevalue(f"fake_{request.param}")
    with running_client(environ, request.param) as client:
        client_of = Driven(machine=fake_gpus, client=client, runtime=request.param)
        client_of("start")
        client_of("use", 0)
        yield client_of


@pytest.fixture
def fake_cuda(fake_gpus: FakeMachine, fake_drivers_cache: Path) -> dict[str, str]:
    """The variables with which a child finds the fake libcuda, and no other, on the machine of `fake_gpus`."""
    return _environ(fake_gpus, cuda_library, fake_drivers_cache)


@pytest.fixture
def fake_hip(fake_gpus: FakeMachine, fake_drivers_cache: Path) -> dict[str, str]:
    """The variables with which a child finds the fake HIP, and no other, on the machine of `fake_gpus`."""
    return _environ(fake_gpus, hip_library, fake_drivers_cache)


def _built(build: Callable[[Path], Path], cache: Path) -> Path | None:
    try:
        return build(cache)
    except CannotBuild:
        return None


def _environ(machine: FakeMachine, build: Callable[[Path], Path], cache: Path) -> dict[str, str]:
    try:
        library = build(cache)
    except CannotBuild as reason:
        pytest.skip(f"fake driver: {reason}")
    named = ("GPUCOEXIST_FAKE_MACHINE", "GPUCOEXIST_FAKE_LOG")
    return {"LD_LIBRARY_PATH": str(library), **{name: machine.environ[name] for name in named}}

"""Vendor processes with devices, simulated or of drivers without hardware; and proof that nothing is left."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.host import local_host
from pytest_gpucoexist.model.machine import Gpu, Machine
from tests.fakes.gpus import AMD_GPUS, NVIDIA_GPUS
from tests.processes.conftest import start, state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_gpucoexist.model.identity import Vendor

NVIDIA = [Gpu(id=f"nvidia{n}", vendor="nvidia", pci_address=each.pci_address) for n, each in enumerate(NVIDIA_GPUS)]
AMD = [Gpu(id=f"amd{n}", vendor="amd", pci_address=each.pci_address) for n, each in enumerate(AMD_GPUS)]
MACHINE = Machine(name="fakes", gpus=(*NVIDIA, *AMD))

__all__ = ["AMD", "MACHINE", "NVIDIA", "devices", "devices_of_fakes", "opener", "start"]


@pytest.fixture
def opener() -> Iterator[Callable[..., Any]]:
    """Open processes that end with the test: `opener(gpus, environ)`."""
    pytest.importorskip("execnet", reason="needs execnet")
    pytest.importorskip("numpy", reason="needs NumPy")
    from pytest_gpucoexist.processes.opening import open_process

    before = state()
    running: list[Any] = []

    def opened(gpus: list[Gpu], environ: dict[str, str] | None = None) -> Any:
        host, vendor = local_host(), gpus[0].vendor
        whole: dict[str, str] = {**os.environ, **(environ or {})}
        assert vendor != "other"
        process = open_process(gpus, MACHINE, _vendor(vendor), host=host, environ=whole)
        running.append(process)
        return process

    yield opened
    for process in running:
        assert process.close().stuck is None
    after = state()
    for each in (before, after):
        assert isinstance(each["environment"], dict)
        each["environment"].pop("PYTEST_CURRENT_TEST", None)
    assert after == before


def _vendor(name: Any) -> Vendor:
    found: Vendor = name
    return found


@pytest.fixture(params=["simulated", "fakes"])
def devices(request: pytest.FixtureRequest, opener: Callable[..., Any]) -> Callable[..., Any]:
    """Open endpoints of two NVIDIA and two AMD devices, each vendor's in one process: `devices("nvidia", 2)`."""
    from pytest_gpucoexist.staging.endpoint import open_endpoint

    simulated = request.param == "simulated"
    environ: dict[str, dict[str, str]] = {"nvidia": {}, "amd": {}}
    if not simulated:
        environ = {"nvidia": request.getfixturevalue("fake_cuda"), "amd": request.getfixturevalue("fake_hip")}

    def opened(vendor: str, count: int = 1) -> Any:
        gpus = {"nvidia": NVIDIA, "amd": AMD}[vendor][:count]
        process = opener(gpus, environ[vendor])
        return [open_endpoint(process, gpu, simulated=simulated) for gpu in gpus]

    return opened


@pytest.fixture
def devices_of_fakes(
    opener: Callable[..., Any], fake_cuda: dict[str, str], fake_hip: dict[str, str]
) -> Callable[..., Any]:
    """Open endpoints as `devices` does, on drivers without hardware."""
    from pytest_gpucoexist.staging.endpoint import open_endpoint

    environ = {"nvidia": fake_cuda, "amd": fake_hip}

    def opened(vendor: str, count: int = 1, deadline_s: float = 60.0) -> Any:
        gpus = {"nvidia": NVIDIA, "amd": AMD}[vendor][:count]
        process = opener(gpus, environ[vendor])
        return [open_endpoint(process, gpu, deadline_s=deadline_s) for gpu in gpus]

    return opened

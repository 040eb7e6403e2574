"""The vendors' own libraries where there is no driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_gpucoexist.host import local_host
from pytest_gpucoexist.probes import discover
from pytest_gpucoexist.testing.builder import a_machine
from tests.vendor.debian import NotReachable, unpacked
from tests.vendor.hosts import asking_here

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def nvidia_library(fake_drivers_cache: Path) -> Path:
    """A folder with NVIDIA's own `libnvidia-ml.so.1`."""
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has an NVIDIA driver")
    try:
        root = unpacked("libnvidia-ml1", fake_drivers_cache)
    except NotReachable as reason:
        pytest.skip(f"NVIDIA's own libnvidia-ml: {reason}")
    (library,) = root.rglob("libnvidia-ml.so.1")
    return library.parent


def test_nvml_without_a_driver(nvidia_library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvidia_library))
    reply = local_host().ask("nvml", deadline_s=30)
    assert (reply.status, reply.detail) == ("unsupported", "NVML is installed, but the nvidia driver is not loaded")


def test_a_machine_without_a_driver(nvidia_library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvidia_library))
    files = a_machine().with_gpu("rtx4090").with_wrong_driver("nvidia0", None).host()
    gpu = discover(asking_here(files), ask=["nvidia"], deadline_s=30).gpu("nvidia0")
    assert gpu is not None
    assert not gpu.usable.cuda
    assert gpu.facts["arch"].status == "unsupported"
    assert gpu.facts["arch"].detail == "NVML is installed, but the nvidia driver is not loaded"

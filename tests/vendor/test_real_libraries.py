"""The vendors' own libraries where there is no driver."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.host import local_host
from pytest_gpucoexist.probes import discover
from pytest_gpucoexist.testing.builder import a_machine
from tests.vendor.debian import NotReachable, unpacked
from tests.vendor.environments import installed
from tests.vendor.hosts import asking_here

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def nvidia_library(fake_drivers_cache: Path) -> Iterator[Path]:
    """A folder with NVIDIA's own `libnvidia-ml.so.1`, which makes nodes in /dev when root calls it."""
    before = set(Path("/dev").glob("nvidia*"))
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("this machine has an NVIDIA driver")
    try:
        root = unpacked(fake_drivers_cache, "libnvidia-ml1", section="non-free")
    except NotReachable as reason:
        pytest.skip(f"NVIDIA's own libnvidia-ml: {reason}")
    (library,) = root.rglob("libnvidia-ml.so.1")
    yield library.parent
    for node in set(Path("/dev").glob("nvidia*")) - before:
        node.unlink()


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
    assert str(gpu.facts["arch"].detail).startswith("the nvidia driver is not loaded; NVML was not called")


@pytest.fixture
def amd_library(fake_drivers_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """AMD's own library 6.1.2 where amdsmi looks; helpers run under the C library that it was built for."""
    if Path("/sys/class/kfd").exists():
        pytest.skip("this machine has an AMD driver")
    packages = ("libamd-smi0", "libc6", "libgcc-s1", "libstdc++6", "libdrm2", "libdrm-amdgpu1")
    try:
        root = unpacked(fake_drivers_cache, *packages, release="trixie")
    except NotReachable as reason:
        pytest.skip(f"AMD's own libamd_smi: {reason}")
    folder = root / "usr/lib/x86_64-linux-gnu"
    python = tmp_path / "python"
    loader = f"{folder}/ld-linux-x86-64.so.2 --argv0 {sys.executable} --library-path {folder} {sys.executable}"
    python.write_text(f'#!/bin/sh\nexec {loader} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    (tmp_path / "rocm" / "lib").mkdir(parents=True)
    library = (folder / "libamd_smi.so.0").resolve()
    (tmp_path / "rocm" / "lib" / "libamd_smi.so").symlink_to(library)
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "rocm"))
    monkeypatch.setenv("ROCM_HOME", str(tmp_path / "rocm"))
    return str(library)


@pytest.fixture
def amdsmi_6_1(fake_drivers_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client of the library's own release, before the installed one."""
    monkeypatch.syspath_prepend(str(installed(fake_drivers_cache, "amdsmi==6.1.2")))


def test_amdsmi_without_a_driver(amdsmi_6_1: None, amd_library: str) -> None:
    reply = local_host().ask("amdsmi", deadline_s=30)
    assert reply.status == "unsupported"
    assert (reply.detail or "").startswith("AMD SMI is installed, but the amdgpu driver is not loaded")


def test_amdsmi_and_the_library_of_another_release(amd_library: str) -> None:
    reply = local_host().ask("amdsmi", deadline_s=30)
    assert reply.status == "broken"
    assert f"amdsmi 7.0.2 does not match {amd_library}: it has no amdsmi_" in (reply.detail or "")

"""`torch_device` and `cupy_device` over stand-ins, and over the real torch (CPU build) where there is one."""

from __future__ import annotations

import os
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.machines import AMD0, NVIDIA0, NVIDIA1, workstation
from tests.fixtures.running import Suite
from tests.pins.stand_ins import write_cupy, write_torch

# The runtime's order is its own: the second card of the machine comes first.
CUDA = [
    {"name": "NVIDIA RTX 3060", "uuid": "6d0a5d3c-1d1b-4b5f-8c5e-000000000042"},
    {"name": "NVIDIA RTX 4090", "uuid": "6d0a5d3c-1d1b-4b5f-8c5e-000000000041"},
]
CUDA_BY_ADDRESS = [
    {"name": "NVIDIA RTX 3060", "pci_bus_id": 0x42, "pci_device_id": 0, "pci_domain_id": 0},
    {"name": "NVIDIA RTX 4090", "pci_bus_id": 0x41, "pci_device_id": 0, "pci_domain_id": 0},
]
CUDA_BY_TEXT = [
    {"name": "NVIDIA RTX 3060", "pci_bus_id": "00000000:42:00.0"},
    {"name": "NVIDIA RTX 4090", "pci_bus_id": "00000000:41:00.0"},
]
HIP = [{"name": "AMD Radeon PRO W7900", "uuid": "38643466-3261-3662-3163-336535663730"}]
CUPY = [
    {"name": "NVIDIA RTX 3060", "pci": "0000:42:00.0"},
    {"name": "NVIDIA RTX 4090", "pci": "0000:41:00.0"},
]


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Suite:
    monkeypatch.syspath_prepend(str(pytester.path))
    return Suite(pytester)


@pytest.mark.parametrize("devices", [CUDA, CUDA_BY_ADDRESS, CUDA_BY_TEXT])
def test_torch_device_is_current_and_cleaned_up(suite: Suite, devices: list[dict[str, Any]]) -> None:
    write_torch(suite.pytester.path, devices, cuda="12.8")
    suite.pytester.makepyfile(
        f"""
        import sys
        import pytest

        def test_before():
            assert "torch" not in sys.modules

        @pytest.mark.cuda(arch="8.9")
        def test_device(torch_device, gpu):
            import torch
            assert gpu.pci_address == "{NVIDIA0}" and torch_device == torch.device("cuda", 1)
            assert torch.cuda.current_device() == 1
            torch.cuda.allocate(100)
            torch.cuda.set_device(0)

        def test_after():
            import torch
            assert torch.cuda.current_device() == 0
            assert torch.cuda.memory_reserved(1) == 0

        @pytest.mark.cuda(arch="8.6")
        def test_other(torch_device):
            import torch
            assert torch_device.index == torch.cuda.current_device() == 0
        """
    )
    suite.run().assert_outcomes(passed=4)


def test_cache_is_emptied_after_a_failure(suite: Suite) -> None:
    write_torch(suite.pytester.path, CUDA, cuda="12.8", current=1)
    suite.pytester.makepyfile(
        """
        import pytest

        @pytest.mark.cuda(arch="8.6")
        def test_fails(torch_device):
            import torch
            torch.cuda.allocate(100)
            raise AssertionError

        def test_after():
            import torch
            assert torch.cuda.current_device() == 1 and torch.cuda.memory_reserved(0) == 0
        """
    )
    suite.run().assert_outcomes(passed=1, failed=1)


def test_rocm_build_also_says_cuda(suite: Suite) -> None:
    write_torch(suite.pytester.path, HIP, cuda="", hip="6.4.43482")
    suite.pytester.makepyfile(
        f"""
        import pytest

        def test_amd(torch_device, rocm_gpu):
            assert rocm_gpu.pci_address == "{AMD0}"
            assert (torch_device.type, torch_device.index) == ("cuda", 0)

        def test_nvidia(torch_device, cuda_gpu):
            raise AssertionError

        def test_pair(torch_device, gpu_pair):
            assert torch_device.index == 0
        """
    )
    result = suite.run()
    result.assert_outcomes(passed=2, skipped=1)
    result.stdout.fnmatch_lines(["*torch 2.8.0 is built for ROCm; leased: nvidia0 (0000:41:00.0)*"])


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        ({"cuda": "12.8"}, "*torch 2.8.0 is built for CUDA; leased: amd0 (0000:c1:00.0)*"),
        ({}, "*torch 2.8.0 is built for the CPU only; leased: amd0*"),
        ({"xpu": "2025.1"}, "*torch 2.8.0 is built for Intel XPU; leased: amd0*"),
    ],
)
def test_other_builds_are_skipped_with_the_reason(suite: Suite, build: dict[str, str], reason: str) -> None:
    write_torch(suite.pytester.path, [], **build)  # type: ignore[arg-type]
    suite.pytester.makepyfile("def test_it(torch_device, rocm_gpu): raise AssertionError")
    result = suite.run()
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines([reason])


def test_intel_devices_cannot_be_told_apart(suite: Suite) -> None:
    write_torch(suite.pytester.path, [{"name": "Arc"}], xpu="2025.1")
    suite.pytester.makepyfile("def test_it(torch_device, intel_gpu): raise AssertionError")
    result = suite.run()
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*torch's XPU devices cannot be told apart*leased is intel0*"])


def test_device_that_the_runtime_does_not_show_is_an_error(suite: Suite) -> None:
    write_torch(suite.pytester.path, CUDA[:1], cuda="12.8")
    suite.pytester.makepyfile(
        """
        import pytest

        @pytest.mark.cuda(arch="8.9")
        def test_it(torch_device): raise AssertionError
        """
    )
    result = suite.run()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*nvidia0 *is not among the devices that torch 2.8.0 enumerates: 0: NVIDIA RTX 3060*"])


@pytest.mark.parametrize(("fixture", "name"), [("torch_device", "torch"), ("cupy_device", "CuPy")])
def test_absent_framework_is_skipped(suite: Suite, fixture: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setattr(sys, "path", [each for each in sys.path if not (Path(each) / name.lower()).is_dir()])
    suite.pytester.makepyfile(f"def test_it({fixture}): raise AssertionError")
    result = suite.run()
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines([f"*{name} is not installed*"])


@pytest.mark.parametrize("name", ["torch", "cupy"])
def test_broken_framework_does_not_pass_for_an_absent_one(suite: Suite, name: str) -> None:
    (suite.pytester.path / name).mkdir()
    (suite.pytester.path / name / "__init__.py").write_text("import a_library_that_it_needs")
    suite.pytester.makepyfile(f"def test_it({name}_device): raise AssertionError")
    result = suite.run()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*No module named 'a_library_that_it_needs'*"])


def test_cupy_device_is_current_and_its_pools_are_freed(suite: Suite) -> None:
    write_cupy(suite.pytester.path, CUPY)
    suite.pytester.makepyfile(
        f"""
        import pytest

        @pytest.mark.cuda(arch="8.9")
        def test_device(cupy_device, gpu):
            import cupy
            assert gpu.pci_address == "{NVIDIA0}" and cupy_device.id == cupy.cuda.current == 1
            cupy.get_default_memory_pool().malloc(100)
            cupy.get_default_pinned_memory_pool().malloc(100)
            cupy.cuda.Device(0).use()
            raise AssertionError

        def test_after():
            import cupy
            assert cupy.cuda.current == 0
            with cupy.cuda.Device(1):
                assert cupy.get_default_memory_pool().total_bytes() == 0
            assert cupy.get_default_pinned_memory_pool().n_free_blocks() == 0

        @pytest.mark.cuda(arch="8.6")
        def test_other(cupy_device, gpu):
            assert gpu.pci_address == "{NVIDIA1}" and cupy_device.id == 0

        def test_amd(cupy_device, rocm_gpu):
            raise AssertionError
        """
    )
    result = suite.run()
    result.assert_outcomes(passed=2, failed=1, skipped=1)
    result.stdout.fnmatch_lines(["*CuPy 13.6.0 is built for CUDA; leased: amd0*"])


def test_cupy_for_rocm(suite: Suite) -> None:
    write_cupy(suite.pytester.path, [{"name": "W7900", "pci": AMD0}], is_hip=True)
    suite.pytester.makepyfile("def test_it(cupy_device, rocm_gpu): assert cupy_device.id == 0")
    suite.run().assert_outcomes(passed=1)


def test_simulated_devices(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMULATED", "1")
    suite.use(workstation())
    write_torch(suite.pytester.path, CUDA, cuda="12.8")
    write_cupy(suite.pytester.path, CUPY)
    suite.pytester.makepyfile(
        """
        def test_torch(torch_device):
            assert torch_device.type == "cpu"

        def test_cupy(cupy_device):
            raise AssertionError
        """
    )
    result = suite.run("--gpu-simulate")
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(["*CuPy has no device that stands for a simulated nvidia0*"])


def test_real_torch_for_the_cpu(tmp_path: Path) -> None:
    """The real package, in an interpreter of its own that the variable names."""
    python = os.environ.get("GPUCOEXIST_TORCH_PYTHON")
    if not python:
        pytest.skip("needs a Python with torch's CPU build: set GPUCOEXIST_TORCH_PYTHON to it")
    script = textwrap.dedent(
        """
        import os, sys
        import torch
        sys.path.append(os.environ["PACKAGES"])  # of another Python: behind its own
        import pytest
        from pytest_gpucoexist.model.machine import Gpu, Machine
        from pytest_gpucoexist.session.pins.torch import built_for, current_torch_device, _enumerate
        from pytest_gpucoexist.session.pins.unsuitable import Unsuitable

        gpu = Gpu(id="nvidia0", pci_address="0000:41:00.0", vendor="nvidia")
        assert built_for(torch) is None and _enumerate(torch) == []
        with current_torch_device([gpu], Machine(name="demo", simulated=True)) as device:
            assert device == torch.device("cpu") and torch.ones(2, device=device).sum() == 2
        with pytest.raises(Unsuitable, match="is built for the CPU only; leased: nvidia0"):
            with current_torch_device([gpu], Machine(name="here")):
                pass
        # What the pin relies on exists in the real package, with or without a GPU.
        for name in ("device", "set_device", "empty_cache", "device_count", "get_device_properties"):
            assert callable(getattr(torch.cuda, name)), name
        print("real torch agrees")
        """
    )
    root = Path(__file__).resolve().parents[2]
    packages = Path(pytest.__file__).resolve().parents[1]
    environ = {**os.environ, "PYTHONPATH": str(root), "PACKAGES": str(packages)}
    done = subprocess.run(
        [python, "-c", script], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "real torch agrees" in done.stdout

"""A session of its own on the devices of the fake drivers: the machine as a value, the drivers as real libraries.

No kernel shows these devices, so the machine is read from a file, and a plugin says that it is no replay. Everything
else is what a user has: processes of both vendors, their runtimes found by the dynamic loader.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_gpucoexist.model.machine import Gpu, Machine, Usable
from tests.conftest import ROOT
from tests.fakes.gpus import AMD_GPUS, NVIDIA_GPUS
from tests.fixtures.running import loaded

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.machine import FakeMachine

__all__ = ["machine_of_fakes", "run_on_fakes", "run_pytest"]

_PLUGIN = """
from dataclasses import replace

def pytest_gpucoexist_machine(config, machine):
    return replace(machine, simulated=False)
"""

_LIBRARIES = ("LD_LIBRARY_PATH", "ROCM_PATH", "ROCM_HOME", "LD_PRELOAD")
_MASKS = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_KEPT = ("PYTEST_GPU_LEASE_DIR", "PYTEST_DISABLE_PLUGIN_AUTOLOAD", "PYTEST_DEBUG_TEMPROOT")


def machine_of_fakes() -> Machine:
    """The devices that the fake drivers have, as discovery would describe them."""
    nvidia = [
        Gpu(
            id=f"nvidia{number}", vendor="nvidia", kind="discrete", driver="nvidia", usable=Usable(cuda=True),
            pci_address=gpu.pci_address, uuid=gpu.uuid, name=gpu.name, arch=gpu.compute_capability,
            memory_total_bytes=gpu.memory_total_bytes,
        )
        for number, gpu in enumerate(NVIDIA_GPUS)
    ]  # fmt: skip
    amd = [
        Gpu(
            id=f"amd{number}", vendor="amd", kind="discrete", driver="amdgpu", usable=Usable(rocm=True),
            pci_address=gpu.pci_address, uuid=gpu.uuid, name=gpu.name, arch=gpu.target,
            memory_total_bytes=gpu.memory_total_bytes,
        )
        for number, gpu in enumerate(AMD_GPUS)
    ]  # fmt: skip
    return Machine(name="fakes", gpus=(*nvidia, *amd), asked=("amd", "nvidia"))


def run_on_fakes(fake_gpus: FakeMachine, folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in a process of its own, on the machine of `fake_gpus`. `folder` is for what it needs."""
    (folder / "machine.json").write_text(json.dumps(replace(machine_of_fakes(), simulated=True).to_json()))
    (folder / "no_replay.py").write_text(_PLUGIN)
    plugins = ("-p", "no_replay", f"--gpu-machine={folder / 'machine.json'}", "--gpu-gates=off")
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    return run_pytest(*plugins, *args, environ={**fake_gpus.environ, "PYTHONPATH": path})


def run_pytest(*args: str, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run pytest in a process of its own, without what this one has of masks, workers and libraries."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if (not name.startswith("PYTEST_") or name in _KEPT) and name not in {*_LIBRARIES, *_MASKS}
    }
    common = ["-p", "no:cacheprovider", "-p", "no:hypothesispytest", *loaded(xdist=False)]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *common, *args],
        cwd=ROOT,
        env={**kept, "COLUMNS": "120", **(environ or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )

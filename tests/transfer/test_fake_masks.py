"""The fakes see the devices that masks leave, as the project's own rules say: each checks the other.

One process loads the libraries once per mask, in a child: what a runtime reads, it reads when it starts.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.model.visibility.cuda import select_cuda
from pytest_gpucoexist.model.visibility.order import amd_uuid, count_cuda
from pytest_gpucoexist.model.visibility.rocm import select_hip, select_rocr
from tests.fakes.gpus import AMD_GPUS, NVIDIA_GPUS
from tests.model.visibility.machines import AMD_UNIQUE, NVIDIA_UUIDS, amd, machine, nvidia

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.fakes.machine import FakeMachine

_CHILD = """
import ctypes, json, os, sys

def seen(variables):
    os.environ.update(variables)
    found = []
    text = ctypes.create_string_buffer(32)
    if sys.argv[1] == "cuda":
        library = ctypes.CDLL("libcuda.so.1")
        status, count, name = library.cuInit(0), library.cuDeviceGetCount, library.cuDeviceGetPCIBusId
    else:
        library = ctypes.CDLL("libamdhip64.so.7")
        status, count, name = library.hipInit(0), library.hipGetDeviceCount, library.hipDeviceGetPCIBusId
    if status == 100:
        return []
    assert status == 0, status
    number = ctypes.c_int()
    assert count(ctypes.byref(number)) == 0
    for device in range(number.value):
        assert name(text, 32, device) == 0
        found.append(text.value.decode().lower())
    return found

for variables in json.load(sys.stdin):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, json.dumps(seen(variables)).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        answer = file.read()
    print(answer if os.waitpid(child, 0)[1] == 0 else '"throws"', flush=True)
"""

NVIDIA = machine(nvidia(0), nvidia(1), nvidia(2))
AMD = (amd(0), amd(1), amd(2))

LISTS = (
    [
        "",
        "-1",
        "0,9",
        "9,0",
        "0,0",
        "0, 1",
        " 1",
        "01",
        "010",
        "0x1",
        "0x",
        "0,,1",
        ",",
        "0,",
        "1,0",
        "2,1,0",
        "1gpu",
        "+1",
    ]
    + ["GPU-XX", "GPU-", "gpu-", "G", "MIG-1", "0,GPU-", "0,9,0", "0,-1,0", "0,1,2,0"]
    + [uuid[:length] for uuid in NVIDIA_UUIDS for length in (5, 12, 40)]
    + [f"GPU-{unique:016x}"[:length] for unique in AMD_UNIQUE for length in (4, 5, 12, 20)]
    + [f"GPU-{unique:016X}" for unique in AMD_UNIQUE]
    + ["GPU-4b2c1a9f-8e7d-6c5b-3a29-18f7e6d5c4b3", f"{NVIDIA_UUIDS[1]},{NVIDIA_UUIDS[0]}", f"{NVIDIA_UUIDS[1]},0"]
    + [f"{NVIDIA_UUIDS[0]},{NVIDIA_UUIDS[0][:9]}", f"1,GPU-{AMD_UNIQUE[0]:016x}"]
)


def random_lists(count: int) -> list[str]:
    """Lists out of what entries are made of; the seed is part of the test."""
    chance = random.Random(5)
    parts = ["0", "1", "2", "3", "-1", "01", " ", "0x1", "GPU-", "GPU-ec", "GPU-a1b2", "gpu-12", "x", ""]
    return [",".join(chance.choice(parts) for _entry in range(chance.randint(1, 4))) for _list in range(count)]


def seen(environ: Mapping[str, str], runtime: str, masks: Sequence[Mapping[str, str]]) -> list[list[str] | str]:
    names = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "LD_PRELOAD")
    inherited = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        [sys.executable, "-S", "-c", _CHILD, runtime],
        env={**inherited, **environ},
        input=json.dumps(masks),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def describe(fake: FakeMachine) -> None:
    geforce, radeon = NVIDIA_GPUS[1], AMD_GPUS[0]
    fake.nvidia(*(replace(geforce, pci_address=gpu.pci_address or "", uuid=gpu.uuid) for gpu in NVIDIA.gpus))
    fake.amd(*(replace(radeon, pci_address=gpu.pci_address or "", uuid=amd_uuid(gpu)) for gpu in AMD))


def addresses(keys: Sequence[str]) -> list[str]:
    by_key = {gpu.key: gpu.pci_address or "" for gpu in (*NVIDIA.gpus, *AMD)}
    return [by_key[key] for key in keys]


def test_cuda_visible_devices(fake_cuda: dict[str, str], fake_gpus: FakeMachine) -> None:
    describe(fake_gpus)
    lists = [*LISTS, *random_lists(150)]
    found = seen(fake_cuda, "cuda", [{"CUDA_VISIBLE_DEVICES": value} for value in lists])
    counted = count_cuda(NVIDIA, {})
    for value, devices in zip(lists, found, strict=True):
        assert devices == addresses(select_cuda(value, counted, NVIDIA.gpus).devices), repr(value)


def test_rocr_visible_devices(fake_hip: dict[str, str], fake_gpus: FakeMachine) -> None:
    describe(fake_gpus)
    lists = [*LISTS, *random_lists(150)]
    found = seen(fake_hip, "hip", [{"ROCR_VISIBLE_DEVICES": value} for value in lists])
    for value, devices in zip(lists, found, strict=True):
        expected = select_rocr(value, AMD)
        assert devices == ("throws" if expected.throws else addresses(expected.devices)), repr(value)


@pytest.mark.parametrize("variable", ["HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"])
def test_hip_visible_devices(fake_hip: dict[str, str], fake_gpus: FakeMachine, variable: str) -> None:
    describe(fake_gpus)
    lists = [value for value in (*LISTS, *random_lists(150)) if value]
    found = seen(fake_hip, "hip", [{variable: value} for value in lists])
    for value, devices in zip(lists, found, strict=True):
        assert devices == addresses(select_hip(value, AMD).devices), repr(value)


def test_hip_counts_what_rocr_leaves_and_prefers_its_own_variable(
    fake_hip: dict[str, str], fake_gpus: FakeMachine
) -> None:
    describe(fake_gpus)
    first, second, third = (gpu.pci_address for gpu in AMD)
    cases = {
        ("2,0", "1", None): [first],
        ("2,0", "0,2", None): [third],
        ("1", "1", None): [],
        ("2,1", None, "0"): [third],
        (None, "1", "0"): [second],
        (None, "", "2"): [third],
        (None, "", ""): [first, second, third],
        (None, None, None): [first, second, third],
    }
    names = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
    masks = [{name: value for name, value in zip(names, case, strict=True) if value is not None} for case in cases]
    assert seen(fake_hip, "hip", masks) == list(cases.values())


def test_cuda_device_order(fake_cuda: dict[str, str], fake_gpus: FakeMachine) -> None:
    """NVML's order is the description's; CUDA's own puts what is faster first, unless it is asked for bus order."""
    slow = replace(NVIDIA_GPUS[0], pci_address="0000:01:00.0", compute_capability="7.5")
    fast = replace(NVIDIA_GPUS[1], pci_address="0000:02:00.0", compute_capability="8.9")
    fake_gpus.nvidia(slow, fast)
    by_bus = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    masks = [{}, by_bus, {"CUDA_VISIBLE_DEVICES": "1"}, {"CUDA_VISIBLE_DEVICES": "1", **by_bus}]
    one, other = slow.pci_address, fast.pci_address
    assert seen(fake_cuda, "cuda", masks) == [[other, one], [one, other], [one], [other]]
    fake_gpus.put({"nvidia.0.speed": 9, "nvidia.1.speed": 1})
    assert seen(fake_cuda, "cuda", [{}]) == [[one, other]]

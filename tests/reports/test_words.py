"""How values are said to people."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_gpucoexist.model.machine import Gpu, Link, Machine, Mask, NumaNode, Usable
from pytest_gpucoexist.model.readings import Fact
from pytest_gpucoexist.reports import words
from tests.reports import machines

GIB = 1 << 30


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (None, words.UNKNOWN),
        (0, "0 B"),
        (999, "999 B"),
        (24564 << 20, "24 GiB"),
        (81559 << 20, "80 GiB"),
        (8 * GIB - (100 << 20), "7.9 GiB"),
        (512 << 20, "512 MiB"),
        (1536 * GIB, "1.5 TiB"),
        (5000 << 40, "5000 TiB"),
    ],
)
def test_size(size: int | None, said: str) -> None:
    assert words.describe_size(size) == said


@pytest.mark.parametrize(
    ("link", "said"),
    [
        ((16.0, 16, 16.0, 16), "Gen4 x16"),
        ((2.5, 16, 16.0, 16), "Gen4 x16 (now Gen1)"),
        ((16.0, 8, 16.0, 16), "Gen4 x8 of x16"),
        ((16.0, 0, 16.0, 16), "down"),
        ((None, None, 32.0, 16), "Gen5 x16"),
        ((8.0, 4, None, None), "Gen3 x4"),
        ((20.0, 4, None, None), "20 GT/s x4"),
        ((None, 4, None, None), "x4"),
        ((None, None, None, None), words.UNKNOWN),
    ],
)
def test_link(link: tuple[float | None, int | None, float | None, int | None], said: str) -> None:
    speed, width, max_speed, max_width = link
    value = Link(current_speed_gtps=speed, current_width=width, max_speed_gtps=max_speed, max_width=max_width)
    assert words.describe_link(value, now=True) == said
    assert words.describe_link(value) == said.partition(" (")[0]


@pytest.mark.parametrize(
    ("vendor", "name", "said"),
    [
        ("nvidia", "NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 4090"),
        ("nvidia", "GA102 [GeForce RTX 3090]", "NVIDIA GeForce RTX 3090"),
        ("amd", "Raphael", "AMD Raphael"),
        ("other", "ASPEED Graphics Family", "ASPEED Graphics Family"),
        ("intel", None, "Intel [8086:46a6]"),
        ("other", None, "[8086:46a6]"),
    ],
)
def test_name(vendor: str, name: str | None, said: str) -> None:
    gpu = Gpu(id="x", vendor=vendor, name=name, vendor_id="0x8086", device_id="0x46a6")  # type: ignore[arg-type]
    assert words.describe_name(gpu) == said


def test_name_without_ids() -> None:
    assert words.describe_name(Gpu(id="x", vendor="nvidia")) == "NVIDIA"
    assert words.describe_name(Gpu(id="x")) == words.UNKNOWN
    assert words.describe_name(Gpu(id="x", vendor="amd", vendor_id="0x1002")) == "AMD [1002:?]"


def test_driver() -> None:
    unbound = {"driver": Fact(source="/sys/bus/pci/devices/0000:01:00.0/driver", status="absent")}
    untold = {"driver": Fact(source="", status="absent")}
    denied = {"driver": Fact(source="x", status="denied")}
    assert words.describe_driver(Gpu(id="x", driver="amdgpu", driver_version="6.12")) == "amdgpu 6.12"
    assert words.describe_driver(Gpu(id="x", driver="amdgpu")) == "amdgpu"
    assert words.describe_driver(Gpu(id="x", facts=unbound)) == "none"
    assert words.describe_driver(Gpu(id="x", facts=untold)) == words.UNKNOWN
    assert words.describe_driver(Gpu(id="x", facts=denied)) == words.UNKNOWN
    assert words.describe_driver(Gpu(id="x")) == words.UNKNOWN


def test_node() -> None:
    assert words.describe_node(NumaNode(id=1)) == "no CPUs"
    assert words.describe_node(NumaNode(id=0, cpulist="0-7", memory_bytes=64 * GIB, distances=(10, 21))) == (
        "CPUs 0-7, 64 GiB, distances 10 21"
    )


def test_time() -> None:
    assert words.describe_time("2025-11-30T10:00:00+00:00") == "2025-11-30 10:00 UTC"
    assert words.describe_time("2025-11-30T12:30:00+02:00") == "2025-11-30 10:30 UTC"
    assert words.describe_time("2025-11-30T10:00:00Z") == "2025-11-30 10:00 UTC"
    assert words.describe_time("2025-11-30T10:00:00") == "2025-11-30 10:00"
    assert words.describe_time("yesterday") == "yesterday"


def test_arch() -> None:
    assert words.describe_arch(Gpu(id="x", arch="8.9")) == "cc 8.9"
    assert words.describe_arch(Gpu(id="x", arch="gfx90a")) == "gfx90a"
    assert words.describe_arch(Gpu(id="x")) == words.UNKNOWN


def test_population_and_ranges() -> None:
    gpus = machines.workstation().gpus
    assert words.population(gpus) == "5 GPUs: 2 NVIDIA, 2 AMD, 1 other"
    assert words.population(gpus[:1]) == "1 NVIDIA GPU"
    assert words.population([]) == "no GPU"
    assert words.ranges([(0, "a0"), (1, "a1"), (2, "a2"), (5, "a5"), (6, "a6")]) == "a0 … a2, a5, a6"
    assert words.ranges([]) == ""


def test_joined_and_plural() -> None:
    assert words.joined([]) == ""
    assert words.joined(["a", "b"], "or") == "a or b"
    assert words.plural(12000, "process", "processes") == "12,000 processes"


def reason(gpu: Gpu, *masks: Mask) -> tuple[str, str | None]:
    return words.describe_use(gpu), words.why_not(gpu, Machine(name="m", gpus=(gpu,), masks=masks))


def test_a_gpu_that_can_be_used_needs_no_reason() -> None:
    assert reason(machines.nvidia(0, "0000:01:00.0")) == ("CUDA", None)
    assert reason(machines.amd(0, "0000:01:00.0")) == ("ROCm", None)


def test_what_is_no_compute_device_needs_no_reason() -> None:
    assert reason(machines.bmc()) == (words.UNKNOWN, None)


def test_the_variable_that_hides_a_gpu_is_named() -> None:
    gpu = machines.nvidia(0, "0000:01:00.0", visible=False)
    cuda = Mask(variable="CUDA_VISIBLE_DEVICES", value="1", runtime="cuda", devices=("0000:02:00.0",))
    rocr = Mask(variable="ROCR_VISIBLE_DEVICES", value="0", runtime="rocr", devices=())
    assert reason(gpu, cuda, rocr) == ("masked", "hidden by CUDA_VISIBLE_DEVICES=1")
    assert reason(gpu, rocr) == ("masked", "hidden by a visibility variable of the caller")


def test_the_reason_is_the_fact_of_the_vendors_runtime() -> None:
    facts = {
        "usable.cuda": Fact(source="s", status="absent", detail="bound to nouveau"),
        "usable.rocm": Fact(source="s", status="absent", detail="no AMD GPU"),
        "granted": Fact(source="s", status="denied", detail="not granted here: no /dev/nvidia0 in this container"),
    }
    gpu = machines.nvidia(0, "0000:01:00.0", usable=Usable(), facts=facts)
    assert reason(gpu) == ("no", "bound to nouveau")
    assert reason(replace(gpu, granted=False)) == (
        "not granted",
        "not granted here: no /dev/nvidia0 in this container",
    )


def test_where_nobody_says_why() -> None:
    gpu = machines.nvidia(0, "0000:01:00.0", usable=Usable(), facts={})
    assert reason(gpu) == ("no", "not known")


def test_of_an_intel_gpu_its_driver_is_what_is_known() -> None:
    gpu = replace(machines.nvidia(0, "0000:01:00.0", usable=Usable(), facts={}), vendor="intel")
    assert reason(replace(gpu, driver="xe")) == ("xe", None)
    assert reason(replace(gpu, driver="vfio-pci")) == ("no", "bound to vfio-pci")
    assert reason(replace(gpu, driver=None)) == ("no", "no driver bound")
    assert reason(replace(gpu, driver="i915", visible=False))[0] == "masked"
    assert "not granted to this container" in (reason(replace(gpu, granted=False))[1] or "")


def test_a_sleeping_gpu_says_so_where_its_link_was_left_alone() -> None:
    gpu = replace(machines.nvidia(0, "0000:01:00.0"), link=Link(), runtime_status="suspended")
    assert words.describe_gpu_link(gpu) == "asleep"
    assert words.describe_gpu_link(replace(gpu, runtime_status="active")) == words.UNKNOWN
    assert words.describe_gpu_link(replace(gpu, link=Link(max_speed_gtps=16.0, max_width=16))) == "Gen4 x16"

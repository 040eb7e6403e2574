"""The machine as a table and as a tree, as a person sees it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_gpucoexist.model.machine import Accelerator, Gpu, KfdNode, Machine, Runtime
from pytest_gpucoexist.model.readings import Fact
from pytest_gpucoexist.reports import drawing
from pytest_gpucoexist.reports.drawing import Item
from pytest_gpucoexist.reports.screen import Screen
from pytest_gpucoexist.reports.show import machine_text, machine_title
from pytest_gpucoexist.reports.tree import machine_tree
from tests.reports import machines

NARROW = Screen(width=80)
ALL = [machines.workstation(), machines.partitioned(), machines.unplaced()]

TABLE = """\
GPU           Name                     Driver             Memory
PCI address   Kind                     Link                 Arch  Node  Use
──────────────────────────────────────────────────────────────────────────────
nvidia0       NVIDIA GeForce RTX 4090  nvidia 570.86.15   24 GiB     0  CUDA
0000:43:00.0  discrete                 Gen4 x16              8.9
nvidia1       NVIDIA GeForce RTX 4090  nvidia 570.86.15   24 GiB     0  masked
0000:44:00.0  discrete                 Gen4 x16              8.9
amd0          AMD Radeon PRO W7900     amdgpu 6.12.12     48 GiB     1  no
0000:c1:00.0  discrete                 Gen4 x8 of x16    gfx1100
amd1          AMD Raphael              amdgpu            512 MiB     1  ROCm
0000:c3:00.0  integrated               Gen4 x16          gfx1036
other0        ASPEED Graphics Family   ast                     –     –  –
0000:c5:00.0  BMC                      –                       –

Not usable
  nvidia1  hidden by CUDA_VISIBLE_DEVICES=0
  amd0     user not in group render (gid 105)
"""  # noqa: RUF001

TREE = """\
workstation · 4 GPUs: 2 NVIDIA, 2 AMD · 1 display function · 2 NUMA nodes
SIMULATED: this is a replayed machine, nothing here was read from this one.

NUMA node 0  CPUs 0-15,32-47, 64 GiB, distances 10 21
└─ root port 0000:40:01.1  Gen4 x16
   └─ switch 0000:41:00.0  Gen4 x16
      ├─ nvidia0  0000:43:00.0  NVIDIA GeForce RTX 4090
      │     port 0000:42:00.0, Gen4 x16, nvidia 570.86.15, 24 GiB, cc 8.9, CUDA
      └─ nvidia1  0000:44:00.0  NVIDIA GeForce RTX 4090
            port 0000:42:01.0, Gen4 x16 (now Gen1), nvidia 570.86.15, 24 GiB, cc
            8.9, masked

NUMA node 1  CPUs 16-31,48-63, 64 GiB, distances 21 10
├─ root port 0000:c0:01.1  Gen4 x8 of x16
│  └─ amd0  0000:c1:00.0  AMD Radeon PRO W7900
│        Gen4 x8 of x16, amdgpu 6.12.12, 48 GiB, gfx1100, not usable
└─ root port 0000:c0:08.1  Gen4 x16
   └─ amd1  0000:c3:00.0  AMD Raphael
         integrated, Gen4 x16, amdgpu, 512 MiB, gfx1036, ROCm

NUMA node not told
└─ root port 0000:c0:02.1  Gen4 x16
   └─ bridge 0000:c4:00.0  Gen4 x16
      └─ other0  0000:c5:00.0  ASPEED Graphics Family  BMC, ast

Not usable
  nvidia1  hidden by CUDA_VISIBLE_DEVICES=0
  amd0     user not in group render (gid 105)"""


def test_table_on_80_columns_has_two_lines_for_each_gpu() -> None:
    assert TABLE in machine_text(machines.workstation(), NARROW)


def test_table_on_a_wide_screen_has_one_line_for_each_gpu() -> None:
    lines = machine_text(machines.workstation(), Screen(width=140)).split("\n")
    (line,) = [line for line in lines if line.startswith("nvidia0  ")]
    expected = "nvidia0 0000:43:00.0 NVIDIA GeForce RTX 4090 discrete nvidia 570.86.15 24 GiB 8.9 0 Gen4 x16 CUDA"
    assert line.split() == expected.split()


def test_tree() -> None:
    assert machine_tree(machines.workstation(), NARROW) == TREE


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 200])
@pytest.mark.parametrize("machine", ALL, ids=lambda machine: machine.name)
def test_nothing_is_wider_than_the_screen(machine: Machine, width: int) -> None:
    for draw in (machine_text, machine_tree):
        for unicode in (True, False):
            text = draw(machine, Screen(width=width, unicode=unicode))
            assert max(map(len, text.split("\n"))) <= width
            assert unicode or text.isascii()
            assert not any(line != line.rstrip() for line in text.split("\n"))


@pytest.mark.parametrize("machine", ALL, ids=lambda machine: machine.name)
def test_colour_changes_nothing_but_colour(machine: Machine) -> None:
    from rich.text import Text

    for draw in (machine_text, machine_tree):
        coloured = draw(machine, Screen(width=100, colour=True))
        assert "\x1b[" in coloured
        assert "\n".join(line.rstrip() for line in Text.from_ansi(coloured).plain.split("\n")) == draw(
            machine, Screen(width=100)
        )


@pytest.mark.parametrize("machine", ALL, ids=lambda machine: machine.name)
def test_every_gpu_is_in_the_table_and_in_the_tree(machine: Machine) -> None:
    text, tree = machine_text(machine), machine_tree(machine)
    for gpu in machine.gpus:
        assert gpu.id in text
        assert gpu.id in tree or gpu.partition is not None


def test_sections() -> None:
    text = machine_text(machines.workstation(), Screen(width=130))
    for line in (
        "  node 0  CPUs 0-15,32-47, 64 GiB, distances 10 21",
        "  nvidia  570.86.15 open",
        "  rocm  6.3.1 (AMD) /opt/rocm-6.3.1",
        "  torch        2.6.0 (NVIDIA, CUDA 12.4) /v/torch",
        "  onnxruntime  1.20 (no GPU support, CPU only)",
        "  CUDA_VISIBLE_DEVICES=0  cuda: nvidia0",
        "  WARNING                 CUDA_VISIBLE_DEVICES=0 also hides AMD GPUs: HIP reads it because",
        "  ROCR_VISIBLE_DEVICES=2  rocr: amd0 (translated from Slurm's node-wide index 2)",
        "  nvidia0  python3 (PID 4711), 6 GiB",
        "           1 process not visible from here (1 by nvml)",
        "  0000:65:00.0  0x1bcf:0x001c class 0x0b4000, driver none",
        "  gpus  NVML counts 3 NVIDIA GPUs, PCI 2",
        "the recording has no /dev",
    ):
        assert line in text, line


def test_masks_that_leave_nothing_or_say_nothing() -> None:
    masks = machines.workstation().masks
    machine = replace(
        machines.workstation(), masks=(replace(masks[0], devices=()), replace(masks[1], devices=None), masks[1])
    )
    text = machine_text(machine, Screen(width=130))
    assert "cuda: no device remains" in text
    assert "rocr: not known what remains" in text


def test_versions_that_nobody_tells() -> None:
    runtimes = (
        Runtime(name="cuda", kind="runtime", built_for="Jetson"),
        Runtime(name="jax", kind="framework", version="0.4"),
    )
    text = machine_text(Machine(name="m", runtimes=runtimes, accelerators=(Accelerator(pci_address="0000:01:00.0"),)))
    assert "cuda  version not told (Jetson)" in text
    assert "jax  0.4 (no GPU support)" in text


@pytest.mark.parametrize(
    ("machine", "title"),
    [
        (Machine(name="bare"), "bare · no GPU"),
        (Machine(name="one", gpus=(machines.nvidia(0, "0000:01:00.0"),)), "one · 1 NVIDIA GPU"),
        (Machine(name="server", gpus=(machines.bmc(),)), "server · no GPU · 1 display function"),
    ],
)
def test_title(machine: Machine, title: str) -> None:
    assert machine_title(machine) == title


def test_a_machine_without_gpus_says_where_it_looked() -> None:
    assert "No GPU among 6 PCI functions." in machine_text(Machine(name="vm", pci_functions=6))
    assert "no PCI function that could be one" in machine_text(Machine(name="vm"))


def test_simulated_is_said_by_table_and_tree() -> None:
    machine = machines.workstation()
    real = replace(machine, simulated=False)
    for draw in (machine_text, machine_tree):
        assert "SIMULATED" in draw(machine)
        assert "SIMULATED" not in draw(real)


def test_a_name_cannot_move_the_cursor() -> None:
    assert "\x1b" not in machine_text(machines.unplaced()) + machine_tree(machines.unplaced())


def test_partitions_stand_below_their_device() -> None:
    tree = machine_tree(machines.partitioned())
    assert "0000:05:00.0  AMD Instinct MI300X  port 0000:04:00.0, Gen4 x16, amdgpu 6.12.12, 8 partitions" in tree
    assert "└─ amd0 … amd7  partitions 0 … 7  each 24 GiB, gfx942, ROCm" in tree
    assert "│     port" not in tree
    assert "│  └─ nvidia0  0000:81:00.0  NVIDIA A100-SXM4-40GB" in tree
    assert "│     ├─ nvidia1  partition 1/0  NVIDIA MIG 3g.20gb  20 GiB, cc 8.0, CUDA" in tree


def test_partitions_that_differ_have_a_line_each() -> None:
    machine = machines.partitioned()
    busy = replace(machine.gpus[3], visible=False)
    tree = machine_tree(replace(machine, gpus=(*machine.gpus[:3], busy, *machine.gpus[4:8])))
    assert "├─ amd3  partition 3  24 GiB, gfx942, masked" in tree
    assert "└─ amd7  partition 7  24 GiB, gfx942, ROCm" in tree


def test_gpus_that_nobody_places_have_headings_of_their_own() -> None:
    tree = machine_tree(machines.unplaced())
    assert tree.index("PCI\n") < tree.index("Without a PCI function\n")
    assert "nvidia0  0000:01:00.0  NVIDIA RTX[2J 4070  bridges not told, Gen4 x16, nouveau" in tree
    assert "└─ nvidia1  tegra-gpu  NVIDIA Orin (Jetson)  integrated, nvgpu, not usable" in tree


def test_where_no_chain_is_told_the_heading_says_so_once() -> None:
    gpus = tuple(machines.amd(n, f"0000:0{n + 1}:00.0", upstream=None, numa_node=None) for n in range(3))
    tree = machine_tree(Machine(name="m", gpus=gpus))
    assert "PCI  bridges not told\n├─ amd0  0000:01:00.0  AMD" in tree
    assert tree.count("not told") == 1


def test_nodes_without_a_gpu_have_one_line_each() -> None:
    machine = replace(machines.workstation(), gpus=machines.workstation().gpus[:2])
    assert "\nNUMA node 1  CPUs 16-31,48-63, 64 GiB, distances 21 10; no GPU" in machine_tree(machine)


def test_a_node_that_is_not_listed() -> None:
    gpu = machines.nvidia(0, "0000:01:00.0", numa_node=3, upstream=())
    assert "NUMA node 3  not listed\n└─ nvidia0" in machine_tree(Machine(name="m", gpus=(gpu,)))


def test_a_downstream_port_with_two_functions_has_a_line() -> None:
    chain = machines.chain("0000:00:01.0", "0000:01:00.0", "0000:02:00.0")
    gpus = (machines.amd(0, "0000:03:00.0", **chain), machines.amd(1, "0000:03:00.1", **chain))
    tree = machine_tree(Machine(name="m", gpus=gpus))
    assert "      └─ port 0000:02:00.0  Gen4 x16\n         ├─ amd0" in tree


def test_bridges_without_links_and_unbound_gpus() -> None:
    gpu = machines.nvidia(0, "0000:01:00.0", upstream=("0000:00:01.0",), driver=None, facts={
        "driver": Fact(source="/sys/x/driver", status="absent")
    })  # fmt: skip
    tree = machine_tree(Machine(name="m", gpus=(gpu,)))
    assert "└─ root port 0000:00:01.0\n" in tree
    assert ", no driver, " in tree


def test_addresses_are_in_bus_order_even_when_domains_differ_in_length() -> None:
    gpus = (machines.amd(1, "10000:01:00.0", upstream=()), machines.amd(0, "0000:41:00.0", upstream=()))
    tree = machine_tree(Machine(name="m", gpus=gpus))
    assert tree.index("amd0") < tree.index("amd1")


def test_xgmi_groups() -> None:
    assert machine_tree(machines.partitioned()).endswith("\n\nXGMI joins amd8, amd9")
    lonely = machines.amd(0, "0000:01:00.0", kfd=KfdNode(node=1))
    assert "XGMI" not in machine_tree(Machine(name="m", gpus=(lonely, Gpu(id="x", uuid="y"))))


def test_an_item_without_details_is_continued_below_itself() -> None:
    item = Item(head="a " * 30, children=[Item(head="b " * 30)])
    lines = drawing.draw(item, Screen(width=40)).split("\n")
    assert len(lines) == 4
    assert lines[1].startswith("│  a")
    assert lines[2].startswith("└─ b")
    assert lines[3].startswith("      b")

"""From a recorded tree with nodes and an identity to the reasons that a person reads."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.host import open_recording
from pytest_gpucoexist.probes import discover

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucoexist.model.machine import Machine

USER = {"uid": 1000, "gid": 1000, "groups": [1000], "group_names": {"render": 105, "video": 44}}
RENDER_USER = {**USER, "groups": [1000, 105]}
PROPERTIES = """\
cpu_cores_count 0
simd_count 192
mem_banks_count 1
io_links_count 0
location_id {location}
domain 0
drm_render_minor {minor}
gfx_target_version 110000
num_xcc 1
unique_id 0
"""


def node(mode: int, gid: int) -> dict[str, Any]:
    return {"kind": "chardev", "mode": mode, "uid": 0, "gid": gid, "major": 226, "minor": 128}


NODES = {
    "/dev/nvidiactl": node(0o666, 0),
    "/dev/nvidia0": node(0o666, 0),
    "/dev/nvidia-uvm": node(0o666, 0),
    "/dev/kfd": node(0o660, 105),
    "/dev/dri/renderD128": node(0o660, 105),
    "/dev/dri/renderD129": node(0o660, 105),
}


class Workstation:
    """One NVIDIA and two AMD cards, written the way `sysfs` lays them out."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.card("0000:41:00.0", "0x10de", "0x2684", "nvidia")
        self.card("0000:03:00.0", "0x1002", "0x744c", "amdgpu", render=128)
        self.card("0000:83:00.0", "0x1002", "0x744c", "amdgpu", render=129)
        self.write("proc/driver/nvidia/gpus/0000:41:00.0/information", "Model: \t\t NVIDIA L4\nDevice Minor: \t 0\n")
        nodes = "sys/class/kfd/kfd/topology/nodes"
        self.write(f"{nodes}/0/gpu_id", "0\n")
        self.write(f"{nodes}/0/properties", "cpu_cores_count 16\nsimd_count 0\n")
        for number, (bus, minor) in enumerate(((0x03, 128), (0x83, 129)), start=1):
            self.write(f"{nodes}/{number}/gpu_id", f"{4710 + number}\n")
            self.write(f"{nodes}/{number}/properties", PROPERTIES.format(location=bus << 8, minor=minor))

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def card(self, address: str, vendor: str, device: str, driver: str, render: int | None = None) -> None:
        folder = f"sys/devices/pci0000:00/{address}"
        for name, text in (("vendor", vendor), ("device", device), ("class", "0x030000"), ("numa_node", "0")):
            self.write(f"{folder}/{name}", f"{text}\n")
        drivers = self.root / "sys/bus/pci/drivers" / driver
        drivers.mkdir(parents=True, exist_ok=True)
        (self.root / folder / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")
        (drivers / address).symlink_to(f"../../../../devices/pci0000:00/{address}")
        if render is not None:
            self.write(f"{folder}/drm/renderD{render}/dev", f"226:{render}\n")
        devices = self.root / "sys/bus/pci/devices"
        devices.mkdir(parents=True, exist_ok=True)
        (devices / address).symlink_to(f"../../../devices/pci0000:00/{address}")

    def discover(self, nodes: dict[str, Any], identity: dict[str, Any], **more: Any) -> Machine:
        record = {"record": 1, "name": "ws", "nodes": nodes, "identity": identity, **more}
        self.write("gpucoexist/record.json", json.dumps(record))
        return discover(open_recording(str(self.root)))


@pytest.fixture
def workstation(tmp_path: Path) -> Workstation:
    return Workstation(tmp_path)


def detail(machine: Machine, key: str, runtime: str) -> str:
    gpu = machine.gpu(key)
    assert gpu is not None
    return gpu.facts[f"usable.{runtime}"].detail or ""


def usable(machine: Machine) -> list[tuple[str, bool, bool, bool]]:
    return [(gpu.id, gpu.usable.cuda, gpu.usable.rocm, gpu.granted) for gpu in machine.gpus]


def test_everything_is_there(workstation: Workstation) -> None:
    machine = workstation.discover(NODES, RENDER_USER)
    assert usable(machine) == [
        ("amd0", False, True, True),
        ("nvidia0", True, False, True),
        ("amd1", False, True, True),
    ]


def test_a_user_without_the_group(workstation: Workstation) -> None:
    machine = workstation.discover(NODES, USER)
    assert [gpu.usable.rocm for gpu in machine.gpus] == [False, False, False]
    assert detail(machine, "nvidia0", "cuda").startswith("the nvidia driver is bound")
    assert detail(machine, "amd0", "rocm").startswith("user not in group render (gid 105)")


def test_one_node_of_another_group_loses_both_amd_gpus(workstation: Workstation) -> None:
    machine = workstation.discover({**NODES, "/dev/dri/renderD129": node(0o660, 44)}, RENDER_USER)
    assert usable(machine) == [
        ("amd0", False, False, True),
        ("nvidia0", True, False, True),
        ("amd1", False, False, True),
    ]
    assert "ROCm loses every AMD GPU" in detail(machine, "amd0", "rocm")


def test_a_container_with_a_part_of_the_nodes(workstation: Workstation) -> None:
    workstation.write(".dockerenv", "")
    nodes = {path: value for path, value in NODES.items() if path not in {"/dev/nvidia0", "/dev/dri/renderD129"}}
    machine = workstation.discover(nodes, RENDER_USER, environ={"container": "docker"})
    assert usable(machine) == [
        ("amd0", False, True, True),
        ("nvidia0", False, False, False),
        ("amd1", False, False, False),
    ]
    assert "not granted here: no /dev/nvidia0 in this container" in detail(machine, "nvidia0", "cuda")


def test_nodes_that_nobody_recorded_an_identity_for(workstation: Workstation) -> None:
    workstation.write("gpucoexist/record.json", json.dumps({"record": 1, "nodes": NODES}))
    machine = discover(open_recording(str(workstation.root)))
    assert [gpu.usable.cuda or gpu.usable.rocm for gpu in machine.gpus] == [True, True, True]

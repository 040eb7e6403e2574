"""Two hundred machines that differ from a known one in one thing: the answer differs in that thing, and only there."""

from __future__ import annotations

import random
import re
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.host import open_recording
from pytest_gpucoexist.host.tree import MemoryTree
from pytest_gpucoexist.model.identity import vendor_of
from pytest_gpucoexist.model.machine import Gpu, Machine
from pytest_gpucoexist.probes import discover
from tests.conftest import ROOT
from tests.probes.sysfs import a_workstation, host_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucoexist.host.base import Host

MACHINES = ROOT.parent / "shared" / "machines"
RECORDED = (
    "vm-2node-switch.tar.gz",
    "ghw/ghw-ryzen1600-turks.tar.xz",
    "ghw/ghw-alderlake-igpu.tar.xz",
    "hwloc/linux/2pa-pcidomain32bits.tar.xz",
    "hwloc/linux/32em64t-2n8c+dax+nvme+mic+dimms.tar.xz",
)
FIELD_OF_FILE = {
    "vendor": "vendor_id",
    "device": "device_id",
    "class": "class_id",
    "subsystem_vendor": "subsystem_id",
    "numa_node": "numa_node",
    "local_cpulist": "local_cpulist",
    "current_link_speed": "link.current_speed_gtps",
    "current_link_width": "link.current_width",
    "max_link_speed": "link.max_speed_gtps",
    "max_link_width": "link.max_width",
    "resource": "bars",
    "boot_vga": "boot_vga",
    "power/runtime_status": "runtime_status",
}


@dataclass(frozen=True)
class Case:
    """A machine's tree, its answer, and the GPU to change."""

    random: random.Random
    tree: MemoryTree
    before: Machine
    gpu: Gpu
    folder: str

    def write(self, name: str, content: str | bytes) -> None:
        data = content.encode() if isinstance(content, str) else content
        self.tree.add_file(f"{self.folder}/{name}", data)

    def after(self) -> Machine:
        machine = discover(host_of(self.tree, self.before.name))
        assert [item.message for item in machine.conflicts if item.kind == "probe"] == []
        return machine

    def one(self, machine: Machine) -> Gpu:
        found = machine.gpu(self.gpu.key)
        assert found is not None
        return found

    def others_are_as_before(self, machine: Machine) -> None:
        """Ids are numbers in bus order and may move; nothing else of another GPU may."""
        for gpu in self.before.gpus:
            other = machine.gpu(gpu.key)
            if gpu.key != self.gpu.key:
                assert other is not None
                assert replace(other, id="") == replace(gpu, id="")

    def files(self) -> list[str]:
        return [name for name in FIELD_OF_FILE if self.tree.kind(f"{self.folder}/{name}") == "file"]


def copied(host: Host) -> MemoryTree:
    """Copy `/sys` of a recording into a tree that can be changed."""
    tree = MemoryTree()
    pending = ["/sys"]
    while pending:
        folder = pending.pop()
        tree.add_dir(folder)
        for name in host.list_dir(folder):
            path = f"{folder}/{name}"
            try:
                tree.add_link(path, host.read_link(path))
                continue
            except OSError:
                pass
            try:
                tree.add_file(path, host.read_bytes(path))
            except IsADirectoryError:
                pending.append(path)
            except OSError:
                continue
    return tree


@cache
def bases() -> list[tuple[MemoryTree, Machine]]:
    trees = [("sample", a_workstation().tree)]
    if MACHINES.is_dir():
        trees += [(name, copied(open_recording(str(MACHINES / name)))) for name in RECORDED]
    return [(tree, discover(host_of(tree, name))) for name, tree in trees]


def change_vendor(case: Case) -> None:
    vendor = case.random.choice(["0x10de", "0x1002", "0x8086", "0x1a03", "0x5333"])
    case.write("vendor", f"{vendor}\n")
    machine = case.after()
    gpu = case.one(machine)
    assert (gpu.vendor_id, gpu.vendor) == (vendor, vendor_of(vendor))
    assert gpu.facts["vendor_id"].source.endswith("/vendor")
    assert gpu.kind == "bmc" or vendor != "0x1a03"
    case.others_are_as_before(machine)


def change_address(case: Case) -> None:
    old = case.gpu.pci_address or ""
    new = f"{old[:-4]}{case.random.randrange(0x10, 0x1F):02x}.{old[-1]}"
    parent = case.folder.rpartition("/")[0]
    for path, kind in list(case.tree.walk()):
        if path.startswith(f"{case.folder}/"):
            moved = f"{parent}/{new}{path.removeprefix(case.folder)}"
            if kind == "file":
                case.tree.add_file(moved, case.tree.read(path, 1 << 20).replace(old.encode(), new.encode()))
            elif kind == "link":
                case.tree.add_link(moved, case.tree.target(path))
    case.tree.remove(case.folder)
    case.tree.remove(f"/sys/bus/pci/devices/{old}")
    case.tree.add_link(f"/sys/bus/pci/devices/{new}", f"../../..{parent.removeprefix('/sys')}/{new}")
    machine = case.after()
    gpu = machine.gpu(new)
    assert machine.gpu(old) is None
    assert gpu is not None
    assert gpu.upstream == case.gpu.upstream
    assert (gpu.vendor_id, gpu.device_id, gpu.numa_node) == (
        case.gpu.vendor_id,
        case.gpu.device_id,
        case.gpu.numa_node,
    )
    assert machine.pci_functions == case.before.pci_functions
    case.others_are_as_before(machine)


def change_numa_node(case: Case) -> None:
    node = case.random.choice([-1, 0, 1, 2, 7, 255])
    case.write("numa_node", f"{node}\n")
    machine = case.after()
    gpu = case.one(machine)
    assert gpu.numa_node == (None if node == -1 else node)
    assert gpu.facts["numa_node"].status == ("unsupported" if node == -1 else "ok")
    case.others_are_as_before(machine)


def change_class(case: Case) -> None:
    code = case.random.choice(["0x020000", "0x060400", "0x030200", "0x038000", "0x0b4000"])
    case.write("class", f"{code}\n")
    machine = case.after()
    gpu = machine.gpu(case.gpu.key)
    assert (gpu is not None) == code.startswith("0x03")
    assert gpu is None or gpu.class_id == code
    accelerators = {item.pci_address for item in machine.accelerators}
    assert (case.gpu.pci_address in accelerators) == (code == "0x0b4000")
    assert machine.pci_functions == case.before.pci_functions
    case.others_are_as_before(machine)


def change_link(case: Case) -> None:
    speed, width = case.random.choice([2.5, 5.0, 8.0, 16.0, 32.0, 64.0]), case.random.choice([1, 2, 4, 8, 16])
    case.write("current_link_speed", f"{speed} GT/s PCIe\n")
    case.write("current_link_width", f"{width}\n")
    case.write("power/runtime_status", "active\n")
    machine = case.after()
    link = case.one(machine).link
    assert (link.current_speed_gtps, link.current_width) == (speed, width)
    assert (link.max_speed_gtps, link.max_width) == (case.gpu.link.max_speed_gtps, case.gpu.link.max_width)
    case.others_are_as_before(machine)


def change_driver(case: Case) -> None:
    driver = case.random.choice([None, "nouveau", "vfio-pci", "nvidia", "amdgpu", "xe"])
    case.tree.remove(f"{case.folder}/driver")
    uevent = f"{case.folder}/uevent"
    if case.tree.kind(uevent) == "file":
        lines = case.tree.read(uevent, 4096).decode().splitlines()
        case.write("uevent", "\n".join(line for line in lines if not line.startswith("DRIVER=")))
    if driver is not None:
        case.tree.add_link(f"{case.folder}/driver", f"../../../bus/pci/drivers/{driver}")
    machine = case.after()
    gpu = case.one(machine)
    assert gpu.driver == driver
    assert gpu.facts["driver"].status == ("absent" if driver is None else "ok")
    needed = {"nvidia": "nvidia", "amd": "amdgpu"}.get(gpu.vendor)
    if driver != needed:
        assert not gpu.usable.cuda
        assert not gpu.usable.rocm
    case.others_are_as_before(machine)


def remove_file(case: Case) -> None:
    name = case.random.choice(case.files())
    case.tree.remove(f"{case.folder}/{name}")
    machine = case.after()
    assert_not_from(case, machine, name, {"absent"})


def garbage_in_file(case: Case) -> None:
    name = case.random.choice(case.files())
    kind = case.random.choice(["bytes", "words", "huge", "negative", "nul"])
    garbage = {
        "bytes": bytes(case.random.randrange(1, 256) for _ in range(40)),
        "words": b"<html>502 Bad Gateway</html>\n",
        "huge": b"9" * case.random.randrange(30, 6000) + b"\n",
        "negative": b"-7\n",
        "nul": b"\0" * 4096,
    }[kind]
    case.write(name, garbage)
    machine = case.after()
    assert_not_from(case, machine, name, {"broken", "unsupported", "absent"})


def truncate_file(case: Case) -> None:
    name = case.random.choice(case.files())
    whole = case.tree.read(f"{case.folder}/{name}", 65536)
    rest = whole[: case.random.randrange(0, max(1, len(whole) - 2))]
    case.write(name, rest)
    machine = case.after()
    gpu = machine.gpu(case.gpu.key)
    fact = gpu.facts[FIELD_OF_FILE[name]] if gpu is not None else None
    if fact is None or fact.status != "ok" or fact.source != f"{bus_folder(case)}/{name}":
        assert_not_from(case, machine, name, {"broken", "unsupported"})
        return
    # A shorter text can be a whole one ("16" to "1"): then the value is what the text now says.
    assert gpu is not None
    value = value_of(gpu, FIELD_OF_FILE[name])
    text = rest.decode().strip()
    assert text
    if name in {"vendor", "device", "class"}:
        assert int(str(value), 16) == int(text, 16)
    elif name == "subsystem_vendor":
        assert int(str(value).partition(":")[0], 16) == int(text, 16)
    elif name == "local_cpulist":
        assert str(value) in {text, text.partition("-")[0]}
    elif name in {"numa_node", "current_link_width", "max_link_width"}:
        assert str(value) == text
    elif name == "power/runtime_status":
        assert value == text
    elif name == "resource":
        assert len(gpu.bars or ()) <= len(case.gpu.bars or ())
    elif name == "boot_vga":
        assert value is (text == "1")
    else:
        assert text.startswith(re.sub(r"\.0$", "", str(value)))


def assert_not_from(case: Case, machine: Machine, name: str, statuses: set[str]) -> None:
    """The field has no value and says why, or it has one from another file."""
    field = FIELD_OF_FILE[name]
    gpu = machine.gpu(case.gpu.key)
    if gpu is None:
        assert name == "class"
        assert any(case.gpu.key in note for note in machine.notes)
        return
    fact = gpu.facts[field]
    if fact.status == "ok":
        assert fact.source != f"{bus_folder(case)}/{name}"
        assert value_of(gpu, field) == value_of(case.gpu, field)
    else:
        assert value_of(gpu, field) is None
        assert fact.status in statuses
        assert fact.detail
    if name not in {"vendor", "class"}:
        case.others_are_as_before(machine)


def bus_folder(case: Case) -> str:
    return f"/sys/bus/pci/devices/{case.gpu.pci_address}"


def value_of(gpu: Gpu, field: str) -> object:
    return getattr(gpu.link, field.partition(".")[2]) if field.startswith("link.") else getattr(gpu, field)


MUTATIONS: tuple[Callable[[Case], None], ...] = (
    change_vendor,
    change_address,
    change_numa_node,
    change_class,
    change_link,
    change_driver,
    remove_file,
    garbage_in_file,
    garbage_in_file,
    truncate_file,
)


@pytest.mark.parametrize("seed", range(200))
def test_a_mutation_changes_what_it_should(seed: int) -> None:
    chance = random.Random(seed)
    tree, before = chance.choice(bases())
    gpu = chance.choice([gpu for gpu in before.gpus if gpu.pci_address is not None])
    copy = deepcopy(tree)
    folder = host_of(copy).resolve(f"/sys/bus/pci/devices/{gpu.pci_address}")
    MUTATIONS[seed % len(MUTATIONS)](Case(chance, copy, before, gpu, folder))

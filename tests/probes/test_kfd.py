from __future__ import annotations

import errno

import pytest

from pytest_gpucoexist.host.tree import MemoryTree
from pytest_gpucoexist.model.machine import DrmNodes, KfdCpuNode, KfdLink
from pytest_gpucoexist.probes import discover
from pytest_gpucoexist.probes.kfd import NODES, address_of, gfx_name, observe, uuid_of
from tests.probes.sysfs import GPU_FILES, SysfsWriter, a_workstation, as_host, host_of, watched

# An MI210's properties, shortened; 25344 is 63:00.0.
MI210 = {
    "cpu_cores_count": 0,
    "simd_count": 416,
    "gfx_target_version": 90010,
    "vendor_id": 4098,
    "device_id": 29711,
    "location_id": 25344,
    "domain": 0,
    "drm_render_minor": 128,
    "unique_id": 999000000000000005,
    "num_xcc": 1,
}
CPU = {"cpu_cores_count": 64, "simd_count": 0}


def text(properties: dict[str, int]) -> bytes:
    return "".join(f"{name} {value}\n" for name, value in properties.items()).encode()


def add(tree: MemoryTree, node: int, properties: dict[str, int], *, bank: int | None = 1 << 36) -> None:
    tree.add_file(f"{NODES}/{node}/properties", text(properties))
    tree.add_file(f"{NODES}/{node}/gpu_id", b"47512\n")
    if bank is not None:
        heap = {"heap_type": 1, "size_in_bytes": bank, "flags": 0}
        tree.add_file(f"{NODES}/{node}/mem_banks/0/properties", text(heap))


def link(tree: MemoryTree, node: int, kind: str, number: int, **values: int) -> None:
    tree.add_file(f"{NODES}/{node}/{kind}_links/{number}/properties", text(values))


@pytest.mark.parametrize(
    ("version", "name"),
    [
        (90010, "gfx90a"),
        (90012, "gfx90c"),
        (90402, "gfx942"),
        (90008, "gfx908"),
        (100303, "gfx1033"),
        (110000, "gfx1100"),
        (110003, "gfx1103"),
        (120001, "gfx1201"),
    ],
)
def test_a_gfx_targets_step_is_hexadecimal_in_its_name(version: int, name: str) -> None:
    assert gfx_name(version) == name


@pytest.mark.parametrize(
    ("domain", "location", "expected"),
    [
        (0, 25344, ("0000:63:00.0", 0)),
        (0, 1281, ("0000:05:00.1", 0)),
        (1, 0x3000_0000 | 0x0500, ("0001:05:00.0", 3)),
        (0, 0xF000_6500 | 0x18, ("0000:65:03.0", 15)),
    ],
)
def test_a_location_is_an_address_and_a_partition(domain: int, location: int, expected: tuple[str, int]) -> None:
    assert address_of(domain, location) == expected


def test_a_unique_id_is_sixteen_digits_and_zero_is_none() -> None:
    assert uuid_of(0xABC) == "GPU-0000000000000abc"
    assert uuid_of(0) is None
    assert uuid_of(None) is None


def test_a_gpu_of_the_topology_alone() -> None:
    tree = MemoryTree()
    add(tree, 0, CPU, bank=None)
    add(tree, 1, CPU, bank=None)
    add(tree, 2, MI210)
    link(tree, 2, "io", 0, type=2, node_to=1, weight=40, min_bandwidth=0, max_bandwidth=32000)
    link(tree, 2, "io", 1, type=2, node_to=0, weight=20)
    link(tree, 2, "p2p", 0, type=2, node_to=3, weight=60)
    link(tree, 2, "p2p", 1, type=2)
    machine = discover(host_of(tree))
    (gpu,) = machine.gpus
    assert (gpu.key, gpu.vendor, gpu.device_id, gpu.arch) == ("0000:63:00.0", "amd", "0x740f", "gfx90a")
    assert (gpu.uuid, gpu.memory_total_bytes, gpu.kind) == ("GPU-0ddd2935029d8005", 1 << 36, "discrete")
    assert gpu.drm == DrmNodes(render="renderD128")
    assert gpu.kfd is not None
    assert (gpu.kfd.node, gpu.kfd.gpu_id, gpu.kfd.nearest_cpu_node, gpu.kfd.num_xcc) == (2, 47512, 0, 1)
    assert gpu.kfd.links[0] == KfdLink(
        kind="io", type=2, node_to=1, weight=40, min_bandwidth_mbps=0, max_bandwidth_mbps=32000
    )
    assert len(gpu.kfd.links) == 3
    assert machine.kfd_cpu_nodes == (KfdCpuNode(node=0, cpu_cores=64), KfdCpuNode(node=1, cpu_cores=64))


def test_the_topology_joins_the_function_that_pci_shows() -> None:
    tree = a_workstation().tree
    add(tree, 1, MI210 | {"location_id": 0x8100, "gfx_target_version": 110000, "device_id": 0x744C})
    machine = discover(host_of(tree))
    gpu = machine.gpus[3]
    assert (gpu.key, gpu.arch, gpu.driver, gpu.numa_node) == ("0000:81:00.0", "gfx1100", "amdgpu", 1)
    assert gpu.facts["arch"].source == f"{NODES}/1/properties"
    assert gpu.facts["vendor_id"].source == "/sys/bus/pci/devices/0000:81:00.0/vendor"
    assert machine.conflicts == ()


def test_a_device_that_only_kfd_has_is_kept_and_is_a_conflict() -> None:
    tree = a_workstation().tree
    add(tree, 1, MI210)
    machine = discover(host_of(tree))
    assert machine.gpu("0000:63:00.0") is not None
    (conflict,) = machine.conflicts
    assert conflict.claims == {"kfd": True, "pci": False}
    assert "0000:63:00.0" in conflict.message


@pytest.mark.parametrize("old_kernel", [True, False], ids=["in the function", "in bits 31:28"])
def test_partitions_take_the_place_of_their_function(old_kernel: bool) -> None:
    writer = SysfsWriter()
    writer.function("pci0000:00/0000:00:01.1", {"class": "0x060400"})
    mi300 = GPU_FILES | {"vendor": "0x1002", "device": "0x74a1", "class": "0x120000"}
    writer.function("pci0000:00/0000:00:01.1/0000:05:00.0", mi300, driver="amdgpu")
    for name in ("card1", "renderD128"):
        writer.tree.add_dir(f"/sys/devices/pci0000:00/0000:00:01.1/0000:05:00.0/drm/{name}")
    for number in range(8):
        location = 0x500 | (number if old_kernel else number << 28)
        render = {"drm_render_minor": 128 + number, "location_id": location, "gfx_target_version": 90402}
        add(writer.tree, 2 + number, MI210 | render | {"device_id": 0x74A1}, bank=24 << 30)
    machine = discover(host_of(writer.tree))
    assert [gpu.key for gpu in machine.gpus] == [f"0000:05:00.0/{number}" for number in range(8)]
    assert [gpu.id for gpu in machine.gpus] == [f"amd{number}" for number in range(8)]
    assert {(gpu.driver, gpu.numa_node, gpu.upstream) for gpu in machine.gpus} == {("amdgpu", 0, ("0000:00:01.1",))}
    assert machine.gpus[0].drm == DrmNodes(card="card1", render="renderD128")
    assert machine.gpus[3].drm == DrmNodes(render="renderD131")
    assert {gpu.memory_total_bytes for gpu in machine.gpus} == {24 << 30}
    assert machine.gpus[3].facts["numa_node"].detail == "of the whole function 0000:05:00.0"
    assert machine.conflicts == ()


def test_two_nodes_that_claim_one_function_are_told_apart() -> None:
    tree = MemoryTree()
    add(tree, 1, MI210)
    add(tree, 2, MI210 | {"drm_render_minor": 129})
    machine = discover(host_of(tree))
    assert [(gpu.key, gpu.pci_address) for gpu in machine.gpus] == [
        ("0000:63:00.0/0", "0000:63:00.0"),
        ("0000:63:00.0/1", "0000:63:00.0"),
    ]


def test_an_apus_node_is_a_cpu_and_a_gpu() -> None:
    tree = MemoryTree()
    add(tree, 0, MI210 | {"cpu_cores_count": 4, "gfx_target_version": 0, "unique_id": 0}, bank=None)
    machine = discover(host_of(tree))
    (gpu,) = machine.gpus
    assert gpu.kind == "integrated"
    assert machine.kfd_cpu_nodes == (KfdCpuNode(node=0, cpu_cores=4),)
    assert gpu.kfd is not None
    assert gpu.kfd.nearest_cpu_node == 0
    assert (gpu.uuid, gpu.facts["uuid"].status) == (None, "unsupported")
    assert (gpu.arch, gpu.facts["arch"].status) == (None, "absent")
    assert (gpu.memory_total_bytes, gpu.facts["memory_total_bytes"].status) == (None, "absent")


def test_a_target_that_only_apus_have_is_integrated() -> None:
    tree = MemoryTree()
    add(tree, 1, MI210 | {"gfx_target_version": 110003})
    (gpu,) = discover(host_of(tree)).gpus
    assert (gpu.kind, gpu.facts["kind"].detail) == ("integrated", "gfx1103 is found in APUs only")


@pytest.mark.parametrize(("code", "status"), [(errno.EPERM, "denied"), (errno.EIO, "broken")])
def test_a_node_that_the_container_may_not_read_is_noted(code: int, status: str) -> None:
    tree = MemoryTree()
    add(tree, 1, MI210)
    add(tree, 2, MI210 | {"location_id": 0x4300})
    host = as_host(watched(tree, errors={f"{NODES}/1/properties": code}))
    machine = discover(host)
    assert [gpu.key for gpu in machine.gpus] == ["0000:43:00.0"]
    assert any(note.startswith(f"KFD node 1: {status}") for note in machine.notes)


def test_garbage_in_the_topology_costs_one_node_or_one_field() -> None:
    tree = MemoryTree()
    add(tree, 1, MI210)
    add(tree, 2, MI210 | {"location_id": 0x4300})
    tree.add_file(f"{NODES}/1/properties", b"\xde\xad\xbe\xef" * 10)
    tree.add_file(f"{NODES}/2/mem_banks/0/properties", b"heap_type one\n")
    tree.add_file(f"{NODES}/2/gpu_id", b"")
    tree.add_file(f"{NODES}/2/io_links/0/properties", b"type\n")
    tree.add_file(f"{NODES}/not-a-node/properties", b"simd_count 4\n")
    machine = discover(host_of(tree))
    (gpu,) = machine.gpus
    assert gpu.memory_total_bytes is None
    assert gpu.facts["memory_total_bytes"].status == "broken"
    assert gpu.kfd is not None
    assert (gpu.kfd.gpu_id, gpu.kfd.links) == (None, ())
    assert any("KFD node 1: broken" in note for note in machine.notes)


def test_no_topology_is_nothing_to_say() -> None:
    found = observe(host_of(MemoryTree()), [])
    assert (found.observations, found.cpu_nodes, found.notes) == ((), (), ())


def test_a_link_without_a_weight_is_not_the_nearest() -> None:
    tree = MemoryTree()
    add(tree, 0, CPU)
    add(tree, 1, CPU)
    add(tree, 2, MI210)
    link(tree, 2, "io", 0, type=2, node_to=0)
    link(tree, 2, "io", 1, type=2, node_to=1, weight=20)
    (gpu,) = discover(host_of(tree)).gpus
    assert gpu.kfd is not None
    assert gpu.kfd.nearest_cpu_node == 1

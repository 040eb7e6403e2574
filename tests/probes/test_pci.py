from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.model.machine import Bar, DrmNodes, Link
from pytest_gpucoexist.probes import discover, pci
from pytest_gpucoexist.probes.links import ASLEEP
from pytest_gpucoexist.probes.pcifiles import bars
from pytest_gpucoexist.probes.reader import Bad
from tests.probes.sysfs import GPU_FILES, SysfsWriter, a_workstation, as_host, host_of, watched

if TYPE_CHECKING:
    from pytest_gpucoexist.model.machine import Gpu, Machine

SLOT = "pci0000:00/0000:00:01.0/0000:01:00.0"
FOLDER = f"/sys/devices/{SLOT}"
BUS = "/sys/bus/pci/devices/0000:01:00.0"


def with_gpu(driver: str | None = "nvidia", **files: str) -> SysfsWriter:
    writer = SysfsWriter()
    writer.function("pci0000:00/0000:00:01.0", {"class": "0x060400"}, driver="pcieport")
    changed = {name.replace("__", "/"): text for name, text in files.items()}
    writer.function(SLOT, GPU_FILES | changed, driver=driver)
    return writer


def only(machine: Machine) -> Gpu:
    (gpu,) = machine.gpus
    return gpu


def test_a_workstation_from_sysfs_alone() -> None:
    machine = discover(host_of(a_workstation().tree))
    assert [(gpu.id, gpu.key, gpu.kind, gpu.driver) for gpu in machine.gpus] == [
        ("intel0", "0000:00:02.0", "integrated", "i915"),
        ("nvidia0", "0000:43:00.0", "discrete", "nvidia"),
        ("nvidia1", "0000:44:00.0", "discrete", "nvidia"),
        ("amd0", "0000:81:00.0", "discrete", "amdgpu"),
    ]
    assert machine.pci_functions == 10
    assert machine.asked == ()
    first, second = machine.gpus[1:3]
    assert first.upstream == ("0000:40:01.1", "0000:41:00.0", "0000:42:00.0")
    assert [bridge.driver for bridge in first.upstream_links] == ["pcieport"] * 3
    assert first.upstream_links[0].link == Link(
        current_speed_gtps=16.0, current_width=16, max_speed_gtps=32.0, max_width=16
    )
    assert second.link == Link(current_speed_gtps=2.5, current_width=4, max_speed_gtps=16.0, max_width=16)
    assert (first.vendor_id, first.device_id, first.class_id) == ("0x10de", "0x2684", "0x030000")
    assert first.subsystem_id == "0x10de:0x16f4"
    assert (first.numa_node, first.local_cpulist) == (0, "0-7")
    assert (first.iommu_group, first.boot_vga, first.runtime_status) == (15, True, "active")
    assert machine.gpus[0].upstream == ()
    assert [(node.id, node.cpulist) for node in machine.numa_nodes] == [(0, "0-7"), (1, "8-15")]


def test_bars_in_use_with_their_sizes() -> None:
    gpu = only(discover(host_of(with_gpu().tree)))
    assert gpu.bars == (
        Bar(index=0, size_bytes=16 << 20),
        Bar(index=1, size_bytes=32 << 30, is_64bit=True, prefetchable=True),
        Bar(index=3, size_bytes=32 << 20, is_64bit=True, prefetchable=True),
        Bar(index=5, size_bytes=128),
    )


@pytest.mark.parametrize("text", ["", "0x0 0x1", "garbage", "0x00000000f6000000 0x00000000f5ffffff 0x0000000000040200"])
def test_a_resource_file_that_makes_no_sense_is_no_list_of_bars(text: str) -> None:
    assert isinstance(bars(text), Bad)


def test_an_unbound_function_says_so() -> None:
    gpu = only(discover(host_of(with_gpu(driver=None).tree)))
    assert gpu.driver is None
    assert gpu.facts["driver"].status == "absent"
    assert gpu.facts["driver"].detail == "no driver is bound to it"


def test_a_driver_that_may_not_be_seen_is_not_called_unbound() -> None:
    host = as_host(watched(with_gpu().tree, errors={f"{BUS}/driver": errno.EACCES}))
    gpu = only(discover(host))
    assert gpu.driver is None
    assert gpu.facts["driver"].status == "denied"


def test_no_numa_node_is_none_and_the_fact_says_why() -> None:
    gpu = only(discover(host_of(with_gpu(numa_node="-1").tree)))
    assert gpu.numa_node is None
    assert gpu.facts["numa_node"].status == "unsupported"
    assert "-1" in str(gpu.facts["numa_node"].detail)


def test_a_cpu_list_is_derived_from_the_mask_where_only_that_is_there() -> None:
    writer = with_gpu(local_cpus="00000011,11111111")
    writer.tree.remove(f"{FOLDER}/local_cpulist")
    gpu = only(discover(host_of(writer.tree)))
    assert gpu.local_cpulist == "0,4,8,12,16,20,24,28,32,36"
    assert gpu.facts["local_cpulist"].source.endswith("/local_cpus")
    assert "derived" in str(gpu.facts["local_cpulist"].detail)


def test_uevent_tells_what_the_files_do_not() -> None:
    writer = with_gpu(driver=None)
    for name in ("vendor", "device", "class", "subsystem_vendor", "subsystem_device"):
        writer.tree.remove(f"{FOLDER}/{name}")
    uevent = b"DRIVER=nvidia\nPCI_CLASS=30000\nPCI_ID=10DE:2704\nPCI_SUBSYS_ID=1462:5110\nPCI_SLOT_NAME=0000:01:00.0\n"
    writer.tree.add_file(f"{FOLDER}/uevent", uevent)
    gpu = only(discover(host_of(writer.tree)))
    assert (gpu.vendor_id, gpu.device_id, gpu.class_id) == ("0x10de", "0x2704", "0x030000")
    assert (gpu.subsystem_id, gpu.driver) == ("0x1462:0x5110", "nvidia")
    assert {gpu.facts[name].source for name in ("vendor_id", "class_id", "driver")} == {f"{BUS}/uevent"}


def test_a_uevent_without_sense_tells_nothing() -> None:
    writer = with_gpu()
    writer.tree.remove(f"{FOLDER}/subsystem_device")
    writer.tree.add_file(f"{FOLDER}/uevent", b"PCI_SUBSYS_ID=nonsense\nPCI_SLOT_NAME\n")
    gpu = only(discover(host_of(writer.tree)))
    assert gpu.subsystem_id is None
    assert gpu.facts["subsystem_id"].status == "absent"


def test_a_function_whose_class_cannot_be_read_is_named() -> None:
    host = as_host(watched(with_gpu().tree, errors={f"{BUS}/class": errno.EIO}))
    machine = discover(host)
    assert machine.gpus == ()
    assert machine.pci_functions == 2
    assert any("0000:01:00.0" in note for note in machine.notes)


def test_a_bus_that_may_not_be_listed_is_named() -> None:
    host = as_host(watched(with_gpu().tree, errors={pci.BUS: errno.EACCES}))
    machine = discover(host)
    assert machine.pci_functions is None
    assert any(pci.BUS in note for note in machine.notes)


def test_padding_and_missing_newlines_do_no_harm() -> None:
    writer = with_gpu()
    for name, text in GPU_FILES.items():
        writer.tree.add_file(f"{FOLDER}/{name}", text.encode() + b"\n" + b"\0" * 100)
    padded = only(discover(host_of(writer.tree)))
    for name, text in GPU_FILES.items():
        writer.tree.add_file(f"{FOLDER}/{name}", text.encode())
    assert only(discover(host_of(writer.tree))) == padded == only(discover(host_of(with_gpu().tree)))


def test_a_function_that_fell_off_the_bus_keeps_its_folder_and_says_so() -> None:
    gone = {"current_link_speed": "Unknown", "current_link_width": "63", "max_link_speed": "64.0 GT/s PCIe"}
    gpu = only(discover(host_of(with_gpu(**gone).tree)))
    assert gpu.vendor == "nvidia"
    assert gpu.link.current_width is None
    assert gpu.facts["link.current_width"].status == "broken"
    assert gpu.facts["link.current_speed_gtps"].status == "unsupported"


def test_a_sleeping_gpu_and_its_sleeping_bridge_are_not_woken() -> None:
    writer = with_gpu(driver="amdgpu", vendor="0x1002", power__runtime_status="suspended")
    writer.tree.add_file("/sys/devices/pci0000:00/0000:00:01.0/power/runtime_status", b"suspended\n")
    for name in ("config", "mem_info_vram_total", "gpu_metrics", "vbios_version", "current_compute_partition"):
        writer.tree.add_file(f"{FOLDER}/{name}", b"0\n")
    watching = watched(writer.tree)
    gpu = only(discover(as_host(watching)))
    assert gpu.runtime_status == "suspended"
    assert (gpu.vendor_id, gpu.driver, gpu.numa_node, gpu.upstream) == ("0x1002", "amdgpu", 0, ("0000:00:01.0",))
    assert gpu.facts["link.current_width"].detail == ASLEEP
    reads = [path.rpartition("/")[2] for path in watching.reads]
    waking = {"config", "current_link_speed", "current_link_width", "max_link_speed", "max_link_width", "gpu_metrics"}
    assert waking.isdisjoint(reads)
    assert reads.index("runtime_status") < reads.index("vendor")


@pytest.mark.parametrize(
    ("code", "vendor", "listed", "accelerator"),
    [
        ("0x030000", "0x10de", True, False),
        ("0x030200", "0x10de", True, False),
        ("0x038000", "0x1002", True, False),
        ("0x120000", "0x1002", True, False),  # MI300X
        ("0x120000", "0x8086", False, True),  # an NPU
        ("0x120000", "0x1da3", False, True),  # Gaudi
        ("0x0b4000", "0x1bcf", False, True),  # a vector engine
        ("0x068000", "0x10de", False, False),  # NVSwitch
        ("0x040300", "0x10de", False, False),  # a GPU's audio function
    ],
)
def test_which_functions_are_listed(code: str, vendor: str, listed: bool, accelerator: bool) -> None:
    machine = discover(host_of(with_gpu(**{"class": code, "vendor": vendor}).tree))
    assert (len(machine.gpus) == 1, len(machine.accelerators) == 1) == (listed, accelerator)
    if accelerator:
        (item,) = machine.accelerators
        assert (item.vendor_id, item.class_id, item.upstream) == (vendor, code, ("0000:00:01.0",))
        assert (item.numa_node, item.link.current_width, item.driver) == (0, 16, "nvidia")


def test_only_gpus_and_what_is_above_them_are_looked_at() -> None:
    writer = a_workstation()
    for number in range(200):
        writer.function(f"pci0000:f0/0000:f0:{number // 8:02x}.{number % 8}", GPU_FILES | {"class": "0x088000"})
    watching = watched(writer.tree)
    machine = discover(as_host(watching))
    assert machine.pci_functions == 210
    assert len([path for path in watching.reads if "/0000:f0:" in path]) == 200  # each one's class
    assert all(path.endswith("/class") for path in watching.reads if "/0000:f0:" in path)


def test_plain_folders_in_place_of_links_leave_the_chain_unknown() -> None:
    writer = SysfsWriter()
    writer.tree.add_file("/sys/bus/pci/devices/0004:05:00.0/class", b"0x030000\n")
    gpu = only(discover(host_of(writer.tree)))
    assert gpu.upstream is None
    assert gpu.facts["upstream"].status == "absent"
    assert gpu.vendor == "other"
    assert gpu.kind == "unknown"


def test_a_dangling_link_in_the_bus_folder_does_no_harm() -> None:
    writer = a_workstation()
    writer.tree.add_link("/sys/bus/pci/devices/0000:99:00.0", "../../../devices/pci0000:99/0000:99:00.0")
    machine = discover(host_of(writer.tree))
    assert len(machine.gpus) == 4
    assert any("0000:99:00.0" in note for note in machine.notes)


def test_a_chain_that_cannot_be_resolved_says_why() -> None:
    gpu = only(discover(as_host(watched(with_gpu().tree, errors={BUS: errno.EIO}))))
    assert gpu.upstream is None
    assert gpu.facts["upstream"].status == "broken"


def test_long_domains_and_hosts_of_vmd_sort_behind_short_ones() -> None:
    writer = SysfsWriter()
    writer.function("pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:06.0/10000:e1:00.0", GPU_FILES)
    writer.function("pcifffe:00/fffe:00:02.0", GPU_FILES)
    writer.function("pci0000:00/0000:00:0e.0", {"class": "0x010400"})
    writer.function("pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:06.0", {"class": "0x060400"})
    machine = discover(host_of(writer.tree))
    assert [(gpu.id, gpu.key) for gpu in machine.gpus] == [("nvidia0", "fffe:00:02.0"), ("nvidia1", "10000:e1:00.0")]
    assert machine.gpus[1].upstream == ("0000:00:0e.0", "10000:e0:06.0")


@pytest.mark.parametrize(
    ("files", "path", "kind"),
    [
        ({"vendor": "0x1a03"}, SLOT, "bmc"),
        ({"vendor": "0x102b", "device": "0x0536"}, SLOT, "bmc"),
        ({"vendor": "0x1002", "device": "0x515e"}, SLOT, "bmc"),
        ({"vendor": "0x1af4"}, SLOT, "virtual"),
        ({"vendor": "0x1234"}, SLOT, "virtual"),
        ({"vendor": "0x8086"}, "pci0000:00/0000:00:02.0", "integrated"),
        ({"vendor": "0x8086"}, SLOT, "discrete"),
        ({"vendor": "0x1002"}, "pci0000:00/0000:00:01.0", "integrated"),
        ({"vendor": "0x1002"}, "pci0000:00/0000:00:08.1/0000:0c:00.0", "integrated"),
        ({"vendor": "0x1002"}, "pci0000:00/0000:00:05.0", "discrete"),
        ({"vendor": "0x10de"}, "pci0000:00/0000:00:04.0", "discrete"),
        ({"vendor": "0x5333"}, SLOT, "unknown"),
    ],
)
def test_the_kind_and_the_fact_that_decided_it(files: dict[str, str], path: str, kind: str) -> None:
    writer = SysfsWriter()
    writer.function(path, GPU_FILES | files)
    if path.count("/") > 1:
        writer.function(path.rpartition("/")[0], {"class": "0x060400"})
    gpu = only(discover(host_of(writer.tree)))
    assert gpu.kind == kind
    assert gpu.facts["kind"].detail
    assert gpu.is_compute == (kind in {"discrete", "integrated"})


def test_drm_nodes_come_from_the_functions_own_folder() -> None:
    writer = with_gpu()
    for name in ("card1", "renderD129", "controlD65", "card1/card1-HDMI-A-1"):
        writer.tree.add_dir(f"{FOLDER}/drm/{name}")
    gpu = only(discover(host_of(writer.tree)))
    assert gpu.drm == DrmNodes(card="card1", render="renderD129", others=("controlD65",))


def test_a_virtual_function_names_the_function_that_it_is_of() -> None:
    writer = a_workstation()
    folder = "pci0000:80/0000:80:03.1"
    no_link = {"current_link_speed": "Unknown", "current_link_width": "0", "boot_vga": "0"}
    writer.function(f"{folder}/0000:81:02.0", GPU_FILES | no_link, driver="vfio-pci")
    writer.tree.add_link(f"/sys/devices/{folder}/0000:81:02.0/physfn", "../0000:81:00.0")
    machine = discover(host_of(writer.tree))
    virtual, whole = machine.gpu("0000:81:02.0"), machine.gpu("0000:81:00.0")
    assert virtual is not None
    assert whole is not None
    assert virtual.features == {"virtual_function": True}
    assert virtual.facts["features.virtual_function"].detail == "of 0000:81:00.0"
    assert "virtual_function" not in whole.features

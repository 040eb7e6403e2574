from __future__ import annotations

import errno

import pytest

from pytest_gpucoexist.host.tree import MemoryTree
from pytest_gpucoexist.model.machine import DrmNodes
from pytest_gpucoexist.probes import discover
from pytest_gpucoexist.probes.drm import nodes_of
from tests.probes.sysfs import GPU_FILES, SysfsWriter, a_workstation, as_host, host_of, watched

DEVICE = "/sys/class/drm/card1/device"
UEVENT = (
    b"DRIVER=nvidia\nPCI_CLASS=30000\nPCI_ID=10DE:2704\nPCI_SUBSYS_ID=1462:5110\nPCI_SLOT_NAME=0000:09:00.0\n"
    b"MODALIAS=pci:v000010DEd00002704sv00001462sd00005110bc03sc00i00\n"
)


def test_connectors_and_other_names_are_no_nodes() -> None:
    names = ["card0", "card0-VGA-1", "controlD64", "renderD128", "ttm", "version", "card0-HDMI-A-1"]
    assert nodes_of(names) == DrmNodes(card="card0", render="renderD128", others=("controlD64",))
    assert nodes_of(["version"]) is None


def test_numbers_are_ordered_as_numbers() -> None:
    assert nodes_of(["card10", "card2"]) == DrmNodes(card="card2", others=("card10",))


def test_a_tree_with_only_a_card_tells_the_function_by_uevent() -> None:
    tree = MemoryTree()
    tree.add_file(f"{DEVICE}/uevent", UEVENT + b"\0" * 3000)
    tree.add_file(f"{DEVICE}/vendor", b"0x10de\n" + b"\0" * 4089)
    tree.add_file(f"{DEVICE}/current_link_width", b"16")
    (gpu,) = discover(host_of(tree)).gpus
    assert (gpu.key, gpu.vendor, gpu.device_id, gpu.driver) == ("0000:09:00.0", "nvidia", "0x2704", "nvidia")
    assert (gpu.class_id, gpu.subsystem_id, gpu.link.current_width) == ("0x030000", "0x1462:0x5110", 16)
    assert gpu.drm == DrmNodes(card="card1")
    assert gpu.upstream is None
    assert "not recorded" in str(gpu.facts["upstream"].detail)


def test_a_card_without_an_address_is_named_by_its_card() -> None:
    tree = MemoryTree()
    tree.add_link("/sys/class/drm/card0/device/driver", "../../../bus/pci/drivers/i915")
    tree.add_file("/sys/class/drm/card1/device/vendor", b"0x1002\n")
    tree.add_file("/sys/class/drm/card1/device/subsystem_vendor", b"0x1043\n")
    tree.add_file("/sys/class/drm/card1/device/unique_id", b"0123456789abcdef\n")
    machine = discover(host_of(tree))
    assert [(gpu.id, gpu.key, gpu.vendor, gpu.driver) for gpu in machine.gpus] == [
        ("intel0", "drm:card0", "intel", "i915"),
        ("amd0", "drm:card1", "amd", None),
    ]
    assert machine.gpu("drm:card0") is machine.gpus[0]
    assert machine.gpus[0].facts["pci_address"].status == "absent"
    assert machine.gpus[0].facts["vendor"].detail == "told by its driver, i915"


def test_cards_without_pci_behind_them_are_no_gpus_here() -> None:
    tree = a_workstation().tree
    tree.add_link("/sys/class/drm/card0/device/subsystem", "../../../bus/platform")
    tree.add_file("/sys/class/drm/card0/device/vendor", b"0x10de\n")
    tree.add_dir("/sys/class/drm/card9")
    tree.add_file("/sys/class/drm/card8/device/uevent", b"DRIVER=simple-framebuffer\n")
    tree.add_file("/sys/class/drm/version", b"drm 1.1.0 20060810\n")
    assert len(discover(host_of(tree)).gpus) == 4


def test_a_card_of_a_known_function_adds_nodes_and_no_device() -> None:
    tree = a_workstation().tree
    # As the kernel has it: the class folder links to the node, whose `device` is the function.
    folder = "/sys/devices/pci0000:80/0000:80:03.1/0000:81:00.0"
    for name in ("card2", "renderD130"):
        tree.add_link(f"{folder}/drm/{name}/device", "../../../0000:81:00.0")
        tree.add_link(f"/sys/class/drm/{name}", f"../../{folder.removeprefix('/sys/')}/drm/{name}")
    machine = discover(host_of(tree))
    assert len(machine.gpus) == 4
    assert machine.gpus[3].drm == DrmNodes(card="card2", render="renderD130")


def test_nodes_are_found_in_the_class_folder_when_the_function_has_no_drm_folder() -> None:
    tree = a_workstation().tree
    for name in ("card2", "renderD130"):
        tree.add_link(f"/sys/class/drm/{name}/device", "../../../devices/pci0000:80/0000:80:03.1/0000:81:00.0")
    assert discover(host_of(tree)).gpus[3].drm == DrmNodes(card="card2", render="renderD130")


def test_a_dangling_link_of_the_class_folder_still_names_its_function() -> None:
    tree = a_workstation().tree
    folder = "devices/pci0000:80/0000:80:03.1/0000:81:00.0/drm"
    tree.add_link("/sys/class/drm/card2", f"../../{folder}/card2")
    tree.add_link("/sys/class/drm/renderD130", f"../../{folder}/renderD130")
    tree.add_link("/sys/class/drm/card5", "../../devices/platform/vkms/drm/card5")
    tree.add_dir("/sys/class/drm/card6")
    assert discover(host_of(tree)).gpus[3].drm == DrmNodes(card="card2", render="renderD130")


def test_an_empty_drm_folder_is_no_nodes() -> None:
    tree = a_workstation().tree
    tree.add_dir("/sys/devices/pci0000:80/0000:80:03.1/0000:81:00.0/drm")
    gpu = discover(host_of(tree)).gpus[3]
    assert gpu.drm is None
    assert gpu.facts["drm"].status == "absent"


@pytest.mark.parametrize("subsystem", [True, False])
def test_a_function_whose_class_is_unreadable_is_still_found_by_its_card(subsystem: bool) -> None:
    writer = SysfsWriter()
    writer.function("pci0000:00/0000:00:01.0/0000:01:00.0", GPU_FILES, driver="nvidia")
    writer.tree.add_link("/sys/class/drm/card0/device", "../../../devices/pci0000:00/0000:00:01.0/0000:01:00.0")
    if subsystem:
        link = "../../../../bus/pci"
        writer.tree.add_link("/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/subsystem", link)
    errors = {"/sys/bus/pci/devices/0000:01:00.0/class": errno.EIO}
    machine = discover(as_host(watched(writer.tree, errors=errors)))
    assert [(gpu.key, gpu.vendor) for gpu in machine.gpus] == [("0000:01:00.0", "nvidia")]
    assert machine.notes

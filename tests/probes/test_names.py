from __future__ import annotations

import pytest

from pytest_gpucoexist.probes import discover
from pytest_gpucoexist.probes.names import PATHS, device_name
from tests.probes.sysfs import a_workstation, as_host, host_of, watched

# Lines of pci.ids as hwdata has them.
PCI_IDS = b"""#
#	List of PCI ID's
#
1002  Advanced Micro Devices, Inc. [AMD/ATI]
	744c  Navi 31 [Radeon RX 7900 XT/7900 XTX/7900 GRE/7900M]
		1da2 e471  NITRO+ RX 7900 XTX Vapor-X
		2684 10de  Not a device

# a comment within a vendor
	7550  Navi 48 [Radeon RX 9070/9070 XT/9070 GRE]
10de  NVIDIA Corporation
	0001  NV1
	2684  AD102 [GeForce RTX 4090]
8086  Intel Corporation
ffff  Illegal Vendor ID
C 03  Display controller
	00  VGA compatible controller
"""


@pytest.mark.parametrize(
    ("vendor", "device", "expected"),
    [
        ("0x10de", "0x2684", ("NVIDIA Corporation", "AD102 [GeForce RTX 4090]")),
        ("0x1002", "0x7550", ("Advanced Micro Devices, Inc. [AMD/ATI]", "Navi 48 [Radeon RX 9070/9070 XT/9070 GRE]")),
        ("0x1002", "0x2684", ("Advanced Micro Devices, Inc. [AMD/ATI]", None)),
        ("0x8086", "0xa780", ("Intel Corporation", None)),
        ("0x1da2", "0xe471", (None, None)),
    ],
)
def test_names_are_looked_up_within_their_vendor(vendor: str, device: str, expected: tuple[str, str]) -> None:
    assert device_name(b"\n" + PCI_IDS, vendor, device) == expected


def test_a_file_that_ends_early_is_no_trouble() -> None:
    for end in range(len(PCI_IDS)):
        vendor, device = device_name(b"\n" + PCI_IDS[:end], "0x10de", "0x2684")
        assert "NVIDIA Corporation".startswith(vendor or "")
        assert "AD102 [GeForce RTX 4090]".startswith(device or "")


@pytest.mark.parametrize("path", PATHS)
def test_names_come_from_the_systems_file(path: str) -> None:
    tree = a_workstation().tree
    tree.add_file(path, PCI_IDS)
    machine = discover(host_of(tree))
    assert [gpu.name for gpu in machine.gpus] == [
        None,
        "AD102 [GeForce RTX 4090]",
        "AD102 [GeForce RTX 4090]",
        "Navi 31 [Radeon RX 7900 XT/7900 XTX/7900 GRE/7900M]",
    ]
    assert (machine.gpus[1].facts["name"].source, machine.gpus[1].facts["name"].detail) == (path, "NVIDIA Corporation")
    assert machine.gpus[0].facts["name"].detail == "does not know Intel Corporation 0xa780"


def test_without_the_file_a_name_is_absent_and_says_what_to_install() -> None:
    gpu = discover(host_of(a_workstation().tree)).gpus[0]
    assert gpu.name is None
    assert gpu.facts["name"].status == "absent"
    assert "hwdata" in str(gpu.facts["name"].detail)


def test_a_machine_without_gpus_does_not_read_the_file() -> None:
    tree = a_workstation().tree
    for address in ("0000:00:02.0", "0000:43:00.0", "0000:44:00.0", "0000:81:00.0"):
        tree.remove(f"/sys/bus/pci/devices/{address}")
    watching = watched(tree)
    assert discover(as_host(watching)).gpus == ()
    assert not set(PATHS) & set(watching.reads)

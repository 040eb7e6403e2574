"""`/proc/driver/nvidia` as real drivers print it."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.host.base import Completed
from pytest_gpucoexist.probes import nvidia
from pytest_gpucoexist.probes.nvidia_driver import parse_version
from tests.probes.memory_host import MemoryHost

if TYPE_CHECKING:
    from pytest_gpucoexist.model.readings import Observation, Reading

PROPRIETARY = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.261.03  Tue Aug 12 17:58:51 UTC 2025\n"
    "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14+deb12u1) \n"
)
OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.133.07  Release Build"
    "  (dvs-builder@U22-I3-B04-1-3)  Fri Mar 14 12:57:14 UTC 2025\n"
    "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04) \n"
)
OPEN_ARM = "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  540.3.0  Release Build  (buildbrain@mobile-u64)"
INFORMATION = (
    "Model: \t\t NVIDIA GeForce RTX 4090\n"
    "IRQ:   \t\t 164\n"
    "GPU UUID: \t GPU-8d5b3f4e-1a2b-4c3d-9e8f-001122334455\n"
    "Video BIOS: \t 95.02.3c.00.8c\n"
    "Bus Type: \t PCIe\n"
    "DMA Size: \t 47 bits\n"
    "DMA Mask: \t 0x7fffffffffff\n"
    "Bus Location: \t 0000:41:00.0\n"
    "Device Minor: \t 3\n"
    "GPU Firmware: \t 570.133.07\n"
    "GPU Excluded:\t No\n"
)
NOT_OPENED_YET = (
    "Model: \t\t NVIDIA A100-SXM4-40GB\n"
    "IRQ:   \t\t 0\n"
    "GPU UUID: \t GPU-????????-????-????-????-????????????\n"
    "Video BIOS: \t ??.??.??.??.??\n"
    "Bus Type: \t PCIe\n"
    "DMA Size: \t 47 bits\n"
    "DMA Mask: \t 0x7fffffffffff\n"
    "Bus Location: \t 0000:07:00.0\n"
    "Device Minor: \t 0\n"
    "GPU Excluded:\t No\n"
)
OLD = "Model: \t\t GeForce GTX 650\nIRQ:   \t\t 44\nBus Location: \t 0000:04:00.0\nBlacklisted:\t Yes\n"


def readings(observation: Observation) -> dict[str, Reading]:
    return {reading.field: reading for reading in observation.readings}


def a_host(**more: str) -> MemoryHost:
    host = MemoryHost(files={"/proc/driver/nvidia/version": OPEN, "/sys/module/nvidia/version": "570.133.07\n"})
    host.files["/proc/driver/nvidia/gpus/0000:41:00.0/information"] = INFORMATION
    host.files.update(more)
    return host


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (PROPRIETARY, ("535.261.03", "proprietary")),
        (OPEN, ("570.133.07", "open")),
        (OPEN_ARM, ("540.3.0", "open")),
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  390.157  Wed Oct 12 09:19:07 UTC 2022",
            ("390.157", "proprietary"),
        ),
        ("", None),
        ("NVRM version: \0\0\0", None),
    ],
)
def test_version_text_of_both_flavours(text: str, expected: tuple[str, str] | None) -> None:
    assert parse_version(text) == expected


def test_information_is_understood() -> None:
    known = nvidia.parse_information(INFORMATION)
    assert known.model == "NVIDIA GeForce RTX 4090"
    assert known.uuid == "GPU-8d5b3f4e-1a2b-4c3d-9e8f-001122334455"
    assert known.minor == 3
    assert known.vbios_version == "95.02.3c.00.8c"
    assert known.bus_location == "0000:41:00.0"
    assert known.firmware == "570.133.07"
    assert not known.excluded


def test_question_marks_are_no_uuid() -> None:
    known = nvidia.parse_information(NOT_OPENED_YET)
    assert known.uuid is None
    assert known.vbios_version is None
    assert known.minor == 0


def test_text_of_an_old_driver_without_minor() -> None:
    known = nvidia.parse_information(OLD)
    assert known.minor is None
    assert known.excluded


def test_garbage_is_broken_and_quoted() -> None:
    known = nvidia.parse_information("\x7fELF garbage")
    assert known.status == "broken"
    assert "garbage" in (known.detail or "")


def test_a_gpu_is_observed_with_its_sources() -> None:
    (seen,) = nvidia.observe(a_host())
    told = readings(seen)
    assert seen.pci_address == "0000:41:00.0"
    assert told["uuid"].value == "GPU-8d5b3f4e-1a2b-4c3d-9e8f-001122334455"
    assert told["uuid"].source == "/proc/driver/nvidia/gpus/0000:41:00.0/information"
    assert told["driver_version"].value == "570.133.07"
    assert told["vendor"].value == "nvidia"


def test_a_uuid_that_is_not_known_yet_says_why() -> None:
    host = MemoryHost(files={"/proc/driver/nvidia/gpus/0000:07:00.0/information": NOT_OPENED_YET})
    (seen,) = nvidia.observe(host)
    told = readings(seen)["uuid"]
    assert (told.value, told.status) == (None, "unsupported")
    assert "question marks" in (told.detail or "")


def test_a_sleeping_gpu_is_not_woken() -> None:
    host = a_host(**{"/sys/bus/pci/devices/0000:41:00.0/power/runtime_status": "suspended\n"})
    (seen,) = nvidia.observe(host)
    told = readings(seen)
    assert "/proc/driver/nvidia/gpus/0000:41:00.0/information" not in host.read
    assert told["uuid"].value is None
    assert "asleep" in (told["uuid"].detail or "")
    assert told["driver_version"].value == "570.133.07"


def test_lines_without_a_colon_and_an_empty_minor_are_passed_over() -> None:
    known = nvidia.parse_information("Model: \t\t NVIDIA L4\n(truncated\nDevice Minor: \t \n")
    assert (known.model, known.minor, known.status) == ("NVIDIA L4", None, "ok")


def test_foreign_names_below_gpus_are_no_gpus() -> None:
    host = a_host(**{"/proc/driver/nvidia/gpus/README/information": "what\n"})
    assert list(nvidia.gpu_information(host)) == ["0000:41:00.0"]


def test_unreadable_information_keeps_its_status() -> None:
    host = a_host()
    host.errors["/proc/driver/nvidia/gpus/0000:41:00.0/information"] = errno.EACCES
    (seen,) = nvidia.observe(host)
    assert readings(seen)["name"].status == "denied"


def test_bound_functions_get_the_version_without_proc() -> None:
    host = MemoryHost(
        files={"/sys/module/nvidia/version": "535.261.03\n"},
        links={"/sys/bus/pci/drivers/nvidia/0000:43:00.0": "../../../../devices/pci0000:40/0000:43:00.0"},
    )
    host.files["/sys/bus/pci/drivers/nvidia/new_id"] = ""
    (seen,) = nvidia.observe(host)
    assert seen.pci_address == "0000:43:00.0"
    assert readings(seen)["driver_version"].source == "/sys/module/nvidia/version"


def test_nothing_is_observed_without_the_driver() -> None:
    assert nvidia.observe(MemoryHost()) == []
    assert nvidia.drivers(MemoryHost()) == []
    assert nvidia.conflicts(MemoryHost()) == []


def test_memory_that_is_a_numa_node() -> None:
    host = a_host(
        **{"/proc/driver/nvidia/gpus/0000:41:00.0/numa_status": "Node:      255\nStatus:    online\nSize: 3f0000000\n"}
    )
    (seen,) = nvidia.observe(host)
    told = readings(seen)["features.memory_node"]
    assert told.value is True
    assert told.detail == "memory is node 255"


def test_numa_status_of_a_gpu_without_such_memory() -> None:
    host = a_host(**{"/proc/driver/nvidia/gpus/0000:41:00.0/numa_status": "Node:      -1\nStatus:    offline\n"})
    (seen,) = nvidia.observe(host)
    assert "features.memory_node" not in readings(seen)


def test_recorded_power9_gpus_are_observed(shared: object) -> None:
    from pytest_gpucoexist.host import open_recording

    host = open_recording(f"{shared}/machines/hwloc/linux/nvidiagpunumanodes.tar.xz")
    seen = nvidia.observe(host)
    assert [item.pci_address for item in seen] == [
        "0004:05:00.0",
        "0004:06:00.0",
        "0006:00:00.0",
        "0007:00:00.0",
        "0035:04:00.0",
        "0035:05:00.0",
    ][: len(seen)]
    assert readings(seen[0])["features.memory_node"].value is True
    assert readings(seen[0])["name"].status == "absent"


def test_mig_instances_are_seen_in_the_capabilities() -> None:
    host = a_host()
    host.files["/proc/driver/nvidia/capabilities/gpu3/mig/gi1/access"] = "DeviceFileMinor: 12\nDeviceFileMode: 292\n"
    (seen,) = nvidia.observe(host)
    assert readings(seen)["features.mig"].value is True
    del host.files["/proc/driver/nvidia/capabilities/gpu3/mig/gi1/access"]
    host.files["/proc/driver/nvidia/capabilities/gpu3/mig/config"] = ""
    (seen,) = nvidia.observe(host)
    assert readings(seen)["features.mig"].value is False


def test_driver_with_its_flavour_and_version() -> None:
    (driver,) = nvidia.drivers(a_host())
    assert (driver.name, driver.version, driver.flavour) == ("nvidia", "570.133.07", "open")
    assert driver.source == "/proc/driver/nvidia/version"


@pytest.mark.parametrize(("taint", "flavour"), [("OE", "open"), ("POE", "proprietary"), ("PO", "proprietary")])
def test_flavour_by_taint(taint: str, flavour: str) -> None:
    host = MemoryHost(files={"/sys/module/nvidia/version": "535.261.03", "/sys/module/nvidia/taint": f"{taint}\n"})
    (driver,) = nvidia.drivers(host)
    assert driver.flavour == flavour


@pytest.mark.parametrize(
    ("answer", "flavour"),
    [
        (Completed(returncode=0, stdout=b"Dual MIT/GPL\n"), "open"),
        (Completed(returncode=0, stdout=b"NVIDIA\n"), "proprietary"),
        (Completed(returncode=1, stderr=b"modinfo: ERROR: Module nvidia not found.\n"), None),
        (None, None),
    ],
)
def test_flavour_by_licence_when_nothing_else_says_it(answer: Completed | None, flavour: str | None) -> None:
    host = MemoryHost(files={"/sys/module/nvidia/refcnt": "0"})
    if answer is not None:
        host.programs["modinfo", "-F", "license", "nvidia"] = answer
    (driver,) = nvidia.drivers(host)
    assert (driver.version, driver.flavour) == (None, flavour)


def test_nouveau_is_a_driver_as_old_as_the_kernel() -> None:
    host = MemoryHost(files={"/sys/module/nouveau/refcnt": "1", "/proc/sys/kernel/osrelease": "6.1.0-57-amd64\n"})
    (driver,) = nvidia.drivers(host)
    assert (driver.name, driver.version, driver.source) == ("nouveau", "6.1.0-57-amd64", "kernel release")


def test_parts_of_different_versions_are_a_conflict() -> None:
    host = a_host(**{"/sys/module/nvidia/version": "570.133.07", "/sys/module/nvidia_uvm/version": "570.124.06"})
    (conflict,) = nvidia.conflicts(host)
    assert conflict.kind == "driver-version"
    assert conflict.claims["/sys/module/nvidia_uvm/version"] == "570.124.06"
    assert "/proc/driver/nvidia/version says 570.133.07" in conflict.message


def test_flavours_that_disagree_are_a_conflict() -> None:
    host = a_host(**{"/sys/module/nvidia/taint": "POE"})
    (conflict,) = nvidia.conflicts(host)
    assert conflict.kind == "driver-flavour"
    assert set(conflict.claims.values()) == {"open", "proprietary"}


def test_equal_versions_are_no_conflict() -> None:
    assert nvidia.conflicts(a_host(**{"/sys/module/nvidia/taint": "OE"})) == []

"""amdgpu's, i915's and xe's sysfs attributes, as these drivers print them."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.host import open_recording
from pytest_gpucoexist.probes import amd, intel
from pytest_gpucoexist.probes.attributes import hwmon_names, kernel_release, line
from pytest_gpucoexist.probes.functions import PciFunction
from pytest_gpucoexist.probes.reader import Bad
from tests.probes.memory_host import MemoryHost

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucoexist.model.readings import Observation, Reading

AMD = "/sys/bus/pci/devices/0000:03:00.0"
FILES = {
    "mem_info_vram_total": "25753026560\n",
    "mem_info_vram_used": "1073741824\n",
    "mem_info_vis_vram_total": "25753026560\n",
    "unique_id": "4b1c0d2e3f405162\n",
    "vbios_version": "113-EXT85723-001\n",
    "product_name": "\n",
    "hwmon/hwmon4/name": "amdgpu\n",
}


def an_amd_host(**changed: str | bytes | None) -> MemoryHost:
    files: dict[str, str | bytes | None] = {**FILES, **changed}
    host = MemoryHost(files={f"{AMD}/{name}": text for name, text in files.items() if text is not None})
    host.files["/proc/version"] = "Linux version 6.8.0-51-generic (buildd@lcy02-amd64-065) #52-Ubuntu SMP"
    return host


def a_function(runtime_status: str | None = None) -> PciFunction:
    return PciFunction(path=AMD, address="0000:03:00.0", driver="amdgpu", runtime_status=runtime_status)


def told(observation: Observation) -> dict[str, Reading]:
    return {reading.field: reading for reading in observation.readings}


def amd_told(host: MemoryHost, function: PciFunction | None = None) -> dict[str, Reading]:
    (seen,) = amd.observe(host, [function or a_function()])
    assert seen.pci_address == "0000:03:00.0"
    return told(seen)


def test_memory_identity_and_version() -> None:
    read = amd_told(an_amd_host())
    assert read["memory_total_bytes"].value == 25753026560
    assert read["memory_free_bytes"].value == 25753026560 - 1073741824
    assert read["features.large_bar"].value is True
    assert read["uuid"].value == "GPU-4b1c0d2e3f405162"
    assert read["vbios_version"].value == "113-EXT85723-001"
    assert read["driver_version"].value == "6.8.0-51-generic"
    assert "name" not in read


def test_a_dkms_module_states_its_own_version() -> None:
    host = an_amd_host()
    host.files["/sys/module/amdgpu/version"] = "6.12.12\n"
    assert amd_told(host)["driver_version"].value == "6.12.12"
    (driver,) = amd.drivers(host)
    assert (driver.name, driver.version) == ("amdgpu", "6.12.12")


def test_a_small_bar() -> None:
    assert amd_told(an_amd_host(mem_info_vis_vram_total="268435456\n"))["features.large_bar"].value is False


def test_a_serial_is_never_read() -> None:
    host = an_amd_host(serial_number="692251000001\n")
    amd_told(host)
    assert f"{AMD}/serial_number" not in host.read


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4b1c0d2e3f405162", "GPU-4b1c0d2e3f405162"),
        ("0x00000000DEADBEEF", "GPU-00000000deadbeef"),
        ("12ab", "GPU-00000000000012ab"),
    ],
)
def test_unique_id_becomes_rocms_uuid(text: str, expected: str) -> None:
    assert amd.unique_id(text) == expected


@pytest.mark.parametrize(
    ("text", "status"),
    [("0000000000000000", "unsupported"), ("", "unsupported"), ("FAKE00000001", "broken"), ("1" * 17, "broken")],
)
def test_unique_id_that_names_nothing(text: str, status: str) -> None:
    value = amd.unique_id(text)
    assert isinstance(value, Bad)
    assert value.status == status


def test_missing_unique_id_is_absent() -> None:
    read = amd_told(an_amd_host(unique_id=None))
    assert (read["uuid"].value, read["uuid"].status) == (None, "absent")


def test_memory_of_nonsense_is_broken_and_free_memory_not_invented() -> None:
    read = amd_told(an_amd_host(mem_info_vram_total="garbage"))
    assert read["memory_total_bytes"].status == "broken"
    assert "memory_free_bytes" not in read


def test_zero_bytes_are_unsupported() -> None:
    assert amd_told(an_amd_host(mem_info_vram_total="0\n"))["memory_total_bytes"].status == "unsupported"


def test_used_memory_that_cannot_be_read() -> None:
    host = an_amd_host()
    host.errors[f"{AMD}/mem_info_vram_used"] = errno.EIO
    read = amd_told(host)
    assert read["memory_total_bytes"].value == 25753026560
    assert (read["memory_free_bytes"].value, read["memory_free_bytes"].status) == (None, "broken")


def test_visible_memory_that_cannot_be_read() -> None:
    assert "features.large_bar" not in amd_told(an_amd_host(mem_info_vis_vram_total=None))


def test_partition_modes_of_an_instinct() -> None:
    host = an_amd_host(current_compute_partition="CPX\n", current_memory_partition="NPS4\n")
    read = amd_told(host)["features.partitioned"]
    assert (read.value, read.detail) == (True, "CPX, NPS4")
    whole = amd_told(an_amd_host(current_compute_partition="SPX\n"))["features.partitioned"]
    assert (whole.value, whole.detail) == (False, "SPX")


def test_the_firmware_is_asked_nothing() -> None:
    host = an_amd_host(
        gpu_metrics=b"\x78\x00\x02\x01", gpu_busy_percent="0\n", **{"hwmon/hwmon4/temp1_input": "41000\n"}
    )
    amd_told(host)
    read = {path.rpartition("/")[2] for path in host.read}
    assert not read & {"gpu_metrics", "gpu_busy_percent", "temp1_input"}


def test_ecc_by_ras() -> None:
    assert amd_told(an_amd_host(**{"ras/features": "feature mask: 0x1f7f\n"}))["features.ecc"].value is True
    assert amd_told(an_amd_host(**{"ras/features": "feature mask: 0x4\n"}))["features.ecc"].value is False
    assert "features.ecc" not in amd_told(an_amd_host(**{"ras/features": "what\n"}))


def test_a_product_name_of_a_server_card() -> None:
    assert amd_told(an_amd_host(product_name="AMD Instinct MI210\n"))["name"].value == "AMD Instinct MI210"


def test_a_sleeping_gpu_is_asked_nothing_that_wakes_it() -> None:
    host = an_amd_host(current_compute_partition="SPX\n")
    read = amd_told(host, a_function(runtime_status="suspended"))
    assert f"{AMD}/current_compute_partition" not in host.read
    assert read["features.partitioned"].value is None
    assert "asleep" in (read["features.partitioned"].detail or "")
    # Kept by the driver in its own memory.
    assert read["memory_total_bytes"].value == 25753026560


def test_other_drivers_functions_are_left_alone() -> None:
    radeon = PciFunction(path=AMD, address="0000:03:00.0", driver="radeon")
    host = an_amd_host()
    assert amd.observe(host, [radeon]) == []
    assert intel.observe(host, [radeon]) == []
    assert host.read == []


def test_no_version_where_the_tree_tells_none() -> None:
    host = an_amd_host()
    del host.files["/proc/version"]
    assert "driver_version" not in amd_told(host)
    assert amd.drivers(host) == []


@pytest.mark.parametrize(
    ("recording", "total", "uuid"),
    [
        ("lact/lact-amd-phoenix", 4294967296, None),
        ("lact/lact-amd-rx6900xt", 17163091968, None),
        ("lact/lact-amd-r7-240", 2147483648, None),
        ("procfs/procfs-amdgpu-i915", 8573157376, "GPU-fa4e000000000001"),
    ],
)
def test_recorded_cards(shared: Path, recording: str, total: int, uuid: str | None) -> None:
    host = open_recording(str(shared / "machines" / f"{recording}.tar.xz"))
    card = next(name for name in ("card0", "card1") if host.exists(f"/sys/class/drm/{name}/device/vendor"))
    function = PciFunction(path=f"/sys/class/drm/{card}/device", card=card, driver="amdgpu")
    (seen,) = amd.observe(host, [function])
    read = told(seen)
    assert read["memory_total_bytes"].value == total
    assert read["uuid"].value == uuid
    assert read["vbios_version"].status == "ok"


def an_intel_function(address: str = "0000:0b:00.0", driver: str = "xe", status: str | None = None) -> PciFunction:
    return PciFunction(path=f"/sys/bus/pci/devices/{address}", address=address, driver=driver, runtime_status=status)


def test_xe_adds_up_its_tiles() -> None:
    function = an_intel_function()
    host = MemoryHost(
        files={
            f"{function.path}/tile0/physical_vram_size_bytes": "12884901888\n",
            f"{function.path}/tile1/physical_vram_size_bytes": "12884901888\n",
            f"{function.path}/tile0/gt0/freq0/max_freq": "2850\n",
            f"{function.path}/hwmon/hwmon2/name": "xe\n",
            "/proc/sys/kernel/osrelease": "6.16.0\n",
        }
    )
    (seen,) = intel.observe(host, [function])
    read = told(seen)
    assert read["memory_total_bytes"].value == 2 * 12884901888
    assert read["kind"].value == "discrete"
    assert read["driver_version"].value == "6.16.0"


def test_a_sleeping_xe_is_not_woken() -> None:
    function = an_intel_function(status="suspended")
    path = f"{function.path}/tile0/physical_vram_size_bytes"
    host = MemoryHost(files={path: "12884901888\n"})
    (seen,) = intel.observe(host, [function])
    assert told(seen)["memory_total_bytes"].value is None
    assert path not in host.read


def test_intels_own_i915_writes_beside_the_card() -> None:
    function = an_intel_function("0000:03:00.0", "i915")
    host = MemoryHost(files={f"{function.path}/drm/card0/lmem_total_bytes": "17079205888\n"})
    (seen,) = intel.observe(host, [function])
    assert told(seen)["memory_total_bytes"].value == 17079205888


def test_mainline_i915_tells_no_memory() -> None:
    function = an_intel_function("0000:00:02.0", "i915")
    host = MemoryHost(files={f"{function.path}/drm/card0/dev": "226:0", "/sys/module/i915/refcnt": "4"})
    (seen,) = intel.observe(host, [function])
    read = told(seen)
    assert "memory_total_bytes" not in read
    assert read["kind"].value == "integrated"
    (driver,) = intel.drivers(host)
    assert (driver.name, driver.version) == ("i915", None)


def test_a_card_whose_address_is_not_recorded_has_no_kind(shared: Path) -> None:
    host = open_recording(str(shared / "machines/lact/lact-intel-b580.tar.xz"))
    (seen,) = intel.observe(host, [PciFunction(path="/sys/class/drm/card1/device", card="card1", driver="xe")])
    read = told(seen)
    assert seen.card == "card1"
    assert "kind" not in read


def test_hwmon_names_of_any_driver() -> None:
    host = MemoryHost(files={f"{AMD}/hwmon/hwmon4/name": "amdgpu\n", f"{AMD}/hwmon/hwmon5/in0_input": "900\n"})
    (reading,) = hwmon_names(host, AMD)
    assert (reading.field, reading.value) == ("hwmon", ("amdgpu",))
    assert hwmon_names(MemoryHost(), AMD) == []
    assert hwmon_names(MemoryHost(files={f"{AMD}/hwmon/hwmon5/in0_input": "900\n"}), AMD) == []


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"/proc/sys/kernel/osrelease": "6.1.0-57-amd64\n", "/proc/version": "Linux version 5.0"}, "6.1.0-57-amd64"),
        ({"/proc/version": "Linux version 6.8.0-51-generic (buildd@lcy02) #52-Ubuntu SMP"}, "6.8.0-51-generic"),
        ({"/proc/version": "Darwin Kernel Version 23"}, None),
        ({}, None),
    ],
)
def test_release_of_the_kernel(files: dict[str, str | bytes], expected: str | None) -> None:
    assert kernel_release(MemoryHost(files=files)) == expected


def test_a_line_that_is_none() -> None:
    value = line("\x7fELF\x02")
    assert isinstance(value, Bad)
    assert value.status == "broken"

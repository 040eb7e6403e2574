from __future__ import annotations

import random
from typing import Any

import pytest

from pytest_gpucoexist.model.readings import Observation, Reading, Status
from pytest_gpucoexist.probes.counts import counts_that_differ
from pytest_gpucoexist.probes.merge import merge

A, B = "0000:41:00.0", "0000:c1:00.0"


def say(
    probe: str,
    address: str | None = None,
    *,
    creates: bool = False,
    partition: str | None = None,
    uuid: str | None = None,
    **fields: Any,
) -> Observation:
    """An observation whose readings have the probe's name as their source; a Reading stands as it is."""
    readings = [
        value if isinstance(value, Reading) else Reading(field=name.replace("__", "."), value=value, source=probe)
        for name, value in fields.items()
    ]
    return Observation(
        probe=probe, pci_address=address, partition=partition, uuid=uuid, creates=creates, readings=tuple(readings)
    )


def failed(field: str, source: str, status: Status) -> Reading:
    return Reading(field=field, value=None, source=source, status=status, detail=f"{source} {status}")


def pci(address: str = A, vendor: str = "0x10de", **fields: Any) -> Observation:
    return say("pci", address, creates=True, vendor_id=vendor, **fields)


def test_every_field_says_where_it_came_from() -> None:
    (gpu,), conflicts = merge([pci(numa_node=1), say("nvml", A, uuid="GPU-1", name="NVIDIA H100"), say("kfd", A)])
    assert (gpu.numa_node, gpu.name, gpu.uuid) == (1, "NVIDIA H100", None)
    assert (gpu.facts["numa_node"].source, gpu.facts["name"].source) == ("pci", "nvml")
    assert gpu.facts["arch"].status == "absent"
    assert gpu.facts["arch"].detail == "no source here tells it"
    assert conflicts == ()


def test_the_first_source_wins_and_the_other_claim_is_kept() -> None:
    (gpu,), (conflict,) = merge([pci(driver_version="535.261.03"), say("nvml", A, driver_version="550.90.07")])
    assert gpu.driver_version == "535.261.03"
    assert (conflict.subject, conflict.kind) == (A, "driver_version")
    assert conflict.claims == {"pci": "535.261.03", "nvml": "550.90.07"}
    assert conflict.message == f"driver_version of {A}: pci says 535.261.03; nvml says 550.90.07"


def test_a_value_beats_a_failure_that_was_read_first() -> None:
    observation = Observation(
        probe="nvml", pci_address=A, readings=(Reading(field="uuid", value="GPU-1", source="nvml"),)
    )
    (gpu,), conflicts = merge([pci(x=failed("uuid", "proc", "denied")), observation])
    assert (gpu.uuid, gpu.facts["uuid"].source) == ("GPU-1", "nvml")
    assert conflicts == ()


@pytest.mark.parametrize(
    ("statuses", "kept"),
    [
        (("absent", "broken", "denied"), "broken"),
        (("unsupported", "denied"), "denied"),
        (("absent", "unsupported"), "unsupported"),
    ],
)
def test_of_several_failures_the_most_telling_is_kept(statuses: tuple[Status, ...], kept: str) -> None:
    readings: dict[str, Any] = {
        f"x{number}": failed("arch", f"s{number}", status) for number, status in enumerate(statuses)
    }
    (gpu,), _ = merge([pci(**readings)])
    assert gpu.arch is None
    assert gpu.facts["arch"].status == kept
    assert gpu.facts["arch"].detail


def test_addresses_are_the_same_however_they_are_written() -> None:
    gpus, conflicts = merge([pci("0000:c1:00.0"), say("nvml", "00000000:C1:00.0", name="x")])
    assert [(gpu.key, gpu.name) for gpu in gpus] == [("0000:c1:00.0", "x")]
    assert conflicts == ()


def test_a_source_that_only_knows_the_uuid_is_joined_by_it() -> None:
    told = Observation(probe="a", pci_address=A, readings=(Reading(field="uuid", value="GPU-1", source="a"),))
    gpus, conflicts = merge([pci(), pci(B), told, say("b", uuid="GPU-1", arch="9.0")])
    assert [gpu.arch for gpu in gpus] == ["9.0", None]
    assert conflicts == ()


def test_a_device_without_an_address_is_keyed_by_its_uuid_and_comes_last() -> None:
    gpus, _ = merge([say("nvml", uuid="GPU-2", creates=True, vendor="nvidia"), pci(B)])
    assert [(gpu.id, gpu.key, gpu.pci_address) for gpu in gpus] == [("nvidia0", B, B), ("nvidia1", "GPU-2", None)]
    assert gpus[1].uuid == "GPU-2"
    assert gpus[1].facts["uuid"].source == "nvml"


def test_what_one_source_names_alone_is_a_conflict_and_no_device() -> None:
    gpus, (conflict,) = merge([pci(), say("nvidia", B, driver_version="550")])
    assert len(gpus) == 1
    assert (conflict.subject, conflict.kind) == (B, "device")
    assert conflict.message == f"nvidia names {B}, which PCI does not show"


def test_failures_about_a_device_that_is_not_there_are_no_conflict() -> None:
    assert merge([pci(), say("nvml-failure", B, x=failed("uuid", "nvml", "absent"))])[1] == ()


def test_a_mig_instance_is_a_partition_beside_its_gpu() -> None:
    instance = say("nvml", A, partition="gi2/ci0", uuid="MIG-1", creates=True, memory_total_bytes=10 << 30)
    gpus, conflicts = merge([pci(numa_node=1, driver="nvidia", memory_total_bytes=80 << 30, iommu_group=7), instance])
    assert [(gpu.id, gpu.key, gpu.uuid) for gpu in gpus] == [
        ("nvidia0", A, None),
        ("nvidia1", f"{A}/gi2/ci0", "MIG-1"),
    ]
    part = gpus[1]
    assert (part.numa_node, part.driver, part.vendor, part.iommu_group) == (1, "nvidia", "nvidia", 7)
    assert [gpu.memory_total_bytes for gpu in gpus] == [80 << 30, 10 << 30]
    assert part.facts["driver"].detail == f"of the whole function {A}"
    assert conflicts == ()


def test_partitions_are_in_the_order_of_their_numbers() -> None:
    parts = [say("nvml", A, partition=f"gi{number}", creates=True) for number in (10, 9, 1)]
    gpus, _ = merge([pci(), *parts])
    assert [gpu.partition for gpu in gpus] == [None, "gi1", "gi9", "gi10"]


def test_a_library_that_numbers_partitions_as_functions_is_understood() -> None:
    parts = [say("kfd", A, partition=str(number), creates=True, arch="gfx942") for number in range(4)]
    gpus, conflicts = merge([pci(vendor="0x1002"), *parts, say("amdsmi", "0000:41:00.2", memory_free_bytes=5)])
    assert [gpu.memory_free_bytes for gpu in gpus] == [None, None, 5, None]
    assert conflicts == ()
    gpus, _ = merge([pci(vendor="0x1002"), *parts, say("amdgpu", A, driver_version="6.14")])
    assert [gpu.driver_version for gpu in gpus] == ["6.14"] * 4


def test_a_stand_in_gives_way_to_the_device_that_a_library_names() -> None:
    stand_in = say("dxg", uuid="dxg0", creates=True, vendor="nvidia", driver="dxgkrnl", name="nvidia GPU of Windows")
    library = say("nvml", uuid="GPU-3", creates=True, vendor="nvidia", name="NVIDIA RTX 4090")
    gpus, _ = merge([stand_in, library])
    assert [(gpu.key, gpu.driver) for gpu in gpus] == [("GPU-3", "dxgkrnl")]
    assert [gpu.key for gpu in merge([stand_in])[0]] == ["dxg0"]
    other = say("amdsmi", uuid="GPU-4", creates=True, vendor="amd")
    assert [gpu.key for gpu in merge([stand_in, other])[0]] == ["GPU-4", "dxg0"]


def test_ids_number_each_vendor_in_bus_order() -> None:
    seen = [
        pci("10000:01:00.0"),
        pci(B),
        pci(A, "0x1002"),
        pci("0000:00:02.0", "0x8086"),
        pci("0000:05:00.0", "0x1a03"),
    ]
    gpus, _ = merge(seen)
    assert [(gpu.id, gpu.key) for gpu in gpus] == [
        ("intel0", "0000:00:02.0"),
        ("other0", "0000:05:00.0"),
        ("amd0", A),
        ("nvidia0", B),
        ("nvidia1", "10000:01:00.0"),
    ]


def test_the_order_in_which_devices_are_found_does_not_matter() -> None:
    seen = [pci(f"0000:{bus:02x}:00.0") for bus in range(1, 30)]
    expected = merge(seen)
    for seed in range(5):
        mixed = seen[:]
        random.Random(seed).shuffle(mixed)
        assert merge(mixed) == expected


def test_a_driver_that_contradicts_the_vendor_id_is_a_conflict() -> None:
    (gpu,), (conflict,) = merge([pci(vendor="0x1002"), say("proc", A, vendor="nvidia")])
    assert gpu.vendor == "amd"
    assert (conflict.kind, conflict.claims) == ("vendor", {"pci": "amd", "proc": "nvidia"})


def test_values_of_any_type_are_kept_as_claims_that_json_can_hold() -> None:
    _, (conflict,) = merge([pci(upstream=("0000:00:01.0",)), say("x", A, upstream=("0000:00:02.0",))])
    assert conflict.claims == {"pci": "('0000:00:01.0',)", "x": "('0000:00:02.0',)"}


@pytest.mark.parametrize(("second", "agree"), [(8573157376, True), (8500000000, True), (8000000000, False)])
def test_memory_may_differ_by_what_a_driver_sets_aside(second: int, agree: bool) -> None:
    _, conflicts = merge([pci(memory_total_bytes=8573157376), say("nvml", A, memory_total_bytes=second)])
    assert (conflicts == ()) == agree


def test_an_apus_memory_has_two_sizes_by_right() -> None:
    seen = [
        pci(vendor="0x1002", memory_total_bytes=4 << 30),
        say("kfd", A, memory_total_bytes=30 << 30, arch="gfx1103"),
    ]
    (gpu,), conflicts = merge(seen)
    assert (gpu.kind, gpu.memory_total_bytes) == ("integrated", 4 << 30)
    assert conflicts == ()


def test_what_changes_between_two_reads_is_no_disagreement() -> None:
    seen = [
        pci(memory_free_bytes=1, name="AD102", runtime_status="active", link__current_width=4),
        say("nvml", A, memory_free_bytes=2, name="NVIDIA GeForce RTX 4090", link__current_width=16),
    ]
    (gpu,), conflicts = merge(seen)
    assert conflicts == ()
    assert (gpu.link.current_width, gpu.facts["link"].source) == (4, "pci")


def test_the_case_of_ids_is_no_disagreement() -> None:
    assert merge([pci(uuid_="x", vbios_version="95.02.3C"), say("nvml", A, vbios_version="95.02.3c")])[1] == ()


def test_features_are_known_or_say_why_not() -> None:
    seen = [pci(features__mig=True, features__ecc=False, x=failed("features.p2p", "nvml", "denied"))]
    (gpu,), _ = merge(seen)
    assert gpu.features == {"ecc": False, "mig": True}
    assert gpu.facts["features.p2p"].status == "denied"


def test_a_kind_that_a_driver_could_not_tell_is_decided_by_place() -> None:
    (gpu,), _ = merge([pci(x=failed("kind", "metrics", "denied"))])
    assert gpu.kind == "discrete"
    (gpu,), _ = merge([pci(vendor="0x1002"), say("amdgpu", A, kind="integrated")])
    assert (gpu.kind, gpu.facts["kind"].source) == ("integrated", "amdgpu")


def test_counts_of_a_library_and_the_bus() -> None:
    gpus, _ = merge([pci(f"0000:{bus:02x}:00.0", driver="nvidia") for bus in (1, 2, 3, 4)])
    told = [say("nvml", f"0000:{bus:02x}:00.0", name="x") for bus in (1, 2, 3)]
    mig = say("nvml", "0000:01:00.0", partition="gi1", creates=True)
    (conflict,) = counts_that_differ([*told, mig], gpus)
    assert conflict.message == "NVML counts 3, PCI 4 that nvidia holds"
    assert conflict.claims == {"nvml": 3, "pci": 4}
    # One that is counted and cannot be named counts.
    assert counts_that_differ([*told, Observation(probe="nvml")], gpus) == []
    assert counts_that_differ([say("nvml-failure", A)], gpus) == []


def test_amd_smi_counts_partitions() -> None:
    parts = [say("kfd", A, partition=str(number), creates=True) for number in range(4)]
    gpus, _ = merge([pci(vendor="0x1002", driver="amdgpu"), *parts])
    told = [say("amdsmi", f"0000:41:00.{number}") for number in range(4)]
    assert counts_that_differ(told, gpus) == []
    assert counts_that_differ(told[:3], gpus)[0].claims == {"amdsmi": 3, "pci": 4}

"""Which ordinal a leased device has in a runtime, by the identities that runtimes really print."""

from __future__ import annotations

import pytest

from pytest_gpucoexist.errors import GpuCoexistError
from pytest_gpucoexist.model.machine import Gpu
from pytest_gpucoexist.session.pins.ordinals import Enumerated, ordinal_of, uuid_forms

NVIDIA = Gpu(id="nvidia0", pci_address="0000:41:00.0", uuid="GPU-6d0a5d3c-1d1b-4b5f-8c5e-000000000041")
AMD = Gpu(id="amd0", pci_address="0000:c1:00.0", uuid="GPU-8d4f2a6b1c3e5f70")
# torch's ROCm build prints the ASCII of the 16 digits as if it were the bytes of a UUID.
AMD_IN_TORCH = "38643466-3261-3662-3163-336535663730"


def test_uuid_decides_before_the_address() -> None:
    devices = [
        Enumerated(ordinal=0, uuid="aaaaaaaa-1d1b-4b5f-8c5e-000000000042", pci_address="0000:41:00.0"),
        Enumerated(ordinal=1, uuid="6d0a5d3c-1d1b-4b5f-8c5e-000000000041", pci_address="0000:42:00.0"),
    ]
    assert ordinal_of(NVIDIA, devices, "torch") == 1


@pytest.mark.parametrize("address", ["0000:41:00.0", "00000000:41:00.0", "0000:41:00.1", "41:00.0"])
def test_address_where_there_is_no_uuid(address: str) -> None:
    devices = [Enumerated(ordinal=0, pci_address="0000:42:00.0"), Enumerated(ordinal=1, pci_address=address)]
    assert ordinal_of(NVIDIA, devices, "CuPy") == 1


@pytest.mark.parametrize("uuid", [AMD_IN_TORCH, "GPU-8d4f2a6b1c3e5f70", "8D4F2A6B1C3E5F70", b"8d4f2a6b1c3e5f70"])
def test_amd_forms(uuid: str | bytes) -> None:
    assert ordinal_of(AMD, [Enumerated(ordinal=3, uuid=uuid)], "torch") == 3


def test_mig_instance_by_its_name() -> None:
    mig = Gpu(
        id="nvidia0.1", pci_address="0000:41:00.0", partition="1", uuid="MIG-5d0a5d3c-1d1b-4b5f-8c5e-0000000000ff"
    )
    devices = [
        Enumerated(ordinal=0, uuid="4d0a5d3c-1d1b-4b5f-8c5e-0000000000fe", pci_address="0000:41:00.0"),
        Enumerated(ordinal=1, uuid="5d0a5d3c-1d1b-4b5f-8c5e-0000000000ff", pci_address="0000:41:00.0"),
    ]
    assert ordinal_of(mig, devices, "torch") == 1


def test_nothing_is_assumed_where_nothing_fits() -> None:
    devices = [Enumerated(ordinal=0, uuid="ffffffff-1d1b-4b5f-8c5e-000000000041", name="NVIDIA T4")]
    with pytest.raises(
        GpuCoexistError, match=r"nvidia0 .* is not among the devices that torch enumerates: 0: NVIDIA T4"
    ):
        ordinal_of(NVIDIA, devices, "torch")
    with pytest.raises(GpuCoexistError, match=r"enumerates: none\. Compare"):
        ordinal_of(NVIDIA, [], "torch")


def test_the_only_device_is_not_taken_for_granted() -> None:
    with pytest.raises(GpuCoexistError, match=r"is not among.*PCI not told, UUID not told"):
        ordinal_of(NVIDIA, [Enumerated(ordinal=0, name="NVIDIA RTX 4090")], "torch 2.0")


def test_partitions_of_one_function_cannot_be_told_apart_by_address() -> None:
    partition = Gpu(id="amd0", pci_address="0000:c1:00.0", partition="1")
    devices = [Enumerated(ordinal=n, pci_address="0000:c1:00.0", uuid=b"\0" * 16) for n in range(2)]
    with pytest.raises(GpuCoexistError, match="cannot be told apart among"):
        ordinal_of(partition, devices, "CuPy")


@pytest.mark.parametrize("nothing", [None, "", "GPU-XX", "0" * 32, b"cut at a NUL", b"\0" * 16])
def test_what_identifies_nothing(nothing: str | bytes | None) -> None:
    assert uuid_forms(nothing) == frozenset()


def test_forms_of_one_uuid_meet() -> None:
    assert uuid_forms(AMD_IN_TORCH) & uuid_forms(AMD.uuid)
    assert not uuid_forms(NVIDIA.uuid) & uuid_forms(AMD.uuid)

"""Rules of single runtimes beyond the table's cells."""

from __future__ import annotations

import pytest

from pytest_gpucoexist.model.machine import KfdNode
from pytest_gpucoexist.model.visibility.cuda import select_cuda
from pytest_gpucoexist.model.visibility.intel import select_level_zero, select_sycl
from pytest_gpucoexist.model.visibility.order import amd_uuid, count_cuda, count_level_zero, count_rocm
from pytest_gpucoexist.model.visibility.rocm import select_hip, select_rocr
from pytest_gpucoexist.model.visibility.tokens import leading_integer, whole_integer
from pytest_gpucoexist.model.visibility.torch_rocm import torch_rocm_entries
from tests.model.visibility.machines import (
    AMD_UNIQUE,
    MIG_UUIDS,
    NVIDIA_UUIDS,
    amd,
    intel,
    machine,
    mig,
    nvidia,
)

PCI = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@pytest.mark.parametrize(
    ("text", "number"),
    [("1gpu2", 1), (" 7 ", 7), ("0x1", 0), ("-3", -3), ("+2", 2), ("", -1), ("gpu", -1), ("-", -1)],
)
def test_leading_integer(text: str, number: int) -> None:
    assert leading_integer(text) == number


@pytest.mark.parametrize(
    ("text", "parsed"),
    [("010", (8, "")), ("08", (0, "8")), ("0x1F", (31, "")), ("-1", (-1, "")), (" 12a", (12, "a")), ("x", None)],
)
def test_whole_integer(text: str, parsed: tuple[int, str] | None) -> None:
    assert whole_integer(text) == parsed


class TestCuda:
    def cuda(self, value: str, *gpus: object, environ: dict[str, str] = PCI) -> tuple[tuple[str, ...], str | None]:
        found = machine(*gpus)  # type: ignore[arg-type]
        selection = select_cuda(value, count_cuda(found, environ), found.gpus)
        return selection.devices, selection.remark

    def test_an_ambiguous_prefix_ends_the_list(self) -> None:
        twins = nvidia(0, uuid="GPU-aaaa1"), nvidia(1, uuid="GPU-aaaa2")
        assert self.cuda("GPU-aaaa", *twins) == ((), "GPU-aaaa fits 2 GPUs and ends the list")
        assert self.cuda("GPU-aaaa2,GPU-b,GPU-aaaa1", *twins)[0] == (twins[1].key,)

    def test_two_prefixes_of_one_gpu_show_none(self) -> None:
        assert self.cuda("GPU-89,GPU-893", nvidia(0), nvidia(1))[0] == ()
        assert self.cuda("GPU-89,GPU-89", nvidia(0))[0] == ()

    def test_indices_after_a_uuid_are_ignored(self) -> None:
        assert self.cuda(f"{NVIDIA_UUIDS[1]},0", nvidia(0), nvidia(1))[0] == (nvidia(1).key,)
        assert self.cuda(f"0,{NVIDIA_UUIDS[1]}", nvidia(0), nvidia(1))[0] == (nvidia(0).key,)

    def test_an_index_out_of_range_is_told(self) -> None:
        assert self.cuda("0,9", nvidia(0)) == (
            (nvidia(0).key,),
            "index 9 is out of range (CUDA counts 1) and ends the list",
        )

    def test_a_duplicate_is_told(self) -> None:
        assert "comes twice" in (self.cuda("1,1", nvidia(0), nvidia(1))[1] or "")

    def test_mig_instances_by_name(self) -> None:
        parent = nvidia(0)
        first, second = (mig(parent, index, MIG_UUIDS[index]) for index in (0, 1))
        assert self.cuda(MIG_UUIDS[1], parent, first, second)[0] == (second.key,)
        assert self.cuda("MIG-c6d4", parent, first, second)[0] == (first.key,)
        assert self.cuda(f"MIG-{parent.uuid}/2/0", parent, first, second)[0] == (second.key,)
        assert self.cuda(f"MIG-{parent.uuid}/7/0", parent, first, second)[0] == ()
        devices, remark = self.cuda(",".join(MIG_UUIDS), parent, first, second)
        assert devices == (first.key, second.key)
        assert remark == "one CUDA process sees one MIG instance: the first"

    def test_the_index_or_uuid_of_a_split_gpu_bounds_its_instances(self) -> None:
        parent = nvidia(0)
        parts = [mig(parent, index, MIG_UUIDS[index]) for index in (0, 1)]
        whole = nvidia(1)
        both = tuple(part.key for part in parts)
        assert self.cuda("0", parent, *parts, whole)[0] == both
        assert self.cuda(NVIDIA_UUIDS[0], parent, *parts, whole)[0] == both
        assert self.cuda("1", parent, *parts, whole)[0] == (whole.key,)

    def test_unequal_models_without_pci_order_are_a_guess(self) -> None:
        slow = nvidia(0, device_id="0x1287", arch="3.5")
        fast = nvidia(1, arch="8.9")
        devices, remark = self.cuda("0", slow, fast, environ={})
        assert devices == (fast.key,)
        assert "CUDA_DEVICE_ORDER is not PCI_BUS_ID" in (remark or "")
        assert self.cuda("0", slow, fast) == ((slow.key,), None)
        # All or none is the same in any order.
        assert self.cuda("0,1", slow, fast, environ={})[1] is None

    def test_equal_models_have_one_order(self) -> None:
        assert self.cuda("1", nvidia(0), nvidia(1), environ={}) == ((nvidia(1).key,), None)


class TestRocr:
    def test_prefixes_ignore_case_and_must_be_unique(self) -> None:
        gpus = amd(0), amd(1)
        assert select_rocr("gpu-12ab", gpus).devices == (gpus[0].key,)
        assert select_rocr(f"GPU-{AMD_UNIQUE[1]:016X}", gpus).devices == (gpus[1].key,)
        assert select_rocr("GPU-", gpus).devices == ()
        alike = amd(0, unique_id=0xABC0000000000001), amd(1, unique_id=0xABC0000000000002)
        assert select_rocr("GPU-abc", alike).devices == ()

    def test_no_more_entries_are_read_than_there_are_gpus(self) -> None:
        assert select_rocr("0,,1", (amd(0),)).devices == (amd(0).key,)
        assert select_rocr("0,", (amd(0), amd(1))).devices == (amd(0).key,)

    def test_text_after_a_number_ends_the_list(self) -> None:
        assert select_rocr("1gpu,0", (amd(0), amd(1))).devices == ()
        assert select_rocr("0,0x", (amd(0), amd(1))).devices == (amd(0).key,)

    def test_blanks_throw(self) -> None:
        assert select_rocr(" ,0", (amd(0), amd(1))).throws


class TestHip:
    def test_a_name_is_looked_for_anywhere_and_case_counts(self) -> None:
        gpus = amd(0), amd(1)
        assert select_hip("GPU-", gpus).devices == (gpus[0].key,)
        assert select_hip("gpu-12ab", gpus).devices == ()
        assert select_hip(f"GPU-{AMD_UNIQUE[0]:016X}", gpus).devices == ()

    def test_a_trailing_comma_is_nothing(self) -> None:
        assert select_hip("1,", (amd(0), amd(1))).devices == (amd(1).key,)


class TestTorchRocm:
    def test_more_hip_than_rocr_entries_is_an_error(self) -> None:
        with pytest.raises(ValueError, match="more entries"):
            torch_rocm_entries({"ROCR_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "0,1"})

    def test_a_name_twice_is_an_empty_list(self) -> None:
        assert torch_rocm_entries({"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-a"}) == ()
        assert torch_rocm_entries({"CUDA_VISIBLE_DEVICES": "GPU-a,1"}) == ("GPU-a",)
        assert torch_rocm_entries({"CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b"}) == ("MIG-a", "MIG-b")


class TestIntel:
    gpus = (intel(0), intel(1))

    def test_default_is_all(self) -> None:
        assert len(select_level_zero("default", self.gpus).devices) == 2

    def test_a_tile_counts_as_its_gpu(self) -> None:
        assert select_level_zero("1.0,1.1", self.gpus).devices == (self.gpus[1].key,)

    @pytest.mark.parametrize(
        ("selector", "indices"),
        [
            ("level_zero:gpu", [0, 1]),
            ("level_zero:1", [1]),
            ("level_zero:1,0", [0, 1]),
            ("*:*", [0, 1]),
            ("*:gpu", [0, 1]),
            ("opencl:gpu", [0, 1]),
            ("opencl:cpu", []),
            ("cuda:*", []),
            ("!level_zero:0", [1]),
            ("level_zero:*;!level_zero:1", [0]),
            ("level_zero:1.0", [1]),
            ("level_zero:*.*", [0, 1]),
        ],
    )
    def test_selector(self, selector: str, indices: list[int]) -> None:
        found = select_sycl(selector, self.gpus)
        assert found is not None
        assert found.devices == tuple(self.gpus[index].key for index in indices)

    @pytest.mark.parametrize("selector", ["level_zero:gpu:2", "level_zero", "vulkan:0", "level_zero:", "level_zero:x"])
    def test_a_malformed_selector_aborts(self, selector: str) -> None:
        found = select_sycl(selector, self.gpus)
        assert found is not None
        assert found.throws

    def test_numbers_of_opencl_say_nothing_about_gpus(self) -> None:
        assert select_sycl("opencl:0", self.gpus) is None


class TestOrder:
    def test_rocm_counts_kfd_nodes_not_the_bus(self) -> None:
        late = amd(0, kfd=KfdNode(node=5, unique_id=1))
        early = amd(1, kfd=KfdNode(node=2, unique_id=2))
        assert count_rocm(machine(late, early)).keys == (early.key, late.key)

    def test_what_kfd_rejected_or_is_not_granted_has_no_index(self) -> None:
        found = machine(amd(0, kfd=None), amd(1, granted=False), amd(2))
        assert count_rocm(found).keys == (amd(2).key,)

    def test_without_kfd_the_bus_decides(self) -> None:
        found = machine(amd(1, kfd=None), amd(0, kfd=None), amd(2, kfd=None, driver="radeon"))
        assert count_rocm(found).keys == (amd(0).key, amd(1).key)

    def test_another_driver_takes_a_gpu_out_of_cudas_count(self) -> None:
        found = machine(nvidia(0, driver="nouveau"), nvidia(1), nvidia(2, driver="vfio-pci"), nvidia(3, driver=None))
        assert count_cuda(found, PCI).keys == (nvidia(1).key,)

    def test_a_tree_that_names_no_driver_counts_all(self) -> None:
        found = machine(nvidia(0, driver=None), nvidia(1, driver=None))
        assert count_cuda(found, PCI).keys == (nvidia(0).key, nvidia(1).key)

    def test_a_gpu_without_a_pci_function_comes_last(self) -> None:
        jetson = nvidia(0, pci_address=None, uuid="GPU-ffff", driver="nvgpu")
        assert count_cuda(machine(jetson, nvidia(1)), PCI).keys == (nvidia(1).key, "GPU-ffff")

    def test_long_domains_sort_as_numbers(self) -> None:
        far, near = nvidia(0, pci_address="10000:01:00.0"), nvidia(1, pci_address="2000:01:00.0")
        assert count_cuda(machine(far, near), PCI).keys == (near.key, far.key)

    def test_an_unreadable_capability_is_no_speed(self) -> None:
        odd = nvidia(0, device_id="0x1", arch="?")
        assert count_cuda(machine(odd, nvidia(1, arch="8.0")), {}).keys == (nvidia(1).key, odd.key)

    def test_level_zero_counts_discrete_gpus_first(self) -> None:
        chip = intel(0, kind="integrated", driver="i915")
        card = intel(1)
        assert count_level_zero(machine(chip, card), {}).keys == (card.key, chip.key)
        in_bus_order = count_level_zero(machine(chip, card), {"ZE_ENABLE_PCI_ID_DEVICE_ORDER": "1"})
        assert in_bus_order.keys == (chip.key, card.key)

    def test_names_of_amd_gpus(self) -> None:
        assert amd_uuid(amd(0)) == "GPU-12ab34cd56ef7890"
        assert amd_uuid(amd(0, kfd=None, uuid="GPU-12AB34CD56EF7890")) == "GPU-12ab34cd56ef7890"
        assert amd_uuid(amd(0, kfd=None, uuid="0xabc")) == "GPU-0000000000000abc"
        assert amd_uuid(amd(0, kfd=None, uuid="12ab74c0-0000-1000-80a5-2bd0d4ba7cf4")) == "GPU-XX"
        assert amd_uuid(amd(0, unique_id=0)) == "GPU-XX"

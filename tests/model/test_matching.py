"""Matching a need with a machine, and the words when it fails."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_gpucoexist.model.machine import Conflict, Machine, Runtime, Usable
from pytest_gpucoexist.model.matching import choose, libraries_to_ask, match
from pytest_gpucoexist.model.plan import decide, is_promised, promised_need, unmet_promises
from pytest_gpucoexist.model.readings import Fact
from pytest_gpucoexist.model.requirement import Need, combine, restrict
from tests.machines import GIB, amd, apu, dual, intel, machine, masked, nvidia, torch, unread

EMPTY = machine()


def need(*names: str, closest_pair: bool = False, **kwargs: Any) -> Need:
    return combine([(name, (), kwargs) for name in names], closest_pair=closest_pair)


def candidates(wanted: Need, on: Machine) -> list[tuple[str, ...]]:
    found = match(wanted, on)
    assert found.satisfied, [each.reason for each in found.missing]
    return [group.candidates for group in found.groups]


def refusal(wanted: Need, on: Machine) -> tuple[str, str]:
    found = match(wanted, on)
    assert not found.satisfied
    assert found.groups == ()
    return found.missing[0].outcome, found.missing[0].reason


def test_the_devices_of_a_vendor_are_candidates() -> None:
    assert candidates(need("cuda"), dual()) == [("0000:41:00.0", "0000:42:00.0")]
    assert candidates(need("rocm"), dual()) == [("0000:c1:00.0",)]
    assert candidates(need("gpu"), dual()) == [("0000:41:00.0", "0000:42:00.0", "0000:c1:00.0")]
    assert candidates(need("cross_vendor"), dual()) == [("0000:41:00.0", "0000:42:00.0"), ("0000:c1:00.0",)]


@pytest.mark.parametrize(
    ("wanted", "on", "outcome", "reason"),
    [
        (need("cuda"), machine(nvidia(driver="nouveau", usable=Usable())), "missing",
         "needs 1 NVIDIA GPU with CUDA; found 0000:41:00.0 (bound to nouveau)"),
        (need("cuda"), machine(nvidia(driver=None, usable=Usable())), "missing",
         "needs 1 NVIDIA GPU with CUDA; found 0000:41:00.0 (no driver bound)"),
        (need("cuda"), machine(amd()), "missing", "needs 1 NVIDIA GPU with CUDA; found no NVIDIA GPU"),
        (need("gpu"), EMPTY, "missing", "needs 1 GPU; found no GPU"),
        (need("cuda", count=3), dual(), "missing",
         "needs 3 NVIDIA GPUs with CUDA; found 0000:41:00.0 (fits), 0000:42:00.0 (fits)"),
        (need("rocm"), machine(amd(usable=Usable(), facts={"usable.rocm": Fact(source="/dev/kfd", status="denied",
         detail="user not in group render (gid 105)")})), "missing",
         "needs 1 AMD GPU with ROCm; found 0000:c1:00.0 (user not in group render (gid 105))"),
        (need("rocm"), machine(amd(usable=Usable())), "missing",
         "needs 1 AMD GPU with ROCm; found 0000:c1:00.0 (ROCm cannot use it)"),
        (need("cuda"), machine(nvidia(granted=False, usable=Usable())), "not_granted",
         "needs 1 NVIDIA GPU with CUDA; found 0000:41:00.0 (not granted here)"),
        (need("cuda", memory="40 GiB"), dual(), "missing",
         "needs 1 NVIDIA GPU with CUDA, ≥ 40 GiB; found 0000:41:00.0 (has 24 GiB), 0000:42:00.0 (has 24 GiB)"),
        (need("cuda", arch=">=9.0"), machine(nvidia()), "missing",
         "needs 1 NVIDIA GPU with CUDA, compute capability >=9.0; found 0000:41:00.0 (is compute capability 8.6)"),
        (need("rocm", arch="gfx11*"), machine(amd()), "missing",
         "needs 1 AMD GPU with ROCm, gfx11*; found 0000:c1:00.0 (is gfx90a)"),
        (need("cuda", driver=">=550"), machine(nvidia()), "missing",
         "needs 1 NVIDIA GPU with CUDA, driver >=550; found 0000:41:00.0 (driver 535.261.03)"),
        (need("gpu", features="ecc"), machine(nvidia()), "missing",
         "needs 1 GPU, ecc; found 0000:41:00.0 (has no ecc)"),
        (need("cuda", framework="torch"), machine(nvidia()), "missing",
         "needs 1 NVIDIA GPU with CUDA and torch; torch is not installed"),
        (need("cuda", framework="torch>=3"), machine(nvidia(), runtimes=(torch("2.9.0+cu128", "nvidia"),)), "missing",
         "needs 1 NVIDIA GPU with CUDA and torch>=3; found torch 2.9.0+cu128"),
        (need("cuda", framework="torch"), machine(nvidia(), runtimes=(torch("2.9.0+rocm6.3", "amd"),)), "missing",
         "needs 1 NVIDIA GPU with CUDA and torch; found 0000:41:00.0 (torch is built for AMD)"),
        (need("gpu", framework="torch"), machine(nvidia(), runtimes=(torch("2.9.0+cpu"),)), "missing",
         "needs 1 GPU with torch; the torch installed is built for no GPU"),
        (need("cuda", runtime=">=12.4"), machine(nvidia()), "missing",
         "needs 1 NVIDIA GPU with CUDA and CUDA >=12.4; found 0000:41:00.0 (no CUDA runtime found)"),
        (need("cuda", runtime=">=12.4"), machine(nvidia(), runtimes=(Runtime(name="cudart", kind="runtime",
         version="11.8", vendors=("nvidia",)),)), "missing",
         "needs 1 NVIDIA GPU with CUDA and CUDA >=12.4; found 0000:41:00.0 (CUDA 11.8)"),
        (need("cuda", runtime="tensorrt>=10"), machine(nvidia()), "missing",
         "needs 1 NVIDIA GPU with CUDA and tensorrt>=10; tensorrt is not installed"),
        (need("gpu", driver="nouveau"), machine(nvidia()), "missing",
         "needs 1 GPU, driver nouveau; found 0000:41:00.0 (bound to nvidia)"),
        (need("gpu", vendor="intel"), machine(intel(driver="vfio-pci")), "missing",
         "needs 1 Intel GPU; found 0000:00:02.0 (bound to vfio-pci)"),
        (need("gpu"), machine(intel()), "missing",
         "needs 1 GPU; found 0000:00:02.0 (no Level Zero or OpenCL runtime for it)"),
        (restrict(need("gpu"), device="amd0"), machine(nvidia()), "missing",
         "needs 1 GPU, namely amd0; found 0000:41:00.0 (not amd0)"),
        (restrict(need("gpu"), node=1), machine(nvidia(), amd(numa_node=None, usable=Usable())), "missing",
         ("needs 1 GPU, of NUMA node 1; found 0000:41:00.0 (on NUMA node 0), 0000:c1:00.0 (on an unknown NUMA node, "
         "ROCm cannot use it)")),
    ],
)  # fmt: skip
def test_a_reason_names_what_is_missing_and_what_was_found(
    wanted: Need, on: Machine, outcome: str, reason: str
) -> None:
    assert refusal(wanted, on) == (outcome, reason)


@pytest.mark.parametrize(
    ("field", "wanted", "words"),
    [
        ("memory_total_bytes", need("cuda", memory=1), "memory"),
        ("arch", need("cuda", arch="8.6"), "architecture"),
        ("driver_version", need("cuda", driver=">=1"), "driver version"),
    ],
)
def test_a_fact_that_could_not_be_read_satisfies_nothing(field: str, wanted: Need, words: str) -> None:
    gpu = unread(nvidia(), field, "nvml", "the helper did not answer within 5 s")
    _, reason = refusal(wanted, machine(gpu))
    assert reason.endswith(
        f"found 0000:41:00.0 ({words} could not be read from nvml: the helper did not answer within 5 s)"
    )


def test_a_feature_nobody_knows_of_is_not_there() -> None:
    assert refusal(need("gpu", features="fp64"), machine(nvidia()))[1].endswith("(feature fp64 could not be read)")


def test_a_mask_is_named_and_is_not_the_same_as_missing() -> None:
    hidden, mask = masked(nvidia(), "CUDA_VISIBLE_DEVICES", "-1", "cuda")
    other = masked(amd(), "ROCR_VISIBLE_DEVICES", "7", "rocr")[1]
    outcome, reason = refusal(need("cuda"), machine(hidden, masks=(other, mask)))
    assert outcome == "masked"
    assert reason == "needs 1 NVIDIA GPU with CUDA; found 0000:41:00.0 (hidden by CUDA_VISIBLE_DEVICES=-1)"
    # One of two is masked: with it there would be enough, so the mask is to blame.
    assert refusal(need("cuda", count=2), machine(hidden, nvidia(1), masks=(mask,)))[0] == "masked"
    assert refusal(need("cuda", count=3), machine(hidden, nvidia(1), masks=(mask,)))[0] == "missing"
    # What is masked and would not do anyway is missing.
    assert refusal(need("cuda", memory="80 GiB"), machine(hidden, masks=(mask,)))[0] == "missing"


def test_an_integrated_gpu_is_not_counted_beside_a_discrete_one() -> None:
    assert candidates(need("rocm"), machine(apu(), amd())) == [("0000:c1:00.0",)]
    assert candidates(need("rocm"), machine(apu())) == [("0000:09:00.0",)]
    assert "integrated: not counted beside" in refusal(need("rocm", count=2), machine(apu(), amd()))[1]


def test_what_is_no_compute_device_is_not_spoken_of() -> None:
    bmc = intel(vendor="other", kind="bmc", id="other0")
    assert refusal(need("gpu"), machine(bmc))[1] == "needs 1 GPU; found no GPU"


def test_intel_counts_when_asked_for_or_when_a_runtime_is_there() -> None:
    level_zero = Runtime(name="level-zero", kind="runtime", vendors=("intel",))
    assert candidates(need("gpu", vendor="intel"), machine(intel())) == [("0000:00:02.0",)]
    assert candidates(need("gpu"), machine(intel(), runtimes=(level_zero,))) == [("0000:00:02.0",)]


@pytest.mark.parametrize(
    ("pattern", "fits"),
    [("8.6", True), ("8", False), (">=8.0", True), (">8.6", False), ("<9", True), ("!=8.6", False),
     (">=8.0,<8.6", False), ("<=8.6", True), ("10.0", False)],
)  # fmt: skip
def test_compute_capability_is_compared_as_numbers(pattern: str, fits: bool) -> None:
    assert match(need("cuda", arch=pattern), machine(nvidia())).satisfied is fits


def test_a_capability_of_two_digits_is_newer_than_nine() -> None:
    assert match(need("cuda", arch=">=9.0"), machine(nvidia(arch="10.0"))).satisfied
    assert not match(need("cuda", arch=">=9.0"), machine(nvidia(arch="unknown"))).satisfied


def test_runtime_and_driver_conditions_are_of_the_devices_own_stack() -> None:
    cuda = Runtime(name="cudart", kind="runtime", version="12.8", vendors=("nvidia",))
    rocm = Runtime(name="rocm", kind="runtime", version="6.3.0-39", vendors=("amd",))
    both = dual(runtimes=(cuda, rocm))
    assert match(need("cuda", runtime=">=12.4"), both).satisfied
    assert match(need("rocm", runtime=">=6.3"), both).satisfied
    assert not match(need("rocm", runtime=">=12.4"), both).satisfied
    assert match(need("gpu", driver="amdgpu>=6.8"), both).groups[0].candidates == ("0000:c1:00.0",)


def test_a_framework_picks_the_vendor_it_was_built_for() -> None:
    on = dual(runtimes=(torch("2.9.0+rocm6.3", "amd"),))
    assert candidates(need("gpu", framework="torch"), on) == [("0000:c1:00.0",)]


def test_same_node() -> None:
    assert candidates(need("cuda", count=2, same_node=True), dual())
    apart = machine(nvidia(0), nvidia(1, numa_node=1))
    assert refusal(need("cuda", count=2, same_node=True), apart)[1].endswith(
        "found 0000:41:00.0 (on NUMA node 0), 0000:42:00.0 (on NUMA node 1)"
    )
    unknown = machine(nvidia(0), nvidia(1, numa_node=None))
    assert "0000:42:00.0 (on unknown NUMA node)" in refusal(need("cuda", count=2, same_node=True), unknown)[1]
    single = machine(nvidia(0, numa_node=None), nvidia(1, numa_node=None), numa_nodes=EMPTY.numa_nodes[:1])
    assert candidates(need("cuda", count=2, same_node=True), single)
    assert (
        "at the same time; found 0000:41:00.0 (NUMA node 0)" in refusal(need("cross_vendor", same_node=True), dual())[1]
    )
    assert candidates(need("cross_vendor", same_node=True), machine(nvidia(), amd(numa_node=0)))


def test_requirements_of_one_test_do_not_share_devices() -> None:
    wanted = Need(requirements=(*need("cuda").requirements, *need("gpu").requirements))
    assert candidates(wanted, machine(nvidia(), amd())) == [("0000:41:00.0",), ("0000:41:00.0", "0000:c1:00.0")]
    assert refusal(wanted, machine(nvidia()))[1] == (
        "needs 1 NVIDIA GPU with CUDA and 1 GPU, at the same time; found only 0000:41:00.0 for all of them"
    )


def test_choosing_takes_only_what_is_free_and_what_is_preferred_first() -> None:
    on = dual()
    groups = match(need("cuda"), on).groups
    everything = [gpu.key for gpu in on.gpus]
    assert choose(groups, everything, on) == (("0000:41:00.0",),)
    assert choose(groups, everything, on, preferred=["0000:42:00.0"]) == (("0000:42:00.0",),)
    assert choose(groups, ["0000:42:00.0", "0000:c1:00.0"], on) == (("0000:42:00.0",),)
    assert choose(groups, ["0000:c1:00.0"], on) is None
    assert choose((), everything, on) == ()


def test_a_choice_made_early_does_not_block_a_later_one() -> None:
    on = machine(nvidia(), amd())
    wanted = Need(requirements=(*need("gpu").requirements, *need("cuda").requirements))
    groups = match(wanted, on).groups
    assert choose(groups, [gpu.key for gpu in on.gpus], on) == (("0000:c1:00.0",), ("0000:41:00.0",))


def test_the_closest_pair() -> None:
    near = nvidia(1, upstream=("0000:c0:00.0",), numa_node=1)
    on = machine(nvidia(0), near, amd())
    groups = match(need("cross_vendor"), on).groups
    everything = [gpu.key for gpu in on.gpus]
    assert choose(groups, everything, on) == (("0000:41:00.0",), ("0000:c1:00.0",))
    assert choose(groups, everything, on, closest_pair=True) == ((near.key,), ("0000:c1:00.0",))
    without = [key for key in everything if key != near.key]
    assert choose(groups, without, on, closest_pair=True) == (("0000:41:00.0",), ("0000:c1:00.0",))
    assert choose(groups, ["0000:c1:00.0"], on, closest_pair=True) is None
    unknown = machine(nvidia(0, upstream=None), nvidia(1, upstream=("0000:40:00.0",), numa_node=1), amd())
    assert choose(match(need("cross_vendor"), unknown).groups, everything, unknown, closest_pair=True) == (
        ("0000:42:00.0",),
        ("0000:c1:00.0",),
    )


def test_same_node_holds_while_choosing() -> None:
    on = machine(nvidia(0), nvidia(1, numa_node=1), nvidia(2, numa_node=1))
    groups = match(need("cuda", count=2, same_node=True), on).groups
    everything = [gpu.key for gpu in on.gpus]
    assert choose(groups, everything, on) == (("0000:42:00.0", "0000:43:00.0"),)
    assert choose(groups, everything[:2], on) is None


def test_vendor_libraries_are_asked_only_for_what_files_do_not_tell() -> None:
    assert libraries_to_ask([need("rocm", memory=1, arch="gfx90a", driver=">=1", features="p2p")], dual()) == ()
    assert libraries_to_ask([need("rocm", memory=1)], machine(amd(memory_total_bytes=None))) == ("amd",)
    assert libraries_to_ask([need("rocm", features="fp64")], machine(amd())) == ("amd",)
    # Only NVML notices that a driver which files show as bound hangs or does not match its library.
    assert libraries_to_ask([need("cuda")], dual()) == ("nvidia",)
    assert libraries_to_ask([need("cuda")], dual(asked=("nvidia",))) == ()
    assert libraries_to_ask([need("cuda")], machine(nvidia(driver="nouveau", usable=Usable()))) == ()
    assert libraries_to_ask([need("cuda", memory=1)], machine(nvidia(granted=False))) == ()
    assert libraries_to_ask([], dual()) == ()


def test_simulated_devices_are_said_to_be_simulated() -> None:
    on = dual(simulated=True)
    assert decide(need("cuda"), on, stand_ins=True).outcome == "run"
    decision = decide(need("cuda"), on, stand_ins=False)
    assert decision.outcome == "simulated"
    assert decision.reason is not None
    assert "add --gpu-simulate" in decision.reason
    assert decide(need("cuda", count=9), on, stand_ins=False).outcome == "missing"


def test_of_several_things_missing_the_gravest_is_the_outcome() -> None:
    hidden, mask = masked(nvidia(), "CUDA_VISIBLE_DEVICES", "", "cuda")
    decision = decide(need("cuda", "rocm"), machine(hidden, masks=(mask,)), stand_ins=False)
    assert decision.outcome == "missing"
    assert decision.reason == (
        "needs 1 NVIDIA GPU with CUDA; found 0000:41:00.0 (hidden by CUDA_VISIBLE_DEVICES=); "
        "needs 1 AMD GPU with ROCm; found no AMD GPU"
    )


def test_promises() -> None:
    assert unmet_promises((("cuda", 2), ("rocm", 1), ("gpu", 3)), dual()) == ()
    (unmet,) = unmet_promises((("cuda", 3), ("amd", 1)), dual())
    assert unmet.startswith("cuda:3 is promised: needs 3 NVIDIA GPUs with CUDA; found 0000:41:00.0 (fits)")
    assert len(unmet_promises((("cuda", 2), ("rocm", 1)), dual(simulated=True))) == 2
    assert promised_need((("cuda", 2), ("intel", 1))).describe() == "2 NVIDIA GPUs with CUDA and 1 Intel GPU"


@pytest.mark.parametrize(
    ("wanted", "promised"),
    [
        (need("cuda"), True),
        (need("cuda", count=2), True),
        (need("cuda", count=3), False),
        (need("gpu", vendor="nvidia"), True),
        (need("gpu"), True),
        (need("rocm"), False),
        (need("cross_vendor"), False),
        (need("cuda", memory="80 GiB"), False),
        (need("cuda", framework="torch"), False),
        (Need(requirements=()), False),
    ],
)
def test_what_a_promise_covers(wanted: Need, promised: bool) -> None:
    assert is_promised(wanted, (("cuda", 2),)) is promised


def test_conflicts_do_not_decide_anything() -> None:
    on = dual(conflicts=(Conflict(subject="count", kind="count", message="NVML counts 3, PCI 4"),))
    assert match(need("cuda"), on) == match(need("cuda"), dual())
    assert all(gpu.memory_total_bytes == 24 * GIB for gpu in on.gpus[:2])

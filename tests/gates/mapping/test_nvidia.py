"""What NVML says about mapped memory and peers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st

from pytest_gpucoexist.host.base import HelperReply
from pytest_gpucoexist.testing.builder import MachineBuilder, a_machine
from tests.gates.judging import verdict, verdicts
from tests.gates.mapping.test_iommu import TWO, nvml_of, with_peers
from tests.gates.pcie.trees import put

ONE = a_machine().with_gpu("rtx4090")
WINDOW, ROOM, CC, MATRIX = "mem.rebar.nv", "mem.bar1_free", "mem.cc_mode", "mem.p2p_status.nv"
MIB = 1 << 20


def with_cell(machine: MachineBuilder, name: str, cell: Any) -> MachineBuilder:
    data = nvml_of(machine)
    for device in data["devices"]:
        device[name] = cell
    return machine.with_reply("nvml", HelperReply(status="ok", data=data))


def with_bar1(machine: MachineBuilder, total: int, used: int = 0) -> MachineBuilder:
    return with_cell(machine, "bar1", {"value": {"total": total, "used": used, "free": total - used}})


@pytest.mark.proves(WINDOW, "PASS", on="tree")
def test_a_window_over_everything_or_as_large_as_it_can_be() -> None:
    assert verdict(ONE, WINDOW).reason == "BAR1 covers the whole memory"
    assert verdict(with_bar1(ONE, 256 * MIB), WINDOW).reason == "BAR1 covers 256 MiB: peers and RDMA can map that much"


@pytest.mark.proves(WINDOW, "WARN", on="tree")
def test_a_window_that_could_be_larger() -> None:
    machine = put(with_bar1(ONE, 256 * MIB), "nvidia0", "resource1_resize", "0000000000007fc0\n")
    found = verdict(machine, WINDOW)
    assert (found.status, found.reason) == (
        "WARN",
        "BAR1 of nvidia0 (0000:01:00.0) covers 256 MiB of 23.99 GiB, and could cover more",
    )


@pytest.mark.proves(ROOM, "PASS", on="tree")
def test_room_in_the_window() -> None:
    assert verdict(with_bar1(ONE, 256 * MIB, 20 * MIB), ROOM).status == "PASS"


@pytest.mark.proves(ROOM, "WARN", on="tree")
def test_a_full_window() -> None:
    found = verdict(with_bar1(ONE, 256 * MIB, 250 * MIB), ROOM)
    assert (found.status, found.reason) == (
        "WARN",
        "BAR1 of nvidia0 (0000:01:00.0) is nearly full: 250 MiB of 256 MiB used",
    )


@pytest.mark.parametrize("gate", [WINDOW, ROOM])
def test_windows_that_are_not_told(gate: str) -> None:
    unsupported = {"status": "unsupported", "detail": "NVML: Not Supported"}
    assert verdict(with_cell(ONE, "bar1", unsupported), gate).status == "SKIP"
    assert verdict(with_cell(ONE, "bar1", {"value": "much"}), gate).status == "UNKNOWN"
    assert verdict(ONE.hang("nvml"), gate).status == "UNKNOWN"


def test_where_nobody_wants_nvidia_nothing_is_unknown() -> None:
    machine = a_machine().with_gpu("rtx3090", driver="nouveau")
    assert verdict(machine, WINDOW).status == "SKIP"
    assert verdict(machine, CC).status == "SKIP"
    assert verdict(machine, WINDOW, promised={"cuda": 1}).status == "UNKNOWN"


def with_confidential(feature: Any) -> MachineBuilder:
    data = nvml_of(ONE) | {"confidential_compute": {"value": {"environment": 2, "feature": feature}}}
    return ONE.with_reply("nvml", HelperReply(status="ok", data=data))


@pytest.mark.proves(CC, "PASS", on="tree")
@pytest.mark.proves(CC, "WARN", on="tree")
def test_confidential_computing() -> None:
    # nvml.h: NVML_CC_SYSTEM_FEATURE_DISABLED 0, NVML_CC_SYSTEM_FEATURE_ENABLED 1
    assert verdict(with_confidential(0), CC).status == "PASS"
    assert verdict(with_confidential(1), CC).status == "WARN"
    assert verdict(with_confidential("yes"), CC).status == "UNKNOWN"
    data = nvml_of(ONE) | {"confidential_compute": {"status": "unsupported", "detail": "NVML: Not Supported"}}
    assert verdict(ONE.with_reply("nvml", HelperReply(status="ok", data=data)), CC).status == "SKIP"


@pytest.mark.proves(MATRIX, "PASS", on="tree")
def test_all_are_peers_or_none() -> None:
    assert verdict(with_peers(TWO), MATRIX).reason == "each GPU can reach each other's memory"
    none = verdict(with_peers(TWO, read="chipset not supported"), MATRIX)
    assert none.reason == "no GPU can reach another's memory (chipset not supported): copies go through the host"


@pytest.mark.proves(MATRIX, "WARN", on="tree")
def test_a_matrix_with_holes() -> None:
    # scitix/sichek, check_p2p.go: a partial matrix is abnormal.
    machine = with_peers(TWO.with_gpu("rtx4090"))
    data = nvml_of(machine)
    for row in data["devices"][2]["p2p"]["value"]:
        row.update(read="topology not supported", write="topology not supported")
    found = verdict(machine.with_reply("nvml", HelperReply(status="ok", data=data)), MATRIX)
    assert found.status == "WARN"
    assert found.reason == (
        "the matrix of peers has holes: nvidia2 to nvidia0, nvidia2 to nvidia1 (topology not supported)"
    )


def test_models_are_compared_with_their_own() -> None:
    mixed = with_peers(a_machine().with_gpu("rtx4090").with_gpu("rtx3090"), read="GPU not supported")
    assert verdict(mixed, MATRIX).reason == "no two NVIDIA GPUs here are of one model"
    assert verdict(ONE, MATRIX).status == "SKIP"
    assert verdict(TWO.hang("nvml"), MATRIX).status == "UNKNOWN"


GARBAGE = st.recursive(
    # A number of bytes that a card can have is no garbage.
    st.none() | st.booleans() | st.integers(max_value=2**20 - 1) | st.integers(min_value=2**48) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["value", "total", "used", "peer", "read", "feature", "status"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)


@settings(max_examples=50)
@given(GARBAGE, GARBAGE, GARBAGE)
@example({"value": {"total": 1}}, None, None)
@example({"value": {"total": 1, "used": 0}}, None, None)
@example({"value": {"total": 2**60, "used": 0}}, None, None)
def test_garbage_from_a_helper_never_passes(bar1: Any, p2p: Any, cc: Any) -> None:
    data = nvml_of(TWO)
    for device in data["devices"]:
        device |= {"bar1": bar1, "p2p": p2p}
    machine = TWO.with_reply("nvml", HelperReply(status="ok", data=data | {"confidential_compute": cc}))
    for gate in (WINDOW, ROOM, CC, MATRIX):
        assert {each.status for each in verdicts(machine, gate)} <= {"UNKNOWN", "SKIP", "WARN"}

"""How much of a card's memory the processor sees."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.host import open_recording
from pytest_gpucoexist.testing.builder import MachineBuilder, a_machine
from tests.gates.judging import verdict
from tests.gates.pcie.trees import address_of, folder_of, put

if TYPE_CHECKING:
    from pathlib import Path

AMD, INTEL = "mem.rebar.amd", "mem.rebar.intel"
SMALL = f"{256 << 20}\n"


def small_amd(model: str = "rx7900xtx") -> MachineBuilder:
    return put(a_machine().with_gpu(model), "amd0", "mem_info_vis_vram_total", SMALL)


@pytest.mark.proves(AMD, "PASS", on="tree")
def test_all_memory_is_visible() -> None:
    assert verdict(a_machine().with_gpu("rx7900xtx"), AMD).reason == "all of its memory is visible"


@pytest.mark.proves(AMD, "WARN", on="tree")
def test_a_card_that_could_show_more() -> None:
    machine = small_amd()
    found = verdict(machine, AMD)
    assert found.status == "WARN"
    assert found.reason.startswith(f"amd0 ({address_of(machine, 'amd0')}) shows 256 MiB of 23.98 GiB")
    assert "Resizable BAR" in found.action


@pytest.mark.proves(AMD, "PASS", on="tree")
def test_a_card_that_cannot_show_more_is_healthy() -> None:
    old = a_machine().with_gpu("rx7900xtx", arch="gfx803", memory_bytes=8 << 30)
    old = put(old, "amd0", "mem_info_vis_vram_total", SMALL)
    assert verdict(old, AMD).status == "PASS"
    fixed = put(small_amd(), "amd0", "resource0_resize", "0000000000000100\n")
    assert verdict(fixed, AMD).reason == "a window of 256 MiB, the largest that this card can show"


@pytest.mark.proves(AMD, "WARN", on="recording")
def test_a_recorded_vega_whose_window_was_not_resized(shared: Path) -> None:
    found = verdict(open_recording(str(shared / "machines/lact/lact-amd-vega56.tar.xz")), AMD)
    assert found.status == "WARN"
    assert "shows 256 MiB of 7.984 GiB" in found.reason


@pytest.mark.proves(AMD, "PASS", on="recording")
def test_a_recorded_card_whose_window_was(shared: Path) -> None:
    assert verdict(open_recording(str(shared / "machines/lact/lact-amd-rx6900xt.tar.xz")), AMD).status == "PASS"


def test_amd_garbage_and_what_does_not_apply() -> None:
    assert verdict(put(small_amd(), "amd0", "mem_info_vram_total", "plenty\n"), AMD).status == "UNKNOWN"
    assert verdict(a_machine().with_gpu("radeon-780m"), AMD).status == "SKIP"
    assert verdict(small_amd().sleep("amd0"), AMD).status == "SKIP"
    machine = a_machine().with_gpu("rx7900xtx")
    for name in ("mem_info_vis_vram_total", "mem_info_vram_total"):
        machine = machine.without(f"{folder_of(machine, 'amd0')}/{name}")
    assert verdict(machine, AMD).status == "SKIP"


def arc(size: int) -> MachineBuilder:
    lines = ["0x0000000000000000 0x0000000000000000 0x0000000000000000"] * 13
    lines[0] = "0x0000000080000000 0x0000000080ffffff 0x0000000000140204"
    lines[2] = f"0x0000001800000000 {0x1800000000 + size - 1:#018x} 0x000000000014220c"
    return put(a_machine().with_gpu("arc-b580"), "intel0", "resource", "\n".join(lines) + "\n")


@pytest.mark.proves(INTEL, "PASS", on="tree")
def test_an_arc_card_that_shows_its_memory() -> None:
    assert verdict(arc(16 << 30), INTEL).status == "PASS"
    tiny = put(arc(256 << 20), "intel0", "resource2_resize", "0000000000000100\n")
    assert verdict(tiny, INTEL).status == "PASS"


@pytest.mark.proves(INTEL, "WARN", on="tree")
def test_an_arc_card_behind_a_small_window() -> None:
    # The Arc B580 of geerlingguy/raspberry-pi-pcie-devices#695 stood behind a prefetchable window of 256 MiB.
    found = verdict(put(arc(256 << 20), "intel0", "resource2_resize", "0000000000007f00\n"), INTEL)
    assert found.status == "WARN"
    assert found.evidence[0].expected == "16 GiB"
    assert verdict(arc(256 << 20), INTEL).status == "WARN"


def test_intel_garbage_and_what_does_not_apply() -> None:
    assert verdict(put(arc(256 << 20), "intel0", "resource", "?\n"), INTEL).status == "UNKNOWN"
    assert verdict(a_machine().with_gpu("uhd770"), INTEL).status == "SKIP"

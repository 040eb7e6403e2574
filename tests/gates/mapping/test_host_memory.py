"""Host memory: what is free within all limits, bounce buffers, pages that move."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings, strategies as st

from pytest_gpucoexist.gates.mapping.host_memory import available_bytes
from pytest_gpucoexist.host import open_recording
from pytest_gpucoexist.testing.builder import MachineBuilder, a_machine
from tests.gates.judging import verdict
from tests.gates.pcie.trees import put

if TYPE_CHECKING:
    from pathlib import Path

FREE, GTT, BOUNCE, BALANCE = "mem.host_free", "mem.gtt.amd", "mem.swiotlb_force", "mem.numa_balancing"
GIB = 1 << 30


def with_memory(kib: int) -> MachineBuilder:
    text = f"MemTotal:       131072000 kB\nMemFree:        1000000 kB\nMemAvailable:   {kib} kB\nBuffers:  1 kB\n"
    return a_machine().with_gpu("rtx4090").with_file("/proc/meminfo", text)


PLENTY = with_memory(60 << 20)


def limited(machine: MachineBuilder, limit: str, used: int, cache: int = 0) -> MachineBuilder:
    """A control group (v2) of a container, as its own namespace shows it."""
    machine = machine.with_file("/proc/self/cgroup", "0::/\n")
    machine = machine.with_file("/sys/fs/cgroup/memory.max", f"{limit}\n")
    machine = machine.with_file("/sys/fs/cgroup/memory.stat", f"anon 1\nfile {cache}\ninactive_file {cache}\n")
    return machine.with_file("/sys/fs/cgroup/memory.current", f"{used}\n")


@pytest.mark.proves(FREE, "PASS", on="tree")
def test_memory_is_free() -> None:
    assert verdict(PLENTY, FREE).evidence[0].found == "MemAvailable: 60 GiB"
    assert verdict(limited(PLENTY, "max", 5 * GIB), FREE).status == "PASS"
    assert verdict(limited(PLENTY, str(8 * GIB), 7 * GIB, cache=6 * GIB), FREE).status == "PASS", "cache can be dropped"


@pytest.mark.proves(FREE, "WARN", on="tree")
def test_memory_is_short() -> None:
    found = verdict(with_memory(1 << 20), FREE)
    assert (found.status, found.reason) == (
        "WARN",
        "only 1 GiB of host memory are free (MemAvailable); 2.25 GiB wanted",
    )
    assert verdict(with_memory(2 << 20), FREE, limits={FREE: {"staging_mib": 0}}).status == "PASS"


@pytest.mark.proves(FREE, "WARN", on="tree")
def test_a_containers_limit_counts_too() -> None:
    found = verdict(limited(PLENTY, str(2 * GIB), GIB), FREE)
    assert found.status == "WARN"
    assert found.evidence[0].source == "/sys/fs/cgroup/memory.max"
    nested = PLENTY.with_file("/proc/self/cgroup", "0::/user.slice/user-1000.slice\n")
    nested = nested.with_file("/sys/fs/cgroup/user.slice/memory.max", f"{GIB}\n")
    nested = nested.with_file("/sys/fs/cgroup/user.slice/memory.current", "4096\n")
    assert verdict(nested, FREE).evidence[0].source == "/sys/fs/cgroup/user.slice/memory.max"


@pytest.mark.proves(FREE, "WARN", on="tree")
def test_the_older_control_groups() -> None:
    machine = PLENTY.with_file("/proc/self/cgroup", "7:cpu,cpuacct:/docker/ab\n6:memory:/docker/ab\n")
    machine = machine.with_file("/sys/fs/cgroup/memory/memory.limit_in_bytes", f"{GIB}\n")
    machine = machine.with_file("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1000\n")
    assert verdict(machine, FREE).status == "WARN"
    unlimited = machine.with_file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert verdict(unlimited, FREE).status == "PASS"


def test_memory_that_is_not_told() -> None:
    assert verdict(PLENTY.with_file("/proc/meminfo", "MemTotal: 1 kB\n"), FREE).status == "UNKNOWN"
    assert verdict(PLENTY.without("/proc/meminfo"), FREE).status == "UNKNOWN"
    assert verdict(a_machine(), FREE).status == "SKIP"


@pytest.mark.proves(FREE, "WARN", on="recording")
def test_a_recorded_small_guest(shared: Path) -> None:
    assert verdict(open_recording(str(shared / "machines/vm-2node-switch.tar.gz")), FREE).status == "WARN"


@settings(max_examples=100)
@given(st.text(max_size=60))
def test_any_meminfo(text: str) -> None:
    assert available_bytes(text) is None or "MemAvailable" in text


RADEON = a_machine().with_gpu("rx7900xtx")


@pytest.mark.proves(GTT, "PASS", on="tree")
@pytest.mark.proves(GTT, "WARN", on="tree")
def test_how_much_host_memory_a_radeon_can_map() -> None:
    assert verdict(put(RADEON, "amd0", "mem_info_gtt_total", f"{8 * GIB}\n"), GTT).status == "PASS"
    found = verdict(put(RADEON, "amd0", "mem_info_gtt_total", f"{64 << 20}\n"), GTT)
    assert (found.status, found.reason.endswith("can map only 64 MiB of host memory")) == ("WARN", True)
    assert verdict(put(RADEON, "amd0", "mem_info_gtt_total", "none\n"), GTT).status == "UNKNOWN"


@pytest.mark.proves(GTT, "PASS", on="recording")
def test_a_recorded_window_into_host_memory(shared: Path) -> None:
    assert verdict(open_recording(str(shared / "machines/lact/lact-amd-rx6900xt.tar.xz")), GTT).status == "PASS"


def booted(words: str) -> MachineBuilder:
    return a_machine().with_gpu("rtx4090").with_file("/proc/cmdline", f"BOOT_IMAGE=/vmlinuz ro {words}\n")


@pytest.mark.proves(BOUNCE, "PASS", on="tree")
def test_no_bounce_buffers() -> None:
    assert verdict(booted("swiotlb=65536"), BOUNCE).reason == "bounce buffers are not forced"
    # A processor that could run confidential guests is no such guest.
    host = booted("quiet").with_file("/proc/cpuinfo", "flags\t\t: fpu sev sev_es sme\n")
    assert verdict(host, BOUNCE).status == "PASS"
    used = booted("").with_file("/sys/kernel/debug/swiotlb/io_tlb_used", "12\n")
    used = used.with_file("/sys/kernel/debug/swiotlb/io_tlb_nslabs", "32768\n")
    assert verdict(used, BOUNCE).reason == "bounce buffers are not forced, and hardly used"


@pytest.mark.proves(BOUNCE, "WARN", on="tree")
@pytest.mark.parametrize("word", ["swiotlb=force", "swiotlb=65536,force", "mem_encrypt=on"])
def test_bounce_buffers_by_command_line(word: str) -> None:
    found = verdict(booted(word), BOUNCE)
    assert (found.status, found.reason) == ("WARN", f"copies go through bounce buffers: {word}")


@pytest.mark.proves(BOUNCE, "WARN", on="tree")
def test_bounce_buffers_of_a_confidential_guest() -> None:
    guest = booted("quiet").with_file("/sys/class/misc/tdx_guest/uevent", "MAJOR=10\n")
    assert verdict(guest, BOUNCE).reason == "a confidential guest (TDX): copies go through bounce buffers"
    full = booted("").with_file("/sys/kernel/debug/swiotlb/io_tlb_used", "30000\n")
    full = full.with_file("/sys/kernel/debug/swiotlb/io_tlb_nslabs", "32768\n")
    assert verdict(full, BOUNCE).reason == "bounce buffers are in use: 30000 of 32768 slots"


@pytest.mark.proves(BOUNCE, "PASS", on="recording")
def test_a_recorded_command_line(shared: Path) -> None:
    assert verdict(open_recording(str(shared / "machines/vm-2node-switch.tar.gz")), BOUNCE).status == "PASS"


def balancing(state: str) -> MachineBuilder:
    machine = a_machine().with_numa_nodes(2).with_gpu("rtx4090")
    machine = machine.with_file("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    return machine.with_file("/proc/sys/kernel/numa_balancing", state)


@pytest.mark.proves(BALANCE, "PASS", on="tree")
@pytest.mark.proves(BALANCE, "WARN", on="tree")
def test_pages_move_only_matters_while_copies_are_measured() -> None:
    assert verdict(balancing("1\n"), BALANCE).reason == "automatic NUMA balancing is on"
    assert verdict(balancing("0\n"), BALANCE, level="transfer").status == "PASS"
    measuring = verdict(balancing("1\n"), BALANCE, level="transfer")
    assert measuring.status == "WARN"
    assert [each.found for each in measuring.evidence] == ["1", "'always [madvise] never'"]
    assert verdict(balancing("often\n"), BALANCE).status == "UNKNOWN"
    assert verdict(a_machine().with_gpu("rtx4090"), BALANCE).status == "SKIP"

"""Processes and memory of others: named where /proc knows them, unknown where it does not, and never this run's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings, strategies as st

from pytest_gpucoexist.host import open_recording
from pytest_gpucoexist.testing.builder import MachineBuilder, a_machine
from tests.gates.boards import DEADLINE_S, FIRST, asked_here, with_files
from tests.gates.judging import judged, verdict
from tests.gates.nvidia_smi import machine_of
from tests.vendor.machines import RTX_4090

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.machine import FakeMachine

proves = pytest.mark.proves
ONE = a_machine().with_gpu("rtx4090")
GIB = 2**30


def with_process(machine: MachineBuilder, pid: int, name: str, parent: int = 1) -> MachineBuilder:
    """Put a process into `/proc`, in the words of the kernel."""
    machine = machine.with_file(f"/proc/{pid}/comm", f"{name}\n")
    return machine.with_file(f"/proc/{pid}/stat", f"{pid} ({name}) S {parent} {pid} {pid} 0 -1 4194304 0 0 0 0\n")


@proves("proc.nv.compute", "PASS", on="tree")
def test_nobody() -> None:
    said = verdict(ONE, "proc.nv.compute")
    assert (said.status, said.reason) == ("PASS", "nobody else computes on it")


@proves("proc.nv.compute", "WARN", on="tree")
def test_somebody_else_is_named() -> None:
    machine = with_process(ONE.with_process("nvidia0", 4242, 3 * GIB), 4242, "python (train)")
    said = verdict(machine, "proc.nv.compute")
    assert (said.status, said.reason) == ("WARN", "python (train) (4242) computes on it")


def test_this_run_and_its_family_are_left_out() -> None:
    machine = ONE.with_link("/proc/self", "300")
    machine = with_process(with_process(with_process(machine, 200, "pytest"), 300, "pytest", 200), 400, "python", 300)
    for pid in (200, 300, 400):
        machine = machine.with_process("nvidia0", pid, GIB)
    assert verdict(machine, "proc.nv.compute").status == "PASS"
    said = verdict(with_process(machine.with_process("nvidia0", 500, GIB), 500, "vllm", 1), "proc.nv.compute")
    assert (said.status, said.reason) == ("WARN", "vllm (500) computes on it")


def test_pids_of_another_namespace_are_unknown() -> None:
    said = verdict(ONE.with_process("nvidia0", 91234, GIB), "proc.nv.compute")
    assert said.status == "UNKNOWN"
    assert said.reason.startswith("1 process uses it under a PID that /proc does not show")


@proves("proc.nv.compute", "WARN", on="fake")
def test_a_client_of_mps(machine: FakeMachine) -> None:
    machine.nvidia(RTX_4090)
    machine.put({"nvidia.0.processes": None, "nvidia.0.mps_processes": "4242:0"})
    files = with_process(a_machine().with_gpu("rtx4090", address=FIRST), 4242, "lammps")
    said = verdict(asked_here(files), "proc.nv.compute", deadline_s=DEADLINE_S)
    assert (said.status, said.reason) == ("WARN", "lammps (4242) computes on it")


@pytest.mark.parametrize(
    ("name", "status"),
    [
        pytest.param("gnome-shell", "PASS", marks=proves("proc.nv.graphics", "PASS", on="tree")),
        pytest.param("Xorg", "PASS"),
        pytest.param("firefox", "WARN", marks=proves("proc.nv.graphics", "WARN", on="tree")),
    ],
)
def test_what_draws(name: str, status: str) -> None:
    machine = with_process(ONE.with_process("nvidia0", 4242, GIB, kind="graphics"), 4242, name)
    said = verdict(machine, "proc.nv.graphics")
    assert (said.status, (name in said.reason) is (status == "WARN")) == (status, True), said


@pytest.mark.parametrize(
    ("used", "display", "status"),
    [
        pytest.param(400 * 2**20, False, "PASS", marks=proves("proc.nv.mem_used", "PASS", on="tree")),
        pytest.param(GIB, False, "WARN", marks=proves("proc.nv.mem_used", "WARN", on="tree")),
        (GIB, True, "PASS"),
        (4 * GIB, True, "WARN"),
    ],
)
def test_memory_in_use(used: int, display: bool, status: str) -> None:
    machine = a_machine().with_gpu("rtx4090", memory_used_bytes=used).with_health("nvidia0", display_active=display)
    said = verdict(machine, "proc.nv.mem_used")
    assert said.status == status, said


def test_an_old_driver_does_not_tell_what_it_reserves() -> None:
    machine = a_machine().with_gpu("rtx4090", memory_used_bytes=GIB).with_health("nvidia0", reserved_memory=None)
    assert verdict(machine, "proc.nv.mem_used").status == "SKIP"


@proves("proc.nv.mem_used", "PASS", on="recording")
@proves("proc.nv.mem_used", "WARN", on="recording")
def test_captures(shared: Path) -> None:
    text = shared / "machines/nvidia-smi/text"
    idle = verdict(machine_of((text / "gls-H100SXMx8_smi-q.txt").read_text()), "proc.nv.mem_used")
    assert (idle.status, len(idle.devices)) == ("PASS", 8)
    name = "gpud-nvidia-smi-query.535.154.05.out.0.valid.4090.txt"
    busy = verdict(machine_of((text / name).read_text()), "proc.nv.mem_used")
    assert (busy.status, len(busy.devices)) == ("WARN", 8)


AMD = a_machine().with_gpu("rx7900xtx")


@pytest.mark.parametrize(
    ("files", "status", "words"),
    [
        pytest.param({}, "PASS", "free and it is idle", marks=proves("proc.amd.vram_used", "PASS", on="tree")),
        pytest.param(
            {"mem_info_vram_used": str(4 * GIB)}, "WARN", "more of its memory",
            marks=proves("proc.amd.vram_used", "WARN", on="tree"),
        ),
        ({"gpu_busy_percent": "97"}, "WARN", "97 % busy"),
        ({"gpu_busy_percent": "0", "mem_info_vram_used": "lots"}, "UNKNOWN", "could not be read"),
        ({"mem_info_vram_used": str(99 * GIB)}, "UNKNOWN", "could not be read"),
    ],
)  # fmt: skip
def test_amd_memory(files: dict[str, str], status: str, words: str) -> None:
    said = verdict(with_files(AMD, "amd0", files), "proc.amd.vram_used")
    assert (said.status, words in said.reason) == (status, True), said


def test_a_gpu_that_sleeps_or_shares_is_not_judged() -> None:
    assert verdict(AMD.sleep("amd0"), "proc.amd.vram_used").reason == "asleep: nobody uses it"
    assert verdict(a_machine().with_gpu("radeon-780m"), "proc.amd.vram_used").status == "SKIP"


@proves("proc.amd.vram_used", "PASS", on="recording")
@proves("proc.amd.vram_used", "WARN", on="recording")
def test_cards_that_were_recorded(shared: Path) -> None:
    for name, status in (("lact/lact-amd-rx6900xt", "PASS"), ("procfs/procfs-amdgpu-i915", "WARN")):
        said = judged(open_recording(str(shared / f"machines/{name}.tar.xz")), "proc.amd.vram_used").verdicts
        assert status in {each.status for each in said}, (name, said)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=4) | st.booleans(),
        lambda inner: (
            st.lists(inner, max_size=2)
            | st.dictionaries(st.sampled_from(["pid", "kind", "memory", "total", "used"]), inner, max_size=4)
        ),
        max_leaves=6,
    )
)
@settings(max_examples=80)
def test_garbage_breaks_no_gate(value: Any) -> None:
    reply = ONE.host().ask("nvml")
    reply.data["devices"][0]["processes"] = {"value": value}
    reply.data["devices"][0]["memory"] = {"value": value}
    said = judged(ONE.with_reply("nvml", reply), "proc.nv.*").verdicts
    assert not {each.status for each in said} & {"ERROR", "FAIL"}


def test_a_desktop_takes_some_of_a_card_by_right() -> None:
    machine = with_files(AMD, "amd0", {"mem_info_vram_used": str(2 * GIB), "gpu_busy_percent": "17"})
    assert verdict(machine, "proc.amd.vram_used").status == "WARN"
    folder = machine.host().resolve("/sys/class/drm/card0")
    shown = machine.with_file(f"{folder}/card0-DP-1/status", "connected\n")
    shown = shown.with_link("/sys/class/drm/card0-DP-1", f"{folder}/card0-DP-1")
    assert verdict(shown, "proc.amd.vram_used").status == "PASS"
    assert verdict(shown, "proc.util_idle").status == "PASS"
    busy = with_files(shown, "amd0", {"gpu_busy_percent": "60"})
    assert {verdict(busy, gate).status for gate in ("proc.amd.vram_used", "proc.util_idle")} == {"WARN"}


def test_memory_of_processes_with_a_name_is_told_once() -> None:
    machine = a_machine().with_gpu("rtx4090", memory_used_bytes=3 * GIB + 400 * 2**20)
    machine = with_process(machine.with_process("nvidia0", 4242, 3 * GIB), 4242, "python")
    assert verdict(machine, "proc.nv.mem_used").status == "PASS"
    assert verdict(machine, "proc.nv.compute").status == "WARN"
    ghost = a_machine().with_gpu("rtx4090", memory_used_bytes=3 * GIB).with_process("nvidia0", 4243, 2 * GIB)
    assert verdict(ghost, "proc.nv.mem_used").status == "WARN"

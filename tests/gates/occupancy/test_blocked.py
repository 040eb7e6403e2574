"""Processes that hang in a driver, and the dead that still hold a GPU."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given, settings, strategies as st

from pytest_gpucoexist.gates.occupancy.blocked import blocked_tasks, driver_in
from pytest_gpucoexist.gates.occupancy.table import parse_stat
from pytest_gpucoexist.testing.builder import MachineBuilder, a_machine
from tests.gates.judging import verdict
from tests.gates.occupancy.processes import put, sched, stat, with_processes

MACHINE = a_machine().with_gpu("rtx4090").with_gpu("rx7900xtx")
# What proc_pid_stack and check_hung_task print.
STACK = """[<0>] os_acquire_rwlock_read+0x35/0x50 [nvidia]
[<0>] _nv045983rm+0x4c/0x1d0 [nvidia]
[<0>] nvidia_unlocked_ioctl+0x21/0x30 [nvidia]
[<0>] __x64_sys_ioctl+0xa3/0xf0
"""
HUNG = """[ 7411.118221] INFO: task python3:4242 blocked for more than 122 seconds.
[ 7411.118230]       Tainted: P           OE      6.8.0-51-generic #52-Ubuntu
[ 7411.118233] "echo 0 > /proc/sys/kernel/hung_task_timeout_secs" disables this message.
[ 7411.118236] task:python3         state:D stack:0     pid:4242  tgid:4242  ppid:1      flags:0x00000002
"""


def waiting(wchan: str | None, ran_ms: float | None = 12_100_000.0, *, stack: str | None = None) -> MachineBuilder:
    machine = with_processes(MACHINE, stat(4242, "python3", "D"))
    if wchan is not None:
        machine = machine.with_file("/proc/4242/wchan", wchan)
    if stack is not None:
        machine = machine.with_file("/proc/4242/stack", stack)
    return machine if ran_ms is None else machine.with_file("/proc/4242/sched", sched(4242, "python3", ran_ms))


def logged(machine: MachineBuilder, text: str = HUNG) -> MachineBuilder:
    return machine.with_file("/var/log/dmesg", text).with_file("/gpucoexist/kernel.log", text)


@pytest.mark.proves("proc.dstate", "FAIL", on="tree")
@pytest.mark.parametrize(("wchan", "stack"), [("uvm_down_read", None), ("down", STACK)])
def test_a_process_that_the_kernel_calls_hung_in_a_gpu_driver_fails(wchan: str, stack: str | None) -> None:
    # facebookresearch/gcm check_dstate.py: the machine has to be rebooted.
    said = verdict(logged(waiting(wchan, stack=stack)), "proc.dstate")
    assert said.status == "FAIL"
    assert not said.blocking
    assert said.reason == "process 4242 (python3) waits in nvidia, for more than 122 s, and cannot be killed"
    assert "reboot" in said.action


@pytest.mark.proves("proc.dstate", "WARN", on="tree")
def test_without_the_kernels_word_a_long_wait_is_told() -> None:
    said = verdict(waiting("amdgpu_fence_wait_empty"), "proc.dstate")
    assert said.status == "WARN"
    assert said.reason == "process 4242 (python3) waits in amdgpu, since about 265 s"
    assert "since when is not known" in verdict(waiting("kfd_wait_on_events", None), "proc.dstate").reason


@pytest.mark.proves("proc.dstate", "PASS", on="tree")
@pytest.mark.parametrize(
    ("wchan", "ran_ms"),
    [("folio_wait_bit_common", 12_100_000.0), ("amdgpu_fence_wait_empty", 12_364_541.0), ("0", 12_364_000.0)],
)
def test_a_wait_for_a_disk_or_for_a_moment_is_healthy(wchan: str, ran_ms: float) -> None:
    assert verdict(waiting(wchan, ran_ms), "proc.dstate").status == "PASS"


def test_a_task_that_was_hung_once_and_ran_since_does_not_fail() -> None:
    assert verdict(logged(waiting("uvm_down_read", 12_364_000.0)), "proc.dstate").status == "PASS"


def test_what_this_user_is_not_told_is_unknown() -> None:
    said = verdict(waiting("0"), "proc.dstate")
    assert said.status == "UNKNOWN"
    assert said.reason.endswith("for what, this user is not told")


def test_an_unreadable_proc_is_unknown() -> None:
    for gate in ("proc.dstate", "proc.zombie", "proc.mps", "proc.monitors"):
        assert verdict(MACHINE.with_error("/proc", errno.EACCES), gate).status == "UNKNOWN"
        assert verdict(with_processes(MACHINE).without("/proc/1"), gate).status == "UNKNOWN"


def test_more_processes_than_quick_looks_at_are_unknown() -> None:
    many = with_processes(MACHINE, *(stat(pid, "kworker", "I", 2) for pid in range(2000, 3600)))
    said = verdict(many, "proc.dstate", level="quick")
    assert said.status == "UNKNOWN"
    assert "1003 processes were not looked at" in said.reason
    assert verdict(many, "proc.dstate").status == "PASS"


@pytest.mark.proves("proc.zombie", "PASS", on="tree")
def test_a_dead_process_that_holds_nothing_is_healthy() -> None:
    assert verdict(with_processes(MACHINE), "proc.zombie").status == "PASS"
    amd = with_processes(a_machine().with_gpu("rx7900xtx"), stat(51, "defunct-shell", "Z"))
    assert verdict(amd, "proc.zombie").status == "PASS"


def test_whether_the_dead_hold_an_nvidia_gpu_only_nvml_tells() -> None:
    said = verdict(with_processes(MACHINE, stat(51, "defunct-shell", "Z")), "proc.zombie")
    assert said.status == "UNKNOWN"
    assert "defunct-shell (51) are dead" in said.reason


@pytest.mark.proves("proc.zombie", "WARN", on="tree")
def test_a_dead_process_that_kfd_still_lists_is_told() -> None:
    machine = with_processes(MACHINE, stat(4242, "python3", "Z", 800))
    machine = put(machine, "/sys/class/kfd/kfd/proc/4242/pasid", "32770")
    said = verdict(machine, "proc.zombie")
    assert said.status == "WARN"
    assert said.reason == "process 4242 (python3) is dead and KFD still lists it"


def test_a_dead_process_whose_thread_hangs_in_a_driver_is_told() -> None:
    machine = with_processes(MACHINE, stat(4242, "python3", "Z", 800)).with_file(
        "/proc/4242/task/4250/wchan", "nv_wait_for_gpu"
    )
    assert "threads of it wait in a GPU's driver" in verdict(machine, "proc.zombie").reason


@pytest.mark.parametrize(
    ("text", "driver"),
    [
        (STACK, "nvidia"),
        ("xe_sched_job_wait", "xe"),
        ("drm_syncobj_array_wait_timeout", "drm"),
        ("nouveau_fence_wait", "nouveau"),
        ("[<0>] dm_suspend+0x1/0x2 [amdgpu]", "amdgpu"),
        ("intel_idle", None),
        ("rwsem_down_read_slowpath", None),
        ("[<0>] nfs_wait_bit_killable+0x1/0x2 [nfs]", None),
        ("perform_io", None),
    ],
)
def test_a_driver_is_told_by_its_functions(text: str, driver: str | None) -> None:
    assert driver_in(text) == driver


@given(st.text(max_size=200))
@settings(max_examples=100, deadline=None)
def test_garbage_is_no_process_and_no_hang(text: str) -> None:
    process = parse_stat(text)
    assert process is None or process.pid >= 0
    assert blocked_tasks(text) == {} or "blocked for more than" in text
    driver_in(text)


def test_names_hold_anything() -> None:
    process = parse_stat("77 (a) S 1 (b) D 5 77 77 0")
    assert process is not None
    assert (process.name, process.state, process.parent) == ("a) S 1 (b", "D", 5)

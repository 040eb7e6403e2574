"""Foreign processes on the GPUs; ours, and those that cannot be matched."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.gates.occupancy.table import ours
from pytest_gpucoexist.host import open_recording
from pytest_gpucoexist.testing.builder import MachineBuilder, a_machine
from tests.gates.judging import subject_of, verdict, verdicts
from tests.gates.occupancy.processes import CONTAINER, put, stat, with_processes

if TYPE_CHECKING:
    from pathlib import Path

AMD = a_machine().with_gpu("rx7900xtx")
KFD = "/sys/class/kfd/kfd/proc"


def gpu_id(machine: MachineBuilder) -> int:
    kfd = subject_of(machine).gpus("amd")[0].kfd
    assert kfd is not None
    assert kfd.gpu_id is not None
    return kfd.gpu_id


def holding(machine: MachineBuilder, pid: int, size: int) -> MachineBuilder:
    return put(put(machine, f"{KFD}/{pid}/vram_{gpu_id(AMD)}", f"{size}\n"), f"{KFD}/{pid}/pasid", "32770\n")


@pytest.mark.proves("proc.amd.kfd", "WARN", on="tree")
def test_a_foreign_process_is_named() -> None:
    machine = holding(with_processes(AMD, stat(4242, "python3")), 4242, 6 << 30)
    said = verdict(machine, "proc.amd.kfd")
    assert said.status == "WARN"
    assert said.reason == "process 4242 (python3) holds 6144 MiB"
    assert said.devices


@pytest.mark.proves("proc.amd.kfd", "PASS", on="tree")
@pytest.mark.parametrize(("pid", "size"), [(4242, 0), (900, 1 << 30), (901, 1 << 30), (902, 1 << 30)])
def test_ours_and_those_that_hold_nothing_are_healthy(pid: int, size: int) -> None:
    family = (stat(901, "pytest", "S", 900), stat(902, "python3", "S", 901), stat(4242, "rocm-smi"))
    assert verdict(holding(with_processes(AMD, *family), pid, size), "proc.amd.kfd").status == "PASS"


def test_in_a_container_pids_cannot_be_matched() -> None:
    machine = holding(with_processes(AMD, stat(4242, "python3"), namespace=CONTAINER), 4242, 1 << 30)
    said = verdict(machine, "proc.amd.kfd")
    assert said.status == "UNKNOWN"
    assert "PIDs of the host" in said.reason


def test_without_kfds_list_nothing_is_known() -> None:
    assert verdict(AMD.with_error(KFD, errno.EACCES), "proc.amd.kfd").status == "UNKNOWN"


def test_workers_of_one_session_are_not_foreign_to_each_other() -> None:
    family = (stat(901, "python3", "S", 900), stat(902, "python3", "S", 900), stat(903, "python3", "S", 902))
    machine = with_processes(AMD, *family)
    assert ours(subject_of(machine)) >= {800, 900, 901, 902, 903}
    worker = machine.with_link("/proc/self", "901").with_environ(PYTEST_XDIST_WORKER="gw0")
    assert ours(subject_of(worker)) >= {900, 901, 902, 903}
    alone = machine.with_link("/proc/self", "901")
    assert 902 not in ours(subject_of(alone))


CLIENT = """pos:	0
flags:	02100002
mnt_id:	27
ino:	1055
drm-driver:	amdgpu
drm-client-id:	{client}
drm-pdev:	{address}
pasid:	32771
drm-total-vram:	{kib} KiB
drm-memory-vram:	{kib} KiB
drm-memory-gtt: 	2048 KiB
drm-engine-gfx:	3140 ns
"""


def client(machine: MachineBuilder, pid: int, name: str, mib: int) -> MachineBuilder:
    address = subject_of(AMD).gpus("amd")[0].pci_address
    text = CLIENT.format(client=pid, address=address, kib=mib * 1024)
    machine = machine.with_file(f"/proc/{pid}/stat", stat(pid, name)).with_file(f"/proc/{pid}/comm", name)
    machine = machine.with_file(f"/proc/{pid}/fdinfo/11", text)
    return machine.with_link(f"/proc/{pid}/fd/11", "/dev/dri/renderD128")


BASE = with_processes(AMD).with_file("/proc/1/fdinfo/0", "pos:\t0\n").with_file("/proc/800/fdinfo/0", "pos:\t0\n")
DESK = BASE.with_file("/proc/900/fdinfo/0", "pos:\t0\n")


@pytest.mark.proves("proc.fdinfo", "WARN", on="tree")
def test_a_program_with_much_memory_is_named() -> None:
    said = verdict(client(client(DESK, 2001, "gnome-shell", 300), 2002, "blender", 5000), "proc.fdinfo")
    assert said.status == "WARN"
    assert said.reason == "held by others: blender (2002): 5000 MiB"


@pytest.mark.proves("proc.fdinfo", "PASS", on="tree")
def test_a_desktop_is_healthy() -> None:
    machine = client(client(DESK, 2001, "gnome-shell", 300), 2002, "gedit", 20)
    assert verdict(machine, "proc.fdinfo").status == "PASS"
    assert verdict(client(DESK, 900, "pytest", 3000), "proc.fdinfo").status == "PASS"


def test_the_limit_can_be_changed() -> None:
    machine = client(DESK, 2002, "blender", 5000)
    assert verdict(machine, "proc.fdinfo", limits={"proc.fdinfo": {"memory_mib": 6000}}).status == "PASS"


def test_a_driver_that_tells_nothing_is_not_judged() -> None:
    machine = with_processes(a_machine().with_gpu("rtx4090"))
    assert {each.status for each in verdicts(machine, "proc.fdinfo")} == {"SKIP"}


def test_the_recorded_desktop_has_no_foreign_program(shared: Path) -> None:
    host = open_recording(str(shared / "machines" / "procfs" / "procfs-amdgpu-i915.tar.xz"))
    assert {each.status for each in verdicts(host, "proc.fdinfo")} <= {"PASS", "WARN", "UNKNOWN", "SKIP"}

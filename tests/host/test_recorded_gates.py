"""A record holds what gates read: judged again it says the same, and it names nobody who shows in a process's files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.cli import main
from pytest_gpucoexist.gates.runner import judge
from pytest_gpucoexist.gates.subject import Subject
from pytest_gpucoexist.host import local_host, open_recording
from pytest_gpucoexist.host.base import Node
from pytest_gpucoexist.host.recording import MAX_FILE_BYTES, RecordingHost, write_recording
from pytest_gpucoexist.host.scrub import cgroup_folder, mounts, process_status
from pytest_gpucoexist.probes import discover
from pytest_gpucoexist.testing import a_machine
from tests.gates.layouts.places import LAYOUTS, cdi, pod, with_process_files
from tests.host.test_recording import all_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucoexist.host.base import Host
    from pytest_gpucoexist.model.verdicts import VerdictStatus

# What a program opens is not kept: libraries are too large.
OPENS_FILES = ("sym.", "lib.", "kmod.")
STATUS = "Name:\ttrain_secret\nPid:\t7\nCpus_allowed_list:\t0-7\nMems_allowed_list:\t0\nSeccomp:\t0\n"
MOUNTS = (
    "22 27 0:21 / /proc rw,relatime - proc proc rw\n"
    "30 25 0:27 / /dev/shm rw - tmpfs shm rw,size=2097152k\n"
    "40 27 0:50 / /mnt/customer-x rw - nfs fileserver.example.org:/export/balthasar rw\n"
)
MAPS = (
    "55d0c8a4a000-55d0c8a4b000 r--p 00000000 08:02 393401 /data/customer-x/venv/bin/python3.12\n"
    "7f6e1c000000-7f6e1d021000 r-xp 00000000 08:02 396000 /home/balthasar/lib/libcuda.so.570.133.07\n"
)
GROUP = "/user.slice/user-1000.slice/train-secret.scope"


def statuses(host: Host) -> dict[str, VerdictStatus]:
    machine = discover(host, ask=("amd", "nvidia"))
    return judge(Subject(host=host, machine=machine, level="standard", deadline_s=60.0)).by_gate()


def recorded(inner: Host, path: Path) -> tuple[dict[str, VerdictStatus], dict[str, VerdictStatus]]:
    """Return what gates say of a machine, and of its record."""
    host = RecordingHost(inner)
    before = statuses(host)
    write_recording(host, str(path))
    return before, statuses(open_recording(str(path)))


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_record_of_a_container_is_judged_as_the_container(name: str, tmp_path: Path) -> None:
    before, after = recorded(LAYOUTS[name](), tmp_path / "r.tar.gz")
    changed = {gate: (before[gate], after[gate]) for gate in before if before[gate] != after[gate]}
    assert {gate for gate in changed if not gate.startswith(OPENS_FILES)} == set()
    assert all(now == "UNKNOWN" for _then, now in changed.values())


def test_a_record_of_faults_is_judged_as_the_machine(tmp_path: Path) -> None:
    machine = with_process_files(
        a_machine().with_gpu("rtx4090").with_gpu("mi210").with_gpu("mi210"), cpus="0", open_files=64
    )
    machine = machine.without_group("render").without("/dev/nvidiactl").with_file("/opt/rocm/.info/version", "6.4.1")
    machine = machine.with_environ(
        HOME="/home/balthasar", CUDA_VISIBLE_DEVICES="7", HSA_ENABLE_SDMA="0", CUDA_PROFILE="1"
    )
    before, after = recorded(machine.host(), tmp_path / "r.tar.gz")
    assert (before["dev.amd.kfd"], before["dev.nofile"], before["env.dcgm_bad"]) == ("FAIL", "WARN", "WARN")
    assert {gate: after[gate] for gate in before if not gate.startswith(OPENS_FILES)} == {
        gate: status for gate, status in before.items() if not gate.startswith(OPENS_FILES)
    }


def test_a_record_of_this_computer_is_judged_as_it(tmp_path: Path) -> None:
    before, after = recorded(local_host(), tmp_path / "r.tar.gz")
    # Counters and clocks of a living machine go on between two looks; what cannot be told from a record is unknown.
    changed = {gate: (before[gate], after[gate]) for gate in before if before[gate] != after[gate]}
    assert all(now == "UNKNOWN" and gate.startswith(OPENS_FILES) for gate, (_then, now) in changed.items())


def test_the_command_says_how_much_a_record_decides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["record", str(tmp_path / "r.tar.gz"), "--machine", pod().write_tree(str(tmp_path / "tree"))]) == 0
    out = capsys.readouterr().out
    line = next(line for line in out.splitlines() if line.strip().startswith("judged"))
    decided, of = (int(word) for word in line.split() if word.isdecimal())
    assert decided == of > 50
    assert main(["record", str(tmp_path / "q.tar.gz"), "--no-vendor", "--machine", str(tmp_path / "tree")]) == 0
    assert "gates" in capsys.readouterr().out


def test_a_process_and_its_mounts_name_nobody(tmp_path: Path) -> None:
    machine = (
        a_machine()
        .with_gpu("rtx4090")
        .with_environ(HOME="/home/balthasar", USER="balthasar")
        .with_file("/proc/self/status", STATUS)
        .with_file("/proc/self/mountinfo", MOUNTS)
        .with_file("/proc/self/maps", MAPS)
        .with_file("/proc/self/cgroup", f"0::{GROUP}\n")
        .with_file(f"/sys/fs/cgroup{GROUP}/memory.max", f"{8 * 2**30}\n")
        .with_file(f"/sys/fs/cgroup{GROUP}/memory.current", f"{2**30}\n")
    )
    path = tmp_path / "r.tar.gz"
    before, after = recorded(machine.host(), path)
    data = all_bytes(str(path)).lower()
    for personal in (b"secret", b"customer", b"balthasar", b"fileserver"):
        assert personal not in data, personal
    for gate in ("ctr.memory_max", "ctr.shm", "numa.affinity", "mem.host_free"):
        assert before[gate] == after[gate], gate
    assert before["ctr.memory_max"] == "PASS"


def test_what_is_too_large_is_known_to_be_there(tmp_path: Path) -> None:
    host = RecordingHost(cdi().with_file("/var/log/huge", b"x" * (MAX_FILE_BYTES + 1)).host())
    host.read_bytes("/var/log/huge", MAX_FILE_BYTES * 2)
    write_recording(host, str(tmp_path / "r.tar.gz"))
    replayed = open_recording(str(tmp_path / "r.tar.gz"))
    assert replayed.stat("/var/log/huge") == Node(kind="file", mode=0o444, size_bytes=MAX_FILE_BYTES + 1)
    with pytest.raises(OSError, match="huge"):
        replayed.read_bytes("/var/log/huge")


def test_folders_of_control_groups_are_renamed_as_the_file_that_names_them() -> None:
    def name(part: str) -> str:
        return part if part.endswith(".slice") else "name"

    assert (
        cgroup_folder("/sys/fs/cgroup/user.slice/secret/memory.max", name)
        == "/sys/fs/cgroup/user.slice/name/memory.max"
    )
    assert cgroup_folder("/sys/fs/cgroup/devices/devices.list", name) == "/sys/fs/cgroup/devices/devices.list"
    assert cgroup_folder("/sys/fs/cgroup/cpu,cpuacct/secret", name) == "/sys/fs/cgroup/cpu,cpuacct/name"
    assert cgroup_folder("/sys/fs/cgroup/memory.stat", name) == "/sys/fs/cgroup/memory.stat"


def test_mounts_and_status_keep_what_is_the_kernels() -> None:
    assert mounts(MOUNTS).splitlines() == MOUNTS.splitlines()[:2]
    assert mounts("tmpfs /dev/shm tmpfs rw 0 0\nserver:/x /home nfs rw 0 0\n") == "tmpfs /dev/shm tmpfs rw 0 0\n"
    assert mounts("garbage\n\n") == ""
    assert process_status(STATUS).startswith("Name:\tprocess\nPid:")

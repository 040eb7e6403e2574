"""Limits of the process, and whether it may read the kernel's log."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from pytest_gpucoexist.gates.device_node.limits import limit_of
from pytest_gpucoexist.host.base import Identity, Node
from pytest_gpucoexist.testing.builder import a_machine
from tests.gates.judging import verdict

ONE = a_machine().with_gpu("rtx4090")
# As fs/proc/base.c prints it (proc_pid_limits): "%-25s %-20s %-20s %-10s".
LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units     
Max cpu time              unlimited            unlimited            seconds   
Max open files            {files:<20} {hard:<20} files     
Max locked memory         {locked:<20} {locked:<20} bytes     
"""  # noqa: W291


def limits(files: object = 1024, locked: object = 8388608, hard: object = 1048576) -> str:
    return LIMITS.format(files=files, hard=hard, locked=locked)


@pytest.mark.proves("dev.nofile", "PASS", on="tree")
@pytest.mark.proves("dev.memlock", "PASS", on="tree")
def test_what_every_distribution_gives_is_enough() -> None:
    machine = ONE.with_file("/proc/self/limits", limits())
    assert verdict(machine, "dev.nofile").reason == "1024 files may be open"
    assert verdict(machine, "dev.memlock").reason == "8388608 bytes may be locked"
    machine = ONE.with_file("/proc/self/limits", limits("unlimited", "unlimited", "unlimited"))
    assert verdict(machine, "dev.nofile").reason == "unlimited files may be open"
    assert verdict(machine, "dev.memlock").reason == "unlimited bytes may be locked"


@pytest.mark.proves("dev.nofile", "WARN", on="tree")
def test_too_few_files_for_eight_gpus() -> None:
    machine = ONE.with_file("/proc/self/limits", limits())
    for _ in range(7):
        machine = machine.with_gpu("rtx4090")
    said = verdict(machine, "dev.nofile")
    assert said.reason == "only 1024 files may be open; 2048 are wanted for the GPUs here"
    assert said.fix[0].lines == ("ulimit -n 2048",)
    assert verdict(machine, "dev.nofile", limits={"dev.nofile": {"per_further_gpu": 0}}).status == "PASS"


@pytest.mark.proves("dev.nofile", "WARN", on="tree")
def test_a_hard_limit_is_raised_elsewhere() -> None:
    machine = ONE.with_file("/proc/self/limits", limits(256, hard=256))
    assert verdict(machine, "dev.nofile").fix[0].lines == ("* - nofile 1024",)
    fix = verdict(machine.with_file("/.dockerenv", ""), "dev.nofile").fix
    assert fix[0].lines == ("docker run --ulimit nofile=1024 …",)


@pytest.mark.proves("dev.memlock", "WARN", on="tree")
def test_rdma_counts_locked_memory() -> None:
    machine = ONE.with_file("/proc/self/limits", limits()).with_file("/sys/class/infiniband/mlx5_0/node_type", "1: CA")
    said = verdict(machine, "dev.memlock")
    assert "the RDMA adapter mlx5_0 counts every buffer against it" in said.reason
    assert said.fix[0].lines == ("* - memlock unlimited",)


@pytest.mark.parametrize("text", ["", "Max open files", limits("many", "-1"), "\0" * 64, "Max open files 1 2 files"])
def test_garbage_is_unknown(text: str) -> None:
    machine = ONE.with_file("/proc/self/limits", text)
    assert verdict(machine, "dev.memlock").status == "UNKNOWN"
    if "Max open files 1 2" not in text:
        assert verdict(machine, "dev.nofile").status == "UNKNOWN"


@given(st.text(max_size=200))
@settings(max_examples=80)
def test_a_limit_is_read_or_is_none(text: str) -> None:
    found = limit_of(text, "Max open files")
    assert found is None or "Max open files" in text


KMSG = Node(kind="chardev", mode=0o644, major=1, minor=11)
JOURNAL = "/var/log/journal/4c4c45440047351080520b4c04f4d4d3"


@pytest.mark.proves("dev.kmsg", "PASS", on="tree")
def test_the_log_may_be_read() -> None:
    machine = ONE.with_node("/dev/kmsg", KMSG)
    assert verdict(machine.with_file("/proc/sys/kernel/dmesg_restrict", "0\n"), "dev.kmsg").status == "PASS"
    # Ubuntu restricts it; root has CAP_SYSLOG (bit 34).
    machine = machine.with_file("/proc/sys/kernel/dmesg_restrict", "1\n")
    root = machine.with_file("/proc/self/status", "CapEff:\t000001ffffffffff\n")
    assert verdict(root, "dev.kmsg").reason == "/dev/kmsg may be read"
    journal = machine.with_node(f"{JOURNAL}/system.journal", Node(kind="file", mode=0o640, gid=4))
    member = journal.with_identity(Identity(uid=1000, gid=1000, groups=(4, 1000)))
    assert verdict(member, "dev.kmsg").reason == "the journal in /var/log/journal may be read"


@pytest.mark.proves("dev.kmsg", "WARN", on="tree")
@pytest.mark.parametrize(("major", "minor"), [(1, 3), (136, 0)], ids=["null", "console"])
def test_what_a_container_runtime_puts_in_the_logs_place(major: int, minor: int) -> None:
    """kind links /dev/kmsg to /dev/null or a console (kubernetes-sigs/kind entrypoint, fix_kmsg)."""
    stand_in = Node(kind="chardev", mode=0o666, uid=0, gid=0, major=major, minor=minor)
    said = verdict(ONE.with_node("/dev/kmsg", stand_in), "dev.kmsg")
    assert said.reason == "what stands at /dev/kmsg is not the kernel's log, so whoever reads it sees an empty one"
    assert said.evidence[0].found == f"character device {major}:{minor}"


@pytest.mark.proves("dev.kmsg", "UNKNOWN", on="tree")
def test_a_user_who_may_read_no_log() -> None:
    machine = ONE.with_node("/dev/kmsg", KMSG).with_file("/proc/sys/kernel/dmesg_restrict", "1\n")
    machine = machine.with_node(f"{JOURNAL}/system.journal", Node(kind="file", mode=0o640, gid=4))
    said = verdict(machine, "dev.kmsg")
    assert [(each.source, each.found) for each in said.evidence] == [
        ("/dev/kmsg", "mode allows it, without CAP_SYSLOG and with dmesg_restrict 1"),
        ("/var/log/journal", "Permission denied"),
        ("/run/log/journal", "no journal"),
    ]


@pytest.mark.proves("dev.kmsg", "UNKNOWN", on="tree")
def test_in_a_container_the_log_is_the_hosts() -> None:
    said = verdict(ONE.with_file("/.dockerenv", ""), "dev.kmsg")
    assert said.status == "UNKNOWN"

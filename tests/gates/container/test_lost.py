"""A container that lost its GPUs while it ran."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given, settings, strategies as st

from pytest_gpucoexist.gates.container.lost import device_rules, permits
from pytest_gpucoexist.host.base import HelperReply, Node
from pytest_gpucoexist.testing.builder import a_machine
from tests.gates.device_node.machines import answering, opening
from tests.gates.judging import judged, verdict

POD = (
    a_machine()
    .with_gpu("rtx4090")
    .with_gpu("rtx4090")
    .with_file("/.dockerenv", "")
    .with_environ(HOME="/root", NVIDIA_VISIBLE_DEVICES="all")
)
RULES = "/sys/fs/cgroup/devices/devices.list"
# devices.list of a container of runc before and after systemctl daemon-reload (NVIDIA/nvidia-container-toolkit#251).
BEFORE = "c 1:5 rwm\nc 1:3 rwm\nc *:* m\nb *:* m\nc 136:* rwm\nc 195:255 rw\nc 195:254 rw\nc 195:0 rw\nc 511:0 rw\n"
AFTER = "c 1:5 rwm\nc 1:3 rwm\nc *:* m\nb *:* m\nc 136:* rwm\nc 195:* m\n"


@pytest.mark.proves("ctr.nv.cgroup_lost", "PASS", on="tree")
def test_a_container_that_kept_them() -> None:
    host = answering(POD.with_file(RULES, BEFORE), programs=(opening("/dev/nvidiactl"),))
    said = verdict(host, "ctr.nv.cgroup_lost")
    assert said.reason == "the container has the NVIDIA devices that it was given"
    assert [each.found for each in said.evidence[1:]] == ["c 195:255 rw; c 195:254 rw; c 195:0 rw", "opens"]


@pytest.mark.proves("ctr.nv.cgroup_lost", "FAIL", on="tree")
def test_daemon_reload_took_the_rules_away() -> None:
    judgement = judged(POD.with_file(RULES, AFTER), "ctr.nv.cgroup_lost", level="quick")
    (said,) = judgement.verdicts
    assert said.reason.endswith("although its mode allows it: the container has lost its GPUs")
    assert said.fix[0].lines == ("docker restart CONTAINER",)
    assert len(judgement.unfit) == 2


@pytest.mark.proves("ctr.nv.cgroup_lost", "FAIL", on="tree")
def test_access_says_so_too() -> None:
    # access(2) asks the device cgroup as well (fs/namei.c, inode_permission): EACCES though the mode is 0666. Such a
    # GPU is not granted any more, and still it is this container that lost it.
    nodes = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia-uvm")
    host = answering(POD, refused=dict.fromkeys(nodes, errno.EACCES))
    judgement = judged(host, "ctr.nv.cgroup_lost", level="quick")
    assert "the device cgroup refuses /dev/nvidiactl" in judgement.verdicts[0].reason
    assert judgement.fit is False


@pytest.mark.proves("ctr.nv.cgroup_lost", "FAIL", on="tree")
def test_opening_gives_eperm() -> None:
    host = answering(POD, programs=(opening("/dev/nvidiactl", "Operation not permitted"),))
    assert "opening /dev/nvidiactl gives EPERM" in verdict(host, "ctr.nv.cgroup_lost").reason
    assert verdict(host, "ctr.nv.cgroup_lost", level="quick").status == "PASS"


@pytest.mark.proves("ctr.nv.cgroup_lost", "FAIL", on="tree")
def test_nvml_gives_unknown_error() -> None:
    reply = HelperReply(status="broken", detail="NVML: Unknown Error")
    said = verdict(POD.with_reply("nvml", reply), "ctr.nv.cgroup_lost")
    assert said.reason.startswith("NVML gives 'Unknown Error'")


@pytest.mark.proves("ctr.nv.cgroup_lost", "WARN", on="tree")
def test_a_mounted_dev_gave_nothing() -> None:
    # docker run -v /dev:/dev: all nodes are there, none was given.
    machine = a_machine().with_gpu("rtx4090").with_file("/.dockerenv", "").with_environ(HOME="/root")
    said = verdict(answering(machine, refused={"/dev/nvidiactl": errno.EACCES}), "ctr.nv.cgroup_lost")
    assert said.reason.endswith("nothing says that devices were given to this container")


def test_where_it_does_not_apply() -> None:
    assert verdict(a_machine().with_gpu("rtx4090"), "ctr.nv.cgroup_lost").reason == "not in a container"
    none = POD.without("/dev/nvidiactl")
    assert verdict(none, "ctr.nv.cgroup_lost").status == "SKIP"
    denied = answering(
        POD.with_node("/dev/nvidiactl", a_node(0o600)), programs=(opening("/dev/nvidiactl", "Permission denied"),)
    )
    assert verdict(denied, "ctr.nv.cgroup_lost").status == "SKIP"


def a_node(mode: int) -> Node:
    return Node(kind="chardev", mode=mode, major=195, minor=255)


@given(st.text(alphabet="abc *:0195rwm\n", max_size=80) | st.text(max_size=40))
@settings(max_examples=100)
def test_rules_are_read_or_are_none(text: str) -> None:
    rules = device_rules(text)
    if rules is not None:
        assert all(line.strip()[:1] in "abc" for line in text.splitlines())
        permits(rules, 195, 255)


@pytest.mark.parametrize("text", ["garbage\n", "c 195:255\n", "", "c 99999999999:1 rw\n", "\0"])
def test_rules_that_make_no_sense_accuse_nobody(text: str) -> None:
    assert verdict(POD.with_file(RULES, text), "ctr.nv.cgroup_lost", level="quick").status == "PASS"


@pytest.mark.proves("ctr.nv.dev_char", "PASS", on="tree")
@pytest.mark.proves("ctr.nv.dev_char", "WARN", on="tree")
def test_a_host_whose_containers_would_lose_them() -> None:
    host = a_machine().with_gpu("rtx4090").with_file("/etc/nvidia-container-runtime/config.toml", "")
    said = verdict(host, "ctr.nv.dev_char")
    assert "lose their GPUs at systemctl daemon-reload" in said.reason
    assert said.fix[0].lines == ("sudo nvidia-ctk system create-dev-char-symlinks --create-all",)
    assert verdict(host.with_link("/dev/char/195:255", "../nvidiactl"), "ctr.nv.dev_char").status == "PASS"
    assert verdict(POD, "ctr.nv.dev_char").status == "SKIP"
    assert verdict(a_machine().with_gpu("rtx4090"), "ctr.nv.dev_char").status == "SKIP"

"""NVIDIA's nodes: what DCGM checks before it starts, and what a node that is missing or stale does to CUDA."""

from __future__ import annotations

import pytest

from pytest_gpucoexist.host.base import Identity, Node
from pytest_gpucoexist.testing.builder import a_machine
from tests.gates.device_node.machines import NVIDIA
from tests.gates.judging import judged, verdict, verdicts

ONE = a_machine().with_gpu("rtx4090").with_environ(HOME="/home/u")
TWO = ONE.with_gpu("rtx4090")
MODPROBE = Node(kind="file", mode=0o4755, uid=0)
# /proc/devices of a machine with driver 570 (fs/proc/devices.c prints "%3d %s").
DEVICES = "Character devices:\n  1 mem\n195 nvidia\n226 drm\n511 nvidia-uvm\n\nBlock devices:\n259 blkext\n"


@pytest.mark.proves("dev.nv.ctl", "PASS", on="tree")
@pytest.mark.proves("dev.nv.minor", "PASS", on="tree")
@pytest.mark.proves("dev.nv.uvm", "PASS", on="tree")
def test_all_nodes_open() -> None:
    said = judged(TWO.with_file("/proc/devices", DEVICES), "dev.nv.*", **NVIDIA).verdicts
    assert {verdict.reason for verdict in said} == {
        *("/dev/nvidiactl may be opened", "/dev/nvidia-uvm may be opened"),
        *("/dev/nvidia0 may be opened", "/dev/nvidia1 may be opened"),
    }
    assert "mode 0666, uid 0, gid 0, device 195:255" in said[0].evidence[0].found


@pytest.mark.proves("dev.nv.ctl", "FAIL", on="tree")
def test_a_missing_control_node_takes_all_gpus_out() -> None:
    judgement = judged(TWO.without("/dev/nvidiactl"), "dev.nv.ctl", **NVIDIA)
    (said,) = judgement.verdicts
    assert (said.reason, said.blocks) == ("no /dev/nvidiactl", True)
    assert said.fix[0].lines == ("sudo nvidia-modprobe -c=0",)
    assert judgement.fit is False
    assert len(judgement.unfit) == 2


@pytest.mark.proves("dev.nv.ctl", "WARN", on="tree")
def test_a_node_that_cuda_will_make_by_itself() -> None:
    # nvidia-modprobe(1): user-space components fork and exec it when needed; nvidia-installer makes it setuid root.
    machine = ONE.without("/dev/nvidiactl").with_node("/usr/bin/nvidia-modprobe", MODPROBE)
    said = verdict(machine, "dev.nv.ctl", **NVIDIA)
    assert "CUDA makes it at first use through /usr/bin/nvidia-modprobe" in said.reason
    assert not said.blocks


@pytest.mark.proves("dev.nv.ctl", "WARN", on="tree")
def test_nobody_misses_what_nobody_installed() -> None:
    said = verdict(ONE.without("/dev/nvidiactl"), "dev.nv.ctl")
    assert "nothing here says that NVIDIA GPUs are expected to work" in said.reason


@pytest.mark.proves("dev.nv.minor", "FAIL", on="tree")
def test_one_gpu_whose_node_is_closed() -> None:
    # NVreg_DeviceFileMode=0660 with a group of its own (NVIDIA's README, chapter on device files).
    closed = Node(kind="chardev", mode=0o660, gid=998, major=195, minor=1)
    judgement = judged(TWO.with_node("/dev/nvidia1", closed), "dev.nv.minor", **NVIDIA)
    failed = [said for said in judgement.verdicts if said.status == "FAIL"]
    assert [said.reason for said in failed] == ["user not in group with gid 998, which /dev/nvidia1 belongs to"]
    assert failed[0].fix[0].lines == ("sudo groupadd -g 998 gpu998", "sudo usermod -aG gpu998 $USER")
    assert list(judgement.unfit) == ["0000:02:00.0"]


@pytest.mark.proves("dev.nv.minor", "FAIL", on="tree")
def test_a_node_that_only_root_may_open() -> None:
    closed = Node(kind="chardev", mode=0o600, major=195, minor=0)
    said = verdict(ONE.with_node("/dev/nvidia0", closed), "dev.nv.minor", **NVIDIA)
    assert said.reason == "/dev/nvidia0 has mode 0600 and owner uid 0; this process is uid 1000"
    assert said.fix[0].path == "/etc/modprobe.d/nvidia-nodes.conf"
    assert said.fix[0].lines == ("options nvidia NVreg_ModifyDeviceFiles=1 NVreg_DeviceFileMode=0666",)


@pytest.mark.proves("dev.nv.minor", "FAIL", on="tree")
def test_a_node_with_the_number_of_another_gpu() -> None:
    other = Node(kind="chardev", mode=0o666, major=195, minor=1)
    said = verdict(ONE.with_node("/dev/nvidia0", other), "dev.nv.minor", **NVIDIA)
    assert said.reason == "/dev/nvidia0 is device 195:1, and the driver answers at 195:0"


@pytest.mark.proves("dev.nv.uvm", "FAIL", on="tree")
def test_the_uvm_node_of_an_earlier_load_of_the_module() -> None:
    stale = Node(kind="chardev", mode=0o666, major=237, minor=0)
    said = verdict(ONE.with_file("/proc/devices", DEVICES).with_node("/dev/nvidia-uvm", stale), "dev.nv.uvm", **NVIDIA)
    assert said.reason == "/dev/nvidia-uvm is device 237:0, and the driver answers at 511:0"
    assert not said.blocks


@pytest.mark.proves("dev.nv.uvm", "FAIL", on="tree")
def test_cuinit_gives_999_without_the_uvm_node() -> None:
    said = verdict(ONE.without("/dev/nvidia-uvm"), "dev.nv.uvm", **NVIDIA)
    assert said.reason == "no /dev/nvidia-uvm"
    assert said.fix[0].lines == ("sudo nvidia-modprobe -u -c=0",)


@pytest.mark.proves("dev.nv.uvm", "PASS", on="tree")
def test_a_module_that_is_loaded_at_first_use() -> None:
    machine = ONE.without("/dev/nvidia-uvm").without("/sys/module/nvidia_uvm")
    said = verdict(machine.with_node("/usr/bin/nvidia-modprobe", MODPROBE), "dev.nv.uvm", **NVIDIA)
    assert "CUDA loads it at first use" in said.reason


def test_a_file_in_the_place_of_a_node() -> None:
    # `docker run -v /dev/nvidia0:/dev/nvidia0` without the host's node makes a folder or a file.
    machine = ONE.with_node("/dev/nvidia0", Node(kind="file", mode=0o644))
    me = Identity(uid=0, gid=0, groups=(0,))
    said = verdict(machine.with_identity(me), "dev.nv.minor", **NVIDIA)
    assert (said.status, said.reason) == ("FAIL", "/dev/nvidia0 is no device node but a file")


@pytest.mark.parametrize(
    "text", ["", "garbage", "Device Minor: \t many", "Device Minor: \t 99999999999999999999", "\0" * 99]
)
def test_garbage_in_proc_is_unknown(text: str) -> None:
    path = "/proc/driver/nvidia/gpus/0000:01:00.0/information"
    said = verdict(ONE.with_file(path, text), "dev.nv.minor", **NVIDIA)
    assert (said.status, said.reason) == ("UNKNOWN", "the driver does not say which node is this GPU's")


def test_a_sleeping_gpu_is_left_asleep() -> None:
    said = verdict(ONE.sleep("nvidia0"), "dev.nv.minor", **NVIDIA)
    assert (said.status, said.reason) == ("SKIP", "asleep; a quick gate does not wake it")


def test_another_driver_has_no_such_nodes() -> None:
    machine = a_machine().with_gpu("rtx4090", driver="nouveau")
    for gate in ("dev.nv.ctl", "dev.nv.minor", "dev.nv.uvm"):
        (said,) = verdicts(machine, gate, **NVIDIA)
        assert (said.status, said.reason) == ("SKIP", "the nvidia driver is bound to no GPU here")

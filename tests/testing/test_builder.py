"""Machines made in code: discovery finds what was built, broken as it was broken."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.host import open_recording
from pytest_gpucoexist.host.base import HelperReply, Host, Node
from pytest_gpucoexist.probes import discover
from pytest_gpucoexist.testing import CATALOGUE, MachineBuilder, a_machine, demo_machine
from pytest_gpucoexist.testing.kfdtree import gfx_target_version
from pytest_gpucoexist.testing.vendor_replies import MigInstance

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucoexist.model.machine import Gpu, Machine

BOTH = ("nvidia", "amd")


def seen(machine: MachineBuilder) -> Machine:
    return discover(machine.host(), ask=BOTH)


def gpu_of(machine: MachineBuilder, wanted: str) -> Gpu:
    gpu = seen(machine).gpu(wanted)
    assert gpu is not None
    return gpu


@pytest.fixture
def pair() -> MachineBuilder:
    return a_machine().with_gpu("rtx4090").with_gpu("rx7900xtx")


def test_without_a_gpu_there_is_none() -> None:
    machine = seen(a_machine("empty"))
    assert (machine.name, machine.gpus, len(machine.numa_nodes), machine.conflicts) == ("empty", (), 1, ())


@pytest.mark.parametrize("model", sorted(CATALOGUE))
def test_every_model_of_the_catalogue(model: str) -> None:
    expected = CATALOGUE[model]
    (gpu,) = seen(a_machine().with_gpu(model)).gpus
    assert (gpu.vendor_id, gpu.device_id, gpu.class_id) == (expected.vendor_id, expected.device_id, expected.class_id)
    assert gpu.subsystem_id == expected.subsystem_id
    assert gpu.driver == expected.driver
    kind = {"slot": "discrete", "processor": "integrated", "bmc": "bmc"}[expected.place]
    assert gpu.kind == kind
    if expected.arch is not None:
        assert gpu.arch == expected.arch
        assert gpu.memory_total_bytes == expected.memory_bytes
    if expected.place == "slot":
        assert (gpu.link.current_speed_gtps, gpu.link.current_width) == (expected.speed_gtps, expected.width)
    assert gpu.usable.cuda is (gpu.vendor == "nvidia")
    assert gpu.usable.rocm is (gpu.vendor == "amd")


def test_builders_do_not_change() -> None:
    one = a_machine()
    two = one.with_gpu("mi210")
    assert len(seen(one).gpus) == 0
    assert len(seen(two).gpus) == 1


def test_an_address_of_ones_own() -> None:
    machine = (
        a_machine()
        .with_gpu("h100", address="0000:41:00.0")
        .with_gpu("rx7900xtx", address="0000:01:00.0")
        .with_gpu("rtx4090")
        .with_gpu("radeon-780m", address="0000:64:00.0")
        .with_gpu("a100", address="10000:e1:00.0")
    )
    gpus = seen(machine).gpus
    assert [gpu.pci_address for gpu in gpus] == [
        "0000:01:00.0",
        "0000:04:00.0",
        "0000:41:00.0",
        "0000:64:00.0",
        "10000:e1:00.0",
    ]
    assert [gpu.upstream for gpu in gpus if gpu.pci_address == "10000:e1:00.0"] == [("10000:00:04.1",)]


def test_a_switch_on_the_second_node() -> None:
    machine = (
        a_machine()
        .with_numa_nodes(2, cpus=4, distance=32)
        .with_switch("left", numa_node=1)
        .with_gpu("mi210", under="left")
        .with_gpu("rtx4090", under="left", numa_node=0)
    )
    amd, nvidia = (gpu_of(machine, each) for each in ("amd0", "nvidia0"))
    assert (amd.numa_node, nvidia.numa_node) == (1, 1)
    assert amd.local_cpulist == nvidia.local_cpulist == "4-7"
    assert amd.upstream is not None
    assert nvidia.upstream is not None
    assert amd.upstream[:2] == nvidia.upstream[:2]


def test_four_nodes_and_many_cpus() -> None:
    machine = a_machine().with_numa_nodes(4, cpus=24).with_gpu("h100", numa_node=3)
    assert gpu_of(machine, "nvidia0").local_cpulist == "72-95"
    assert [node.cpulist for node in seen(machine).numa_nodes] == ["0-23", "24-47", "48-71", "72-95"]


def test_details_of_a_gpu() -> None:
    machine = a_machine().with_gpu(
        "rtx4090",
        memory_bytes=8 * 2**30,
        memory_used_bytes=2**30,
        arch="7.5",
        name="Tesla T4",
        device_id="0x1eb8",
        class_id="0x030200",
        uuid="GPU-11111111-2222-3333-4444-555555555555",
        link=(8.0, 8),
    )
    gpu = gpu_of(machine, "nvidia0")
    assert (gpu.memory_total_bytes, gpu.memory_free_bytes) == (8 * 2**30, 7 * 2**30)
    assert (gpu.arch, gpu.name, gpu.device_id, gpu.class_id) == ("7.5", "Tesla T4", "0x1eb8", "0x030200")
    assert gpu.uuid == "GPU-11111111-2222-3333-4444-555555555555"
    assert (gpu.link.current_speed_gtps, gpu.link.current_width, gpu.link.max_width) == (8.0, 8, 16)
    amd = a_machine().with_gpu("mi210", uuid="GPU-00000000000000ab")
    assert gpu_of(amd, "amd0").uuid == "GPU-00000000000000ab"


def test_a_model_of_ones_own() -> None:
    model = replace(CATALOGUE["rx7900xtx"], device_id="0x7550", arch="gfx1201", bridges=(), name="RX 9070 XT")
    gpu = gpu_of(a_machine().with_gpu(model), "amd0")
    assert (gpu.device_id, gpu.arch, gpu.name) == ("0x7550", "gfx1201", "RX 9070 XT")


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: a_machine().with_gpu("voodoo2"), "no GPU model 'voodoo2'; there are: a100, arc-b580"),
        (lambda: a_machine().with_gpu(under="none").host(), "no switch named 'none'; there are: none"),
        (lambda: a_machine().with_gpu(numa_node=1).host(), "NUMA node 1 of NVIDIA GeForce RTX 4090: there are 1 nodes"),
        (lambda: a_machine().with_gpu(address="41:00.0").host(), "not a PCI address as sysfs writes it: '41:00.0'"),
        (lambda: a_machine().with_gpu().lose("amd0"), r"no GPU 'amd0'; there are: nvidia0 \(0000:01:00.0\)"),
        (lambda: a_machine().lose("amd0"), "no GPU 'amd0'; there are: none"),
        (lambda: a_machine().with_gpu("mi210", arch="9.0").host(), "not a gfx target: '9.0'"),
        (
            lambda: a_machine().with_gpu(address="0000:41:00.0").with_gpu(address="0000:41:00.0").host(),
            "two functions at 0000:41:00.0",
        ),
    ],
)
def test_what_cannot_be_built_says_why(build: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        build()  # type: ignore[operator]


def test_buses_end() -> None:
    machine = a_machine()
    for _ in range(86):
        machine = machine.with_gpu("rx7900xtx")
    with pytest.raises(ValueError, match="no PCI bus is left on NUMA node 0"):
        machine.host()


class TestBroken:
    def test_without_permission(self, pair: MachineBuilder) -> None:
        machine = seen(pair.without_permission("amd0"))
        amd, nvidia = machine.gpu("amd0"), machine.gpu("nvidia0")
        assert amd is not None
        assert nvidia is not None
        assert not amd.usable.rocm
        assert amd.facts["usable.rocm"].status == "denied"
        assert "/dev/dri/renderD129" in (amd.facts["usable.rocm"].detail or "")
        assert nvidia.usable.cuda
        assert not gpu_of(pair.without_permission("nvidia0"), "nvidia0").usable.cuda

    def test_without_a_group(self, pair: MachineBuilder) -> None:
        gpu = gpu_of(pair.without_group("render"), "amd0")
        assert not gpu.usable.rocm
        assert "user not in group render (gid 105)" in (gpu.facts["usable.rocm"].detail or "")

    def test_without_nodes_is_not_granted(self, pair: MachineBuilder) -> None:
        machine = (
            pair.with_gpu("rtx4090").with_environ(container="docker").without_nodes("nvidia1").without_nodes("amd0")
        )
        found = seen(machine)
        assert [(gpu.id, gpu.granted) for gpu in found.gpus] == [("nvidia0", True), ("amd0", False), ("nvidia1", False)]
        host = machine.host()
        assert "kfd" not in host.list_dir("/dev")
        with pytest.raises(PermissionError):
            host.read_text("/sys/class/kfd/kfd/topology/nodes/1/properties")

    @pytest.mark.parametrize("driver", ["nouveau", "vfio-pci", None])
    def test_with_the_wrong_driver(self, pair: MachineBuilder, driver: str | None) -> None:
        gpu = gpu_of(pair.with_wrong_driver("nvidia0", driver), "nvidia0")
        assert gpu.driver == driver
        assert not gpu.usable.cuda
        assert (driver or "no driver") in (gpu.facts["usable.cuda"].detail or "")

    @pytest.mark.parametrize("wanted", ["nvidia0", "amd0"])
    def test_lost(self, pair: MachineBuilder, wanted: str) -> None:
        broken = pair.lose(wanted)
        gpu = gpu_of(broken, wanted)
        assert gpu.vendor_id in {"0x10de", "0x1002"}
        assert not gpu.usable.cuda
        assert not gpu.usable.rocm
        folder = f"/sys/bus/pci/devices/{gpu.pci_address}"
        host = broken.host()
        assert host.read_bytes(f"{folder}/config") == b"\xff" * 256
        assert host.read_text(f"{folder}/current_link_speed") == "Unknown"
        assert host.read_text(f"{folder}/current_link_width") == "63"
        assert host.read_text(f"{folder}/vendor") == gpu.vendor_id
        if wanted == "amd0":
            with pytest.raises(OSError, match="No such device") as error:
                host.read_text(f"{folder}/mem_info_vram_total")
            assert error.value.errno == errno.ENODEV

    def test_the_link_trained_down(self, pair: MachineBuilder) -> None:
        gpu = gpu_of(pair.train_link_down("nvidia0", 2.5, 4), "nvidia0")
        assert (gpu.link.current_speed_gtps, gpu.link.current_width) == (2.5, 4)
        assert (gpu.link.max_speed_gtps, gpu.link.max_width) == (16.0, 16)
        assert gpu.upstream_links[-1].link == gpu.link

    def test_asleep(self, pair: MachineBuilder) -> None:
        gpu = gpu_of(pair.sleep("nvidia0"), "nvidia0")
        assert gpu.runtime_status == "suspended"

    def test_a_library_that_hangs(self, pair: MachineBuilder) -> None:
        machine = seen(pair.hang("nvml", left_behind=4711))
        gpu = machine.gpu("nvidia0")
        assert gpu is not None
        assert gpu.memory_total_bytes is None
        assert gpu.facts["memory_total_bytes"].status == "broken"
        assert "4711" in (gpu.facts["memory_total_bytes"].detail or "")
        assert gpu.link.current_width == 16

    def test_no_permission_at_all(self) -> None:
        machine = a_machine().with_gpu("rtx4090").without_permission("nvidia0")
        assert machine.host().ask("nvml").status == "denied"
        assert machine.host().ask("amdsmi").status == "unsupported"
        assert a_machine().host().ask("nvml").status == "absent"


class TestAmended:
    def test_environment_files_links_nodes_and_errors(self, pair: MachineBuilder) -> None:
        host: Host = (
            pair.with_environ({"CUDA_VISIBLE_DEVICES": "0"}, HIP_VISIBLE_DEVICES="1")
            .with_file("/etc/x", "text")
            .with_file("/sys/module/nvidia/version", b"1.2\n")
            .with_link("/etc/y", "x")
            .with_node("/dev/dxg", Node(kind="chardev", mode=0o666))
            .with_error("/etc/x", errno.EIO)
            .without("/proc/driver")
            .host()
        )
        assert dict(host.environ) == {"CUDA_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "1"}
        assert host.read_text("/sys/module/nvidia/version") == "1.2"
        assert host.resolve("/etc/y") == "/etc/x"
        assert host.stat("/dev/dxg").kind == "chardev"
        assert not host.exists("/proc/driver")
        with pytest.raises(OSError, match="Input/output error"):
            host.read_text("/etc/y")

    def test_distributions(self) -> None:
        machine = (
            a_machine()
            .with_gpu("mi210")
            .with_distribution("torch", "2.7.0+rocm6.3")
            .with_distribution("nvidia-ml-py", "12.575.51")
            .with_distribution("my-tool", "1.0", files={"my_tool/data.txt": "x"})
        )
        host = machine.host()
        (site,) = host.python_path
        assert "hip: Optional[str] = '6.3'" in host.read_text(f"{site}/torch/version.py")
        assert host.exists(f"{site}/pynvml/__init__.py")
        assert host.read_text(f"{site}/my_tool/data.txt") == "x"
        assert "my_tool/data.txt,," in host.read_text(f"{site}/my_tool-1.0.dist-info/RECORD")
        torch = next(each for each in seen(machine).runtimes if each.name == "torch")
        assert (torch.version, torch.vendors) == ("2.7.0+rocm6.3", ("amd",))
        cuda = seen(a_machine().with_distribution("torch", "2.6.0+cu124"))
        assert next(each.vendors for each in cuda.runtimes if each.name == "torch") == ("nvidia",)
        cpu = seen(a_machine().with_distribution("torch", "2.6.0+cpu"))
        assert next(each.vendors for each in cpu.runtimes if each.name == "torch") == ()

    def test_another_driver_release(self, pair: MachineBuilder) -> None:
        assert gpu_of(pair.with_nvidia_driver("535.261.03"), "nvidia0").driver_version == "535.261.03"

    def test_a_reply_of_ones_own(self, pair: MachineBuilder) -> None:
        reply = HelperReply(status="broken", detail="mine")
        assert pair.with_reply("amdsmi", reply).host().ask("amdsmi") == reply

    def test_mig_instances(self) -> None:
        instance = MigInstance(uuid="MIG-a", name="NVIDIA H100 PCIe MIG 1g.10gb", gi=7, memory_total_bytes=10 * 2**30)
        machine = seen(a_machine().with_gpu("h100").with_mig("nvidia0", instance))
        assert [gpu.partition for gpu in machine.gpus if gpu.partition] != []
        assert any(gpu.uuid == "MIG-a" for gpu in machine.gpus)

    def test_processes(self, pair: MachineBuilder) -> None:
        machine = seen(pair.with_process("nvidia0", 4711, 2**20).with_process("amd0", 4712))
        for wanted, pid in (("nvidia0", 4711), ("amd0", 4712)):
            gpu = machine.gpu(wanted)
            assert gpu is not None
            assert [(each.pid, each.visible) for each in gpu.processes or ()] == [(pid, False)]

    def test_boot_vga(self) -> None:
        assert gpu_of(a_machine().with_gpu("rtx4090", boot_vga=True), "nvidia0").boot_vga is True

    def test_written_machines_replay_with_everything(self, pair: MachineBuilder, tmp_path: Path) -> None:
        broken = pair.lose("nvidia0").without_permission("amd0").hang("nvml").with_environ(ROCR_VISIBLE_DEVICES="0")
        expected = seen(broken).to_json()
        for path in (broken.write_tree(str(tmp_path / "m")), broken.write_archive(str(tmp_path / "m.tar.gz"))):
            assert discover(open_recording(path), ask=BOTH).to_json() == expected


@pytest.mark.parametrize(
    ("arch", "number"), [("gfx90a", 90010), ("gfx1103", 110003), ("gfx942", 90402), ("gfx803", 80003)]
)
def test_gfx_targets(arch: str, number: int) -> None:
    assert gfx_target_version(arch) == number


def test_the_demo_can_be_broken_like_any_other() -> None:
    machine = seen(demo_machine().with_wrong_driver("nvidia1", "nouveau"))
    assert [gpu.usable.cuda for gpu in machine.gpus] == [True, False, False, False, False]

"""What was passed into a container, and what was forgotten."""

from __future__ import annotations

import pytest

from pytest_gpucoexist.host.base import Identity, Node
from pytest_gpucoexist.testing.builder import MachineBuilder, a_machine
from tests.gates.device_node.machines import AMD, NVIDIA
from tests.gates.judging import judged, verdict, verdicts

BOTH = a_machine().with_gpu("rtx4090").with_gpu("mi210").with_environ(HOME="/root").with_file("/.dockerenv", "")
NVIDIA_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")


def without_nvidia(machine: MachineBuilder = BOTH) -> MachineBuilder:
    """`docker run --device /dev/kfd --device /dev/dri`: nothing of NVIDIA."""
    for path in NVIDIA_NODES:
        machine = machine.without(path)
    return machine.without_nodes("nvidia0")


@pytest.mark.proves("ctr.nodes", "PASS", on="tree")
@pytest.mark.proves("ctr.visible_env", "PASS", on="tree")
@pytest.mark.proves("ctr.amd.group", "PASS", on="tree")
def test_both_vendors_were_passed_in() -> None:
    said = judged(BOTH, "ctr.nodes", "ctr.visible_env", "ctr.amd.group").verdicts
    assert {verdict.status for verdict in said} == {"PASS"}


@pytest.mark.proves("ctr.nodes", "FAIL", on="tree")
@pytest.mark.proves("ctr.visible_env", "FAIL", on="tree")
def test_gpus_of_docker_are_nvidias_alone_and_were_forgotten() -> None:
    nodes, _amd = verdicts(without_nvidia(), "ctr.nodes", **NVIDIA)
    assert nodes.reason == "no NVIDIA GPU is passed into this container, although cuda:1 is promised; the host has 1"
    assert nodes.fix[0].lines[0] == "docker run --gpus all …"
    env = verdict(without_nvidia(), "ctr.visible_env", **NVIDIA)
    assert env.reason.endswith("NVIDIA_VISIBLE_DEVICES is not set")
    assert not env.blocks


@pytest.mark.proves("ctr.nodes", "WARN", on="tree")
def test_a_suite_that_has_cuda_tests_is_no_promise() -> None:
    needed = frozenset({"nvidia"})
    nodes, _amd = verdicts(without_nvidia(), "ctr.nodes", needed=needed)
    assert nodes.reason.endswith("although selected tests need it; the host has 1")
    assert verdict(without_nvidia(), "ctr.visible_env", needed=needed).status == "SKIP"
    elsewhere = a_machine().with_file("/.dockerenv", "").with_environ(HOME="/root")
    assert verdict(elsewhere, "ctr.nodes", needed=needed).status == "SKIP"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("none", "NVIDIA_VISIBLE_DEVICES=none injects the driver without devices"),
        ("void", "NVIDIA_VISIBLE_DEVICES=void injects nothing, and CDI has not either"),
        ("all", "NVIDIA_VISIBLE_DEVICES=all was set, and this container's runtime is not NVIDIA's"),
        ("", "NVIDIA_VISIBLE_DEVICES is empty"),
    ],
)
@pytest.mark.proves("ctr.visible_env", "FAIL", on="tree")
def test_why_nothing_was_injected(value: str, why: str) -> None:
    machine = without_nvidia().with_environ(NVIDIA_VISIBLE_DEVICES=value)
    assert verdict(machine, "ctr.visible_env", **NVIDIA).reason.endswith(why)
    assert verdict(machine, "ctr.visible_env").status == "SKIP"


@pytest.mark.proves("ctr.visible_env", "PASS", on="tree")
def test_void_is_normal_where_cdi_injected() -> None:
    said = verdict(BOTH.with_environ(NVIDIA_VISIBLE_DEVICES="void"), "ctr.visible_env", **NVIDIA)
    assert said.reason == "NVIDIA devices are in this container, injected by CDI"


@pytest.mark.proves("ctr.visible_env", "WARN", on="tree")
def test_capabilities_that_leave_out_nvml() -> None:
    environ = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,video"}
    said = verdict(BOTH.with_environ(environ), "ctr.visible_env")
    assert said.reason == "NVIDIA_DRIVER_CAPABILITIES=compute,video leaves out utility"
    environ["NVIDIA_DRIVER_CAPABILITIES"] = "all"
    assert verdict(BOTH.with_environ(environ), "ctr.visible_env").status == "PASS"


@pytest.mark.proves("ctr.nodes", "FAIL", on="tree")
def test_dri_without_kfd() -> None:
    # ROCm/rocminfo#116: /dev/dri was passed, /dev/kfd was not.
    _nvidia, said = verdicts(BOTH.without("/dev/kfd"), "ctr.nodes", **AMD)
    assert said.reason == "/dev/kfd is not in this container"
    assert said.fix[0].lines == ("docker run --device /dev/kfd --device /dev/dri …",)


@pytest.mark.proves("ctr.nodes", "WARN", on="tree")
def test_dri_alone_is_enough_for_graphics() -> None:
    said = {each.status for each in verdicts(BOTH.without("/dev/kfd"), "ctr.nodes")}
    assert said == {"PASS", "WARN"}


@pytest.mark.proves("ctr.nodes", "FAIL", on="tree")
def test_a_pod_asks_for_devices_by_resources() -> None:
    machine = without_nvidia(BOTH.without("/.dockerenv")).with_environ(KUBERNETES_SERVICE_HOST="10.96.0.1")
    said = verdicts(machine, "ctr.nodes", **NVIDIA)[0]
    assert "nvidia.com/gpu: 1" in said.action
    assert said.fix == ()


def test_a_host_and_an_empty_container_have_nothing_to_say() -> None:
    host = BOTH.without("/.dockerenv")
    for gate in ("ctr.nodes", "ctr.visible_env", "ctr.amd.group"):
        assert verdict(host, gate, **NVIDIA).reason == "not in a container"
    machine = without_nvidia().without_nodes("amd0").without("/dev/kfd")
    assert {each.status for each in judged(machine, "ctr.nodes", "ctr.visible_env").verdicts} == {"SKIP"}


@pytest.mark.proves("ctr.amd.group", "FAIL", on="tree")
def test_a_group_that_has_no_name_inside() -> None:
    # ROCm/k8s-device-plugin#39: "crw-rw---- 1 root 106 242, 0 /dev/kfd", and the process is nobody.
    machine = BOTH.with_identity(Identity(uid=65533, gid=65533, groups=(65533,)))
    for path, major, number in (("/dev/kfd", 242, 0), ("/dev/dri/renderD129", 226, 129)):
        machine = machine.with_node(path, Node(kind="chardev", mode=0o660, gid=106, major=major, minor=number))
    said = verdicts(machine, "ctr.amd.group", **AMD)
    assert [each.reason for each in said] == [
        "this process is not in group 106, which owns /dev/kfd",
        "this process is not in group 106, which owns /dev/dri/renderD129",
    ]
    assert said[0].fix[0].lines == ("docker run --group-add 106 …",)
    assert not said[0].blocks
    pod = machine.without("/.dockerenv").with_environ(KUBERNETES_SERVICE_HOST="10.96.0.1")
    assert verdicts(pod, "ctr.amd.group", **AMD)[0].action == "securityContext: supplementalGroups: [106]"


@pytest.mark.proves("ctr.amd.group", "WARN", on="tree")
def test_a_rootless_container_that_kept_no_groups() -> None:
    # podman-container-tools/podman#10166
    nobody = Node(kind="chardev", mode=0o660, uid=65534, gid=65534, major=510, minor=0)
    machine = BOTH.with_node("/dev/kfd", nobody).with_identity(Identity(uid=1000, gid=1000, groups=(1000, 105)))
    said = verdicts(machine, "ctr.amd.group")[0]
    assert said.fix[0].lines == ("podman run --group-add keep-groups …",)

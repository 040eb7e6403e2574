"""`/dev/kfd` and render nodes: the most frequent fault of all, a user who is not in the group."""

from __future__ import annotations

import pytest

from pytest_gpucoexist.host.base import Identity, Node
from pytest_gpucoexist.testing.builder import a_machine
from tests.gates.device_node.machines import AMD, INTEL
from tests.gates.judging import judged, verdict, verdicts

TWO = a_machine().with_gpu("rtx4090").with_gpu("mi210").with_gpu("rx7900xtx")
ARC = a_machine().with_gpu("arc-b580")
BY_PATH = "/dev/dri/by-path/pci-0000:04:00.0-render"


@pytest.mark.proves("dev.amd.kfd", "PASS", on="tree")
@pytest.mark.proves("dev.render", "PASS", on="tree")
def test_a_user_in_the_group() -> None:
    said = judged(TWO, "dev.amd.kfd", "dev.render", **AMD).verdicts
    assert [verdict.reason for verdict in said] == ["/dev/kfd may be opened", "the render node may be opened"]
    assert said[1].devices == ("0000:04:00.0", "0000:07:00.0")


@pytest.mark.proves("dev.amd.kfd", "FAIL", on="tree")
@pytest.mark.proves("dev.render", "FAIL", on="tree")
def test_a_user_who_is_in_no_group() -> None:
    # ROCm/rocminfo#34: "Unable to open /dev/kfd read-write: Permission denied; user is not member of "render" group".
    judgement = judged(TWO.without_group("render"), "dev.amd.kfd", "dev.render", **AMD)
    kfd, first, second = judgement.verdicts
    assert kfd.reason == "user not in group render (gid 105), which /dev/kfd belongs to"
    assert kfd.action == "add the user to group render, which owns /dev/kfd, and log in again"
    assert kfd.fix[0].lines == ("sudo usermod -aG render $USER",)
    assert "ROCm loses every AMD GPU when one render node is refused" in first.reason
    assert first.devices == second.devices == ("0000:04:00.0", "0000:07:00.0")
    assert list(judgement.unfit) == ["0000:04:00.0", "0000:07:00.0"]


@pytest.mark.proves("dev.amd.kfd", "FAIL", on="tree")
def test_the_group_is_the_one_that_owns_the_node() -> None:
    # Before render there was video, and some systems still have it (ROCm's installation guide names both).
    node = Node(kind="chardev", mode=0o660, gid=44, major=510, minor=0)
    said = verdict(TWO.with_node("/dev/kfd", node).without_group("video"), "dev.amd.kfd", **AMD)
    assert said.fix[0].lines == ("sudo usermod -aG video $USER",)


@pytest.mark.proves("dev.amd.kfd", "FAIL", on="tree")
def test_in_a_container_the_number_counts() -> None:
    # ROCm/k8s-device-plugin#39: gid 106 inside, with no name.
    node = Node(kind="chardev", mode=0o660, gid=106, major=242, minor=0)
    machine = TWO.with_node("/dev/kfd", node).with_file("/.dockerenv", "")
    said = verdict(machine, "dev.amd.kfd", **AMD)
    assert said.fix[0].lines == ("docker run --group-add 106 …",)
    said = verdict(machine.with_environ(KUBERNETES_SERVICE_HOST="10.0.0.1"), "dev.amd.kfd", **AMD)
    assert said.action == "run the pod with supplementalGroups: [106]"


@pytest.mark.proves("dev.amd.kfd", "WARN", on="tree")
def test_a_laptop_whose_owner_never_wanted_rocm() -> None:
    said = verdict(TWO.without_group("render"), "dev.amd.kfd")
    assert said.reason.endswith("nothing here says that AMD GPUs are expected to work")
    assert not said.blocks


def test_a_processors_own_gpu_beside_a_card_is_nobodys_business() -> None:
    machine = a_machine().with_gpu("radeon-780m").with_gpu("rtx4090").without_group("render")
    for gate in ("dev.amd.kfd", "dev.render"):
        said = verdict(machine, gate)
        assert (said.status, "user not in group render" in said.reason) == ("SKIP", True)
        assert verdict(machine, gate, **AMD).status == "FAIL"
    intel = a_machine().with_gpu("uhd770").with_file("/usr/lib/x86_64-linux-gnu/libze_loader.so.1", b"\x7fELF")
    assert verdict(intel.without_group("render"), "dev.render").status == "WARN"
    assert verdict(intel.without_group("render"), "dev.render", promised={"intel": 1}).status == "FAIL"


@pytest.mark.proves("dev.amd.kfd", "FAIL", on="tree")
def test_a_kernel_without_kfd() -> None:
    machine = TWO.without("/dev/kfd").without("/sys/class/kfd").without("/sys/devices/virtual/kfd")
    said = verdict(machine, "dev.amd.kfd", **AMD)
    assert said.reason == "no /dev/kfd, although rocm:1 is promised"
    assert "CONFIG_HSA_AMD" in said.action
    assert verdict(machine, "dev.amd.kfd").status == "SKIP"


@pytest.mark.proves("dev.render", "FAIL", on="tree")
def test_a_render_node_of_root_alone_gets_a_udev_rule() -> None:
    machine = a_machine().with_gpu("mi210").without_permission("amd0")
    said = verdict(machine, "dev.render", **AMD)
    assert said.fix[0].path == "/etc/udev/rules.d/70-gpu-render.rules"
    assert said.fix[0].lines == ('SUBSYSTEM=="drm", KERNEL=="renderD*", GROUP="render", MODE="0660"',)
    assert "loses every AMD GPU" not in said.reason


@pytest.mark.proves("dev.render", "FAIL", on="tree")
def test_an_intel_gpu_without_rights_blocks_nobody() -> None:
    judgement = judged(ARC.without_group("render"), "dev.render", **INTEL)
    (said,) = judgement.verdicts
    assert (said.status, said.blocks, judgement.unfit) == ("FAIL", False, {})


@pytest.mark.proves("dev.render", "FAIL", on="tree")
def test_a_user_namespace_that_maps_nobody() -> None:
    # podman-container-tools/podman#10166: crw-rw---- 1 nobody nogroup
    node = Node(kind="chardev", mode=0o660, uid=65534, gid=65534, major=226, minor=128)
    machine = a_machine().with_gpu("mi210").with_node("/dev/dri/renderD128", node).with_file("/run/.containerenv", "")
    said = verdict(machine.with_identity(Identity(uid=1000, gid=1000, groups=(1000,))), "dev.render", **AMD)
    assert "does not map (65534)" in said.reason
    assert said.fix[0].lines == ("podman run --group-add keep-groups …",)


def test_what_is_not_recorded_is_unknown(shared: object) -> None:
    from pytest_gpucoexist.host import open_recording

    host = open_recording(f"{shared}/machines/lact/lact-amd-rx7900xtx.tar.xz")
    assert verdict(host, "dev.amd.kfd", **AMD).status == "UNKNOWN"
    assert verdict(host, "dev.render", **AMD).status == "UNKNOWN"


@pytest.mark.proves("dev.amd.by_path", "PASS", on="tree")
def test_the_link_by_path_leads_to_the_render_node() -> None:
    machine = TWO.with_link(BY_PATH, "../renderD129").with_link(
        "/dev/dri/by-path/pci-0000:07:00.0-render", "../renderD130"
    )
    assert verdict(machine, "dev.amd.by_path").reason == "the link by path leads to the GPU's render node"


@pytest.mark.proves("dev.amd.by_path", "WARN", on="tree")
def test_a_link_by_path_of_an_earlier_boot() -> None:
    first, second = verdicts(TWO.with_link(BY_PATH, "../renderD130"), "dev.amd.by_path")
    assert first.reason == f"{BY_PATH} leads to /dev/dri/renderD130, and the GPU's node is /dev/dri/renderD129"
    assert second.reason == "no /dev/dri/by-path/pci-0000:07:00.0-render"
    assert first.fix[0].lines == ("sudo udevadm trigger --subsystem-match=drm",)
    assert verdict(TWO, "dev.amd.by_path").status == "SKIP"

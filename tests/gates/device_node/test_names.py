"""Numberings side by side, and what root does not see."""

from __future__ import annotations

import errno

import pytest

from pytest_gpucoexist.gates.device_node.opening import open_node
from pytest_gpucoexist.host.base import Identity, Node
from pytest_gpucoexist.host.manifest import ProgramRun
from pytest_gpucoexist.testing.builder import a_machine
from tests.gates.device_node.machines import answering, opening
from tests.gates.judging import subject_of, verdict, verdicts

TWO = a_machine().with_gpu("rtx4090").with_gpu("mi210")
ROOT = Identity(uid=0, gid=0, groups=(0,))


@pytest.mark.proves("dev.index_map", "PASS", on="tree")
def test_numberings_side_by_side() -> None:
    said = verdict(TWO, "dev.index_map")
    assert said.reason == "2 GPUs, every number means one of them"
    assert [each.found for each in said.evidence] == [
        "card0, renderD128, NVML index 0",
        "card1, renderD129, KFD node 1",
    ]


@pytest.mark.proves("dev.index_map", "WARN", on="tree")
def test_a_node_under_another_ones_name() -> None:
    # docker run --device /dev/dri/renderD130:/dev/dri/renderD129
    other = Node(kind="chardev", mode=0o666, major=226, minor=130)
    said = verdict(TWO.with_node("/dev/dri/renderD129", other), "dev.index_map")
    assert said.reason == "/dev/dri/renderD129 is the node of another GPU under this name"
    assert said.devices == ("0000:04:00.0",)
    assert (said.evidence[0].found, said.evidence[0].expected) == ("device 226:130", "device 226:129")


def test_a_tree_without_any_number_is_unknown(shared: object) -> None:
    from pytest_gpucoexist.host import open_recording

    host = open_recording(f"{shared}/machines/hwloc/linux/nvidiagpunumanodes.tar.xz")
    assert verdict(host, "dev.index_map").status == "UNKNOWN"


@pytest.mark.proves("dev.access_open_test", "PASS", on="tree")
def test_nodes_were_looked_at_as_a_user() -> None:
    assert verdict(TWO, "dev.access_open_test").reason == "nodes were looked at as uid 1000"
    nvidia = a_machine().with_gpu("rtx4090").with_identity(ROOT)
    assert verdict(nvidia, "dev.access_open_test").reason == "this is root, and the nodes are open to everybody"
    container = TWO.with_identity(ROOT).with_file("/.dockerenv", "")
    assert verdict(container, "dev.access_open_test").status == "PASS"
    session = verdict(TWO.with_identity(ROOT), "dev.access_open_test", since_s=0.0)
    assert session.reason == "this is root, as whom the tests of this session run"


@pytest.mark.proves("dev.access_open_test", "WARN", on="tree")
def test_root_sees_no_missing_group() -> None:
    said = verdict(TWO.with_identity(ROOT), "dev.access_open_test")
    assert said.reason == "this is root: whether other users may open the nodes was not seen"
    assert [each.source for each in said.evidence[1:]] == ["/dev/kfd", "/dev/dri/renderD129"]


@pytest.mark.proves("dev.access_open_test", "WARN", on="tree")
def test_a_node_that_opens_by_its_mode_alone() -> None:
    host = answering(TWO, programs=(opening("/dev/nvidiactl"), opening("/dev/kfd", "Operation not permitted")))
    said = verdict(host, "dev.access_open_test")
    assert said.reason == "/dev/kfd cannot be opened although its mode allows it"
    assert verdict(host, "dev.access_open_test", level="quick").status == "PASS"


def test_a_quick_gate_opens_nothing() -> None:
    host = answering(TWO, programs=(opening("/dev/kfd", "Operation not permitted"),))
    assert open_node(subject_of(host, level="quick"), "/dev/kfd").code is None
    assert open_node(subject_of(host), "/dev/kfd").code == errno.EPERM
    with pytest.raises(ValueError, match="is not opened to look"):
        open_node(subject_of(host), "/dev/nvidia0")


@pytest.mark.parametrize(
    ("run", "code"),
    [
        (opening("/dev/kfd"), 0),
        (opening("/dev/kfd", "Cannot allocate memory"), errno.ENOMEM),
        (opening("/dev/kfd", "Ungültiges Argument"), None),
        (ProgramRun(argv=opening("/dev/kfd").argv, returncode=1, stderr="\udcff garbage"), None),
        (ProgramRun(argv=opening("/dev/kfd").argv, timed_out=True), errno.ETIMEDOUT),
        (ProgramRun(argv=opening("/dev/kfd").argv, error=errno.ENOENT), None),
    ],
)
def test_what_opening_can_come_to(run: ProgramRun, code: int | None) -> None:
    assert open_node(subject_of(answering(TWO, programs=(run,))), "/dev/kfd").code == code


def test_no_node_at_all() -> None:
    machine = a_machine().with_gpu("mi210", driver=None)
    (said,) = verdicts(machine.without("/dev/kfd"), "dev.access_open_test")
    assert said.status == "SKIP"

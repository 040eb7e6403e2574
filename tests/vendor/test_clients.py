"""The real nvidia-ml-py and amdsmi on fake drivers: what they answer is what the reply builders build."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.host import local_host
from pytest_gpucoexist.testing.builder import a_machine
from pytest_gpucoexist.testing.vendor_replies import AmdGpu, GpuUser, NvmlGpu, amdsmi_reply, nvml_reply
from tests.vendor.machines import A100, GIB, MI210, RTX_4090, W7900

if TYPE_CHECKING:
    from tests.fakes.machine import FakeMachine


def answer(helper: str, **request: Any) -> Any:
    reply = local_host().ask(helper, request, deadline_s=30)
    assert reply.status == "ok", reply.detail
    return reply.data


def without_client(data: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key != "client"}


def fits(one: Any, other: Any) -> bool:
    """Whether two replies have one shape: keys and types, where both have a value."""
    if one is None or other is None or any({"status", "detail"} <= set(one_keys(each)) for each in (one, other)):
        return True
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(fits(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return all(fits(left, right) for left in one for right in other)
    return type(one) is type(other)


def one_keys(data: Any) -> list[str]:
    return list(data) if isinstance(data, dict) else []


def test_nvml_answers_what_the_builder_builds(machine: FakeMachine) -> None:
    machine.nvidia(RTX_4090, A100, p2p=[(0, 1)])
    data = answer("nvml")
    assert without_client(data) == without_client(nvml_reply([RTX_4090, A100], p2p=[(0, 1)]))
    assert data["client"].keys() == nvml_reply([])["client"].keys()
    assert data["client"]["distribution"] == "nvidia-ml-py"
    assert data["client"]["path"].endswith("pynvml.py")


def test_amdsmi_answers_what_the_builder_builds(machine: FakeMachine) -> None:
    machine.amd(W7900, MI210, p2p=[(0, 1)], link=2, hops=1)
    data = answer("amdsmi")
    assert without_client(data) == without_client(amdsmi_reply([W7900, MI210], p2p=[(0, 1)], link="xgmi", hops=1))
    assert data["client"].keys() == amdsmi_reply([])["client"].keys()


@pytest.mark.parametrize(
    "gpu",
    [
        NvmlGpu(pci_address="0000:01:00.0", uuid=None, name="NVIDIA Thor", memory_total_bytes=None),
        replace(RTX_4090, ecc=False, mig=False, instances=()),
        replace(A100, mig=False),
    ],
)
def test_nvml_of_other_boards(machine: FakeMachine, gpu: NvmlGpu) -> None:
    machine.nvidia(gpu)
    assert without_client(answer("nvml")) == without_client(nvml_reply([gpu]))


@pytest.mark.parametrize(
    "gpu",
    [
        AmdGpu(pci_address="0000:05:00.0", uuid=None, name=None, target=None, memory_total_bytes=None),
        replace(W7900, partition_id=3, kfd_node=4, compute_partition="CPX", memory_partition="NPS4"),
    ],
)
def test_amdsmi_of_other_boards(machine: FakeMachine, gpu: AmdGpu) -> None:
    machine.amd(gpu, driver_version=None)
    assert without_client(answer("amdsmi")) == without_client(amdsmi_reply([gpu], driver_version=None))


def test_a_lost_gpu_does_not_hide_the_others(machine: FakeMachine) -> None:
    lost = replace(RTX_4090, fault=("broken", "NVML: GPU is lost"))
    machine.nvidia(lost, replace(A100, mig=False))
    data = answer("nvml")
    assert without_client(data) == without_client(nvml_reply([lost, replace(A100, mig=False)]))
    assert data["devices"][0] == {"index": 0, "fault": {"status": "broken", "detail": "NVML: GPU is lost", "code": 15}}
    assert data["devices"][1]["uuid"] == {"value": A100.uuid}


def test_the_machine_changes_while_nothing_is_started_anew(machine: FakeMachine) -> None:
    machine.nvidia(RTX_4090)
    machine.amd(W7900)
    assert answer("nvml")["count"] == 1
    user = GpuUser(pid=77, memory_bytes=5 * GIB)
    machine.nvidia(replace(RTX_4090, memory_used_bytes=7 * GIB, processes=(user,)), A100)
    machine.amd(replace(W7900, memory_used_bytes=40 * GIB))
    now = answer("nvml")
    assert now["count"] == 2
    assert now["devices"][0]["memory"]["value"]["free"] == 17 * GIB
    assert [process["pid"] for process in now["devices"][0]["processes"]["value"]] == [77]
    assert answer("amdsmi")["devices"][0]["memory"]["value"]["used"] == 40 * GIB


def test_what_a_process_holds_may_be_unknown(machine: FakeMachine) -> None:
    machine.nvidia(replace(RTX_4090, processes=(GpuUser(pid=5),)))
    machine.amd(replace(W7900, processes=(GpuUser(pid=6),)))
    assert answer("nvml")["devices"][0]["processes"]["value"][0]["memory"] is None
    assert answer("amdsmi")["devices"][0]["processes"]["value"] == [{"pid": 6, "memory": None, "name": None}]


def test_a_link_of_a_kind_that_the_client_does_not_know(machine: FakeMachine) -> None:
    machine.amd(W7900, MI210, link=9)
    (link,) = answer("amdsmi")["devices"][0]["links"]["value"]
    assert link["type"] == {"value": "type 9"}


def test_a_pair_without_a_link(machine: FakeMachine) -> None:
    machine.amd(W7900, MI210)
    machine.put({"amd.link.0.1": None})
    (link,) = answer("amdsmi")["devices"][0]["links"]["value"]
    assert link["type"]["status"] == link["hops"]["status"] == "unsupported"
    assert link["p2p"] == {"value": False}


def test_machines_built_in_code_answer_in_the_same_shape(machine: FakeMachine) -> None:
    machine.nvidia(RTX_4090, A100)
    machine.amd(W7900, MI210)
    built = a_machine().with_gpu("rtx4090").with_gpu("rtx3090").with_gpu("rx7900xtx").with_gpu("rx7900xtx").host()
    for helper in ("nvml", "amdsmi"):
        assert fits(built.ask(helper).data, answer(helper, health=True))


def test_a_reply_of_another_shape_is_told() -> None:
    reply = nvml_reply([RTX_4090])
    other = nvml_reply([RTX_4090])
    assert fits(reply, other)
    del other["devices"][0]["minor"]
    assert not fits(reply, other)
    assert not fits(nvml_reply([RTX_4090]), amdsmi_reply([W7900]))

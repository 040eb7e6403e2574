"""Vendor libraries are asked once for all gates, at the same time, where a driver is loaded, and never at `quick`."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given, settings, strategies as st

from pytest_gpucoexist.gates.catalogue import all_gates
from pytest_gpucoexist.gates.runner import judge
from pytest_gpucoexist.gates.subject import Subject
from pytest_gpucoexist.gates.vendors import LIBRARIES, address_of, device_cells, faults, library_reply, vendor_reply
from pytest_gpucoexist.host.base import HelperReply
from pytest_gpucoexist.model.machine import Gpu
from pytest_gpucoexist.probes import discover
from pytest_gpucoexist.testing.builder import MachineBuilder, a_machine
from pytest_gpucoexist.testing.vendor_replies import MigInstance

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpucoexist.host.base import Host

FOUR = a_machine().with_gpu("rtx4090").with_gpu("a100").with_gpu("mi210").with_gpu("arc-b580")
MINE = {"ras", "power", "driver_l1", "runtimes_l1", "occupancy_l1"}
GATES = [gate for gate in all_gates() if gate.check is not None and gate.check.__module__.split(".")[2] in MINE]


class Counting:
    """A live machine with these files, that counts how often its libraries are asked."""

    simulated = False

    def __init__(self, machine: MachineBuilder) -> None:
        self._host = machine.host()
        self.asked: list[tuple[tuple[str, ...], Mapping[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)

    def ask_all(self, helpers: Sequence[str], request: Mapping[str, Any] | None = None, **more: Any) -> Any:
        self.asked.append((tuple(helpers), dict(request or {})))
        return self._host.ask_all(helpers, request, **more)


def subject_of(host: Any, level: Any = "standard", ask: tuple[str, ...] = ()) -> Subject:
    return Subject(host=cast("Host", host), machine=discover(host, ask=ask), level=level)


def test_all_gates_ask_all_libraries_once() -> None:
    host = Counting(FOUR)
    judgement = judge(subject_of(host), gates=GATES)
    assert host.asked == [(("nvml", "cuda", "amdsmi", "hip", "levelzero"), {"health": True})]
    assert "ERROR" not in {verdict.status for verdict in judgement.verdicts}


def test_quick_gates_ask_none() -> None:
    host = Counting(FOUR)
    judge(subject_of(host, "quick"), gates=[gate for gate in GATES if gate.level == "quick"])
    assert host.asked == []


def test_only_libraries_whose_driver_is_loaded_are_asked() -> None:
    host = Counting(a_machine().with_gpu("rx7900xtx"))
    subject = subject_of(host)
    reply = vendor_reply(subject, "nvidia")
    assert (reply.status, "the nvidia driver is not loaded" in (reply.detail or "")) == ("unsupported", True)
    assert "neither i915 nor xe" in (vendor_reply(subject, "intel").detail or "")
    assert vendor_reply(subject, "amd").status == "ok"
    assert [helpers for helpers, _ in host.asked] == [("amdsmi", "hip")]


@pytest.mark.parametrize(
    "detail",
    [
        "no answer within 5 s",
        "no answer within 5 s; process 7 cannot be killed (blocked in the kernel?) and is left behind",
        "it was killed by SIGSEGV without an answer",
    ],
)
def test_a_library_that_was_gone_at_discovery_is_not_asked_again(detail: str) -> None:
    gone = HelperReply(status="broken", detail=detail)
    for vendor, helper, other in (("nvidia", "nvml", "cuda"), ("amd", "amdsmi", "hip")):
        host = Counting(FOUR.with_reply(helper, gone))
        subject = subject_of(host, ask=("nvidia", "amd"))
        del host.asked[:]
        assert vendor_reply(subject, vendor).status == "broken"
        assert detail in (library_reply(subject, other).detail or "")
        assert [helpers for helpers, _ in host.asked] == [
            tuple(each for each in LIBRARIES if LIBRARIES[each] != vendor)
        ]


def test_a_library_that_answered_at_discovery_is_asked_for_health() -> None:
    host = Counting(FOUR)
    subject = subject_of(host, ask=("nvidia", "amd"))
    assert vendor_reply(subject, "nvidia").data["devices"][0]["health"]["pstate"] == {"value": 8}


def test_cells_of_a_mig_instance_are_those_of_its_gpu() -> None:
    instance = MigInstance(uuid="MIG-1", name="A100 MIG 3g.20gb", gi=2, memory_total_bytes=20 * 2**30)
    host = FOUR.with_mig("nvidia1", instance).host()
    subject = Subject(host=host, machine=discover(host, ask=["nvidia"]), level="standard")
    (part,) = [gpu for gpu in subject.machine.gpus if gpu.partition is not None]
    cells = device_cells(vendor_reply(subject, "nvidia"), part)
    assert cells is not None
    assert address_of(cells) == part.pci_address


def test_devices_without_an_address_are_found_by_their_uuid() -> None:
    reply = FOUR.host().ask("nvml")
    first, second = reply.data["devices"]
    for device in (first, second):
        device["pci"] = {"status": "unsupported", "detail": "NVML: Not Supported"}
    gpu = Gpu(id="nvidia0", vendor="nvidia", uuid=second["uuid"]["value"])
    assert device_cells(reply, gpu) is second
    assert device_cells(reply, Gpu(id="nvidia0", vendor="nvidia", uuid="GPU-other")) is None


def test_partitions_of_amd_are_found_by_function() -> None:
    reply = HelperReply(status="ok", data={"devices": [{"bdf": {"value": f"0000:05:00.{n}"}} for n in range(3)]})
    for number in range(3):
        part = Gpu(id="amd0", vendor="amd", pci_address="0000:05:00.0", partition=str(number))
        cells = device_cells(reply, part)
        assert cells is not None
        assert address_of(cells) == f"0000:05:00.{number}"
    beyond = Gpu(id="amd0", vendor="amd", pci_address="0000:05:00.0", partition="7")
    cells = device_cells(reply, beyond)
    assert cells is not None
    assert address_of(cells) == "0000:05:00.0"


def test_a_lost_gpu_is_a_fault() -> None:
    assert faults(FOUR.lose("nvidia0").host().ask("nvml")) == [("broken", "NVML: GPU is lost")]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2**70) | st.floats() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["value", "status", "x"]), inner, max_size=3)
    ),
    max_leaves=5,
)


def mutated(data: Any, draw: Any) -> Any:
    """Return a copy of a reply with garbage in one place, as deep as it is drawn."""
    data = copy.deepcopy(data)
    here = data
    while isinstance(here, (dict, list)) and here:
        keys = sorted(here) if isinstance(here, dict) else list(range(len(here)))
        key = draw(st.sampled_from(keys))
        if not isinstance(here[key], (dict, list)) or draw(st.integers(0, 3)) == 0:
            here[key] = draw(_JSON)
            return data
        here = here[key]
    return data


@given(st.data())
@settings(max_examples=60)
def test_no_garbage_in_a_reply_breaks_a_gate(data: st.DataObject) -> None:
    helper = data.draw(st.sampled_from(sorted(LIBRARIES)))
    reply = FOUR_REPLIES[helper]
    machine = FOUR.with_reply(helper, HelperReply(status="ok", data=mutated(reply, data.draw)))
    host = machine.host()
    said = judge(Subject(host=host, machine=FOUR_MACHINE, level="standard"), gates=GATES).verdicts
    broken = [(verdict.id, verdict.detail) for verdict in said if verdict.status == "ERROR"]
    assert not broken, broken


FOUR_REPLIES = {helper: FOUR.host().ask(helper).data for helper in LIBRARIES}
FOUR_MACHINE = discover(FOUR.host())

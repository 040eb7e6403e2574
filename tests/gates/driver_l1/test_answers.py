"""Libraries that do not initialise, hang, crash or are not there; boards that are lost or want a recovery."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.gates.runner import judge
from pytest_gpucoexist.gates.subject import Subject
from pytest_gpucoexist.host.base import HelperReply
from pytest_gpucoexist.probes import discover
from pytest_gpucoexist.testing.builder import a_machine
from tests.gates.boards import DEADLINE_S, FIRST, SECOND, asked_here, files_of
from tests.gates.judging import SAID, judged, verdict, verdicts
from tests.vendor.machines import A100, MI210, RTX_4090, W7900

if TYPE_CHECKING:
    from tests.fakes.machine import FakeMachine

proves = pytest.mark.proves
PAIR = a_machine().with_gpu("rtx4090").with_gpu("rx7900xtx")


def refusing(helper: str, status: Any, cause: str | None, detail: str) -> Any:
    data = None if cause is None else {"cause": cause}
    return PAIR.with_reply(helper, HelperReply(status=status, data=data, detail=detail))


# ---- drv.nv.nvml_init: codes of nvml.h that mej/nhc and azurehpc-health-checks map ----


@proves("drv.nv.nvml_init", "PASS", on="fake")
def test_nvml_initialises(machine: FakeMachine) -> None:
    machine.nvidia(RTX_4090, A100)
    said = verdict(asked_here(), "drv.nv.nvml_init", deadline_s=DEADLINE_S)
    assert (said.status, said.devices) == ("PASS", (FIRST, SECOND))


@pytest.mark.parametrize(
    ("code", "reason", "action"),
    [
        pytest.param(
            18,
            "driver/library version mismatch: the nvidia libraries were updated under the loaded kernel module;"
            " reboot or reload the module",
            "Reboot, or unload",
        ),
        (4, "NVML: no permission to talk to the nvidia driver", "Give this user access"),
        (9, "NVML is installed, but the nvidia driver is not loaded", "The device nodes"),
        (15, "NVML did not initialise: GPU is lost", "Look for Xid 79"),
        (999, "NVML did not initialise: Unknown Error", "In a container whose cgroup was reloaded"),
    ],
)
@proves("drv.nv.nvml_init", "FAIL", on="fake")
def test_nvml_that_does_not_initialise(machine: FakeMachine, code: int, reason: str, action: str) -> None:
    machine.nvidia(RTX_4090, A100)
    machine.fault("nvidia.nvmlInitWithFlags", f"status {code}")
    judgement = judged(asked_here(), "drv.nv.nvml_init", deadline_s=DEADLINE_S)
    (said,) = judgement.verdicts
    assert (said.status, said.reason, said.action.startswith(action)) == ("FAIL", reason, True), said
    assert set(judgement.unfit) == {FIRST, SECOND}


def test_what_is_not_installed_is_a_fault_where_it_is_wanted() -> None:
    detail = "NVML is not installed: libnvidia-ml.so.1: cannot open shared object file: No such file or directory"
    machine = refusing("nvml", "absent", "no-library", detail)
    said = verdict(machine, "drv.nv.nvml_init", needed=frozenset())
    assert (said.status, "nobody wants NVIDIA here" in said.reason) == ("SKIP", True), said
    said = verdict(machine, "drv.nv.nvml_init", promised={"cuda": 1})
    assert (said.status, said.reason) == ("FAIL", "NVML is not installed, and cuda:1 is promised")


@pytest.mark.parametrize(
    ("status", "cause", "detail"),
    [
        ("absent", "no-client", "nvidia-ml-py is not installed (pip install 'pytest-gpucoexist[nvidia]')"),
        ("broken", "client", "pynvml would be imported from /x/pynvml, which is not nvidia-ml-py"),
        ("absent", None, "not recorded"),
        ("broken", None, "no answer within 5 s"),
    ],
)
def test_what_says_nothing_of_the_driver_is_unknown(status: str, cause: str | None, detail: str) -> None:
    said = verdict(refusing("nvml", status, cause, detail), "drv.nv.nvml_init", promised={"cuda": 1})
    assert (said.status, detail in said.reason) == ("UNKNOWN", True), said


@pytest.mark.parametrize("data", [None, [], {}, {"devices": 3}, "text", {"cause": 7}])
def test_an_answer_that_makes_no_sense_passes_nothing(data: Any) -> None:
    machine = PAIR.with_reply("nvml", HelperReply(status="ok", data=data))
    machine = machine.with_reply("amdsmi", HelperReply(status="ok", data=data))
    for helper in ("cuda", "hip"):
        machine = machine.with_reply(helper, HelperReply(status="ok", data=data))
    judgement = judged(machine, "drv.nv.*", "drv.amd.*", "ras.nv.*", "ras.amd.xgmi", "lib.nv.nvml", "lib.nv.libcuda")
    from_files = {"drv.nv.siblings", "drv.nv.flavor", "drv.nv.version_match", "drv.nv.count_match"}
    passed = {each.id for each in judgement.verdicts if each.status == "PASS"} - from_files
    assert not passed
    assert not [each for each in judgement.verdicts if each.status in {"ERROR", "FAIL"}]


@pytest.mark.parametrize(
    ("code", "status", "words"),
    [
        pytest.param(0, "PASS", "AMD SMI initialises", marks=proves("drv.amd.amdsmi_init", "PASS", on="fake")),
        pytest.param(10, "FAIL", "no permission", marks=proves("drv.amd.amdsmi_init", "FAIL", on="fake")),
        pytest.param(18, "FAIL", "did not initialise", marks=proves("drv.amd.amdsmi_init", "FAIL", on="fake")),
        pytest.param(34, "FAIL", "not loaded", marks=proves("drv.amd.amdsmi_init", "FAIL", on="fake")),
    ],
)
def test_amdsmi(machine: FakeMachine, code: int, status: str, words: str) -> None:
    machine.amd(W7900, MI210)
    machine.fault("amd.amdsmi_init", f"status {code}" if code else None)
    said = verdict(asked_here(files_of(nvidia=False, amd=True)), "drv.amd.amdsmi_init", deadline_s=DEADLINE_S)
    assert (said.status, words in said.reason, said.blocks) == (status, True, False), said


# ---- drv.query_timeout: leptonai/gpud#117 ----


@proves("drv.query_timeout", "FAIL", on="fake")
def test_a_library_that_hangs_costs_its_deadline_once(machine: FakeMachine) -> None:
    """All gates together ask each library once, and nobody asks again after a discovery that hung."""
    machine.nvidia(RTX_4090)
    machine.amd(W7900, MI210)
    machine.fault("nvidia.nvmlInitWithFlags", "hang 600")
    files = a_machine().with_gpu("rtx4090", address=FIRST).with_gpu("rx7900xtx", address=W7900.pci_address)
    host = asked_here(files)
    found = discover(host, ask=["nvidia"], deadline_s=2)
    calls = len(machine.callers())
    subject = Subject(host=host, machine=found, level="standard", deadline_s=60)
    from pytest_gpucoexist.gates.catalogue import all_gates

    gates = [
        gate for gate in all_gates() if gate.id.startswith(("drv.nv.", "ras.nv.", "drv.query", "lib.nv.", "proc.nv."))
    ]
    judgement = judge(subject, gates=gates)
    SAID.extend(judgement.verdicts)
    assert calls == 1  # of the discovery
    assert [name for name in machine.calls() if name == "nvmlInitWithFlags"] == ["nvmlInitWithFlags"]
    said = {each.devices: each for each in judgement.verdicts if each.id == "drv.query_timeout"}
    assert said[(FIRST,)].status == "FAIL"
    assert said[(FIRST,)].reason == "NVML and CUDA gave no answer within 2 s"
    assert set(judgement.unfit) == {FIRST}
    unknown = {each.id for each in judgement.verdicts if each.status == "UNKNOWN"}
    assert {"drv.nv.nvml_init", "ras.nv.row_remap", "lib.nv.libcuda"} <= unknown


@proves("drv.query_timeout", "FAIL", on="fake")
def test_a_library_that_hangs_while_the_gates_ask(machine: FakeMachine) -> None:
    machine.nvidia(RTX_4090)
    machine.fault("nvidia.nvmlInitWithFlags", "hang 600")
    files = a_machine().with_gpu("rtx4090", address=FIRST)
    gates = ("drv.nv.*init", "drv.query*", "ras.nv.row_remap")
    said = {each.id: each for each in judged(asked_here(files), *gates, deadline_s=3).verdicts}
    assert (said["drv.query_timeout"].status, said["drv.query_timeout"].reason) == (
        "FAIL",
        "NVML gave no answer within 3 s",
    )
    assert said["drv.nv.nvml_init"].status == said["ras.nv.row_remap"].status == "UNKNOWN"
    assert machine.calls() == ["nvmlInitWithFlags"]


@proves("drv.query_timeout", "PASS", on="fake")
def test_libraries_that_answer(machine: FakeMachine) -> None:
    machine.nvidia(RTX_4090, A100)
    said = verdict(asked_here(), "drv.query_timeout", deadline_s=DEADLINE_S)
    assert (said.status, said.devices) == ("PASS", (FIRST, SECOND))


@proves("drv.query_timeout", "FAIL", on="tree")
def test_a_process_that_cannot_be_killed() -> None:
    """The state D of gpud#117: the child is left behind, whatever the deadline was."""
    judgement = judged(PAIR.hang("amdsmi", left_behind=4711), "drv.query_timeout")
    said = {each.devices: each for each in judgement.verdicts}
    amd = next(each for key, each in said.items() if each.status == "FAIL")
    assert amd.reason == "AMD SMI hung in the kernel: its process cannot be killed"
    assert "process 4711 cannot be killed" in amd.evidence[0].found
    assert set(judgement.unfit) == set(amd.devices)


def test_a_deadline_that_is_short_for_many_boards_is_no_fault_of_theirs() -> None:
    machine = a_machine()
    for _ in range(8):
        machine = machine.with_gpu("h100")
    said = verdict(machine.hang("nvml"), "drv.query_timeout")
    assert (said.status, said.reason) == (
        "UNKNOWN",
        "NVML gave no answer within 5 s, which is short for 8 boards",
    )


@proves("drv.query_timeout", "WARN", on="fake")
def test_a_library_that_crashes(machine: FakeMachine) -> None:
    machine.nvidia(RTX_4090, A100)
    machine.fault("nvidia.0.nvmlDeviceGetMemoryInfo", "segv")
    said = {
        each.id: each for each in judged(asked_here(), "drv.*nv*init", "drv.query*", deadline_s=DEADLINE_S).verdicts
    }
    assert (said["drv.query_timeout"].status, said["drv.query_timeout"].reason) == ("WARN", "NVML crashed")
    assert said["drv.nv.nvml_init"].status == "FAIL"
    assert "SIGSEGV" in said["drv.nv.nvml_init"].reason


# ---- drv.nv.nvml_errors, recovery_action, inforom: facebookresearch/gcm, DCGM ----


@proves("drv.nv.nvml_errors", "FAIL", on="fake")
@proves("drv.nv.nvml_errors", "PASS", on="fake")
def test_a_gpu_that_is_lost_is_named_although_nvml_gives_no_address(machine: FakeMachine) -> None:
    machine.nvidia(RTX_4090, replace(A100, fault=("broken", "NVML: GPU is lost")))
    judgement = judged(asked_here(), "drv.nv.nvml_errors", "drv.nv.count_match", deadline_s=DEADLINE_S)
    said = {(each.id, each.devices): each for each in judgement.verdicts}
    lost = said["drv.nv.nvml_errors", (SECOND,)]
    assert (lost.status, lost.reason) == ("FAIL", "the GPU is lost: it has fallen off the bus")
    assert "Xid 79" in lost.action
    assert said["drv.nv.nvml_errors", (FIRST,)].status == "PASS"
    assert set(judgement.unfit) == {SECOND}


@pytest.mark.parametrize(
    ("code", "status", "words"),
    [
        (14, "FAIL", "its infoROM is corrupted"),
        (15, "FAIL", "the GPU is lost"),
        (16, "FAIL", "the GPU has to be reset"),
        (999, "WARN", "NVML cannot ask its memory: NVML: Unknown Error"),
        (3, "PASS", "it has no memory of its own"),
        (4, "UNKNOWN", "Insufficient Permissions"),
    ],
)
def test_a_gpu_whose_memory_cannot_be_asked(machine: FakeMachine, code: int, status: str, words: str) -> None:
    machine.nvidia(RTX_4090, A100)
    machine.fault("nvidia.1.nvmlDeviceGetMemoryInfo", f"status {code}")
    said = [
        each for each in verdicts(asked_here(), "drv.nv.nvml_errors", deadline_s=DEADLINE_S) if SECOND in each.devices
    ]
    assert [(each.status, words in each.reason, each.blocks) for each in said] == [(status, True, status == "FAIL")], (
        said
    )


def test_a_fault_that_may_be_of_two_boards_suspects_both() -> None:
    machine = a_machine().with_gpu("rtx4090").with_gpu("rtx3090").with_gpu("a100")
    reply = machine.host().ask("nvml")
    first, _, third = reply.data["devices"]
    first.clear()
    first.update({"index": 0, "fault": {"status": "broken", "detail": "NVML: GPU is lost", "code": 15}})
    reply.data["devices"] = [first, third]
    said = verdicts(machine.with_reply("nvml", reply), "drv.nv.nvml_errors")
    (lost,) = [each for each in said if each.status == "FAIL"]
    assert len(lost.devices) == 2


@pytest.mark.parametrize(
    ("field", "status", "words"),
    [
        pytest.param(0, "PASS", "wants no recovery", marks=proves("drv.nv.recovery_action", "PASS", on="fake")),
        pytest.param(1, "FAIL", "reset the GPU", marks=proves("drv.nv.recovery_action", "FAIL", on="fake")),
        pytest.param(2, "FAIL", "reboot the machine", marks=proves("drv.nv.recovery_action", "FAIL", on="fake")),
        (4, "FAIL", "then reset it"),
        (42, "UNKNOWN", "action 42"),
        (None, "SKIP", "does not have it"),
    ],
)
def test_a_recovery_that_the_driver_wants(machine: FakeMachine, field: int | None, status: str, words: str) -> None:
    machine.nvidia(replace(RTX_4090, pci_address=FIRST))
    machine.put({"nvidia.0.field.230": field})
    files = a_machine().with_gpu("rtx4090", address=FIRST)
    said = verdict(asked_here(files), "drv.nv.recovery_action", deadline_s=DEADLINE_S)
    assert (said.status, words in said.reason, said.blocks) == (status, True, status == "FAIL"), said


@pytest.mark.parametrize(
    ("valid", "status"),
    [
        pytest.param(1, "PASS", marks=proves("drv.nv.inforom", "PASS", on="fake")),
        pytest.param(0, "FAIL", marks=proves("drv.nv.inforom", "FAIL", on="fake")),
        (None, "SKIP"),
    ],
)
def test_the_inforom(machine: FakeMachine, valid: int | None, status: str) -> None:
    machine.nvidia(RTX_4090)
    machine.put({"nvidia.0.inforom": valid})
    files = a_machine().with_gpu("rtx4090", address=FIRST)
    said = verdict(asked_here(files), "drv.nv.inforom", deadline_s=DEADLINE_S)
    assert (said.status, said.blocking) == (status, False), said

"""CUDA, NVML, HIP, HSA and Level Zero: helpers on fake libraries, and the words for their codes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.host import local_host
from pytest_gpucoexist.host.base import HelperReply
from pytest_gpucoexist.testing.builder import MachineBuilder, a_machine
from tests.gates.boards import DEADLINE_S, FIRST, asked_here
from tests.gates.judging import verdict, verdicts
from tests.vendor.machines import RTX_4090

if TYPE_CHECKING:
    from tests.fakes.machine import FakeMachine

proves = pytest.mark.proves
NVIDIA = a_machine().with_gpu("rtx4090", address=FIRST)
AMD = a_machine().with_gpu("rx7900xtx")
INTEL = a_machine().with_gpu("arc-b580")


def ask(helper: str) -> HelperReply:
    return local_host().ask(helper, deadline_s=DEADLINE_S)


# ---- the helpers ----


def test_cuda_is_initialised_without_a_context(fake_runtimes: FakeMachine) -> None:
    fake_runtimes.put({"cuda.init": 0, "cuda.count": 2, "cuda.driver_version": 12090})
    reply = ask("cuda")
    assert reply.status == "ok", reply.detail
    path = reply.data.pop("path")
    assert path.endswith("/libcuda.so.1")
    assert reply.data == {
        "library": "libcuda.so.1",
        "init": {"value": 0},
        "driver_version": {"value": 12090},
        "count": {"value": 2},
    }
    assert fake_runtimes.calls() == ["cuInit"]


def test_what_the_helpers_say_without_a_device(fake_runtimes: FakeMachine) -> None:
    assert ask("cuda").data["init"] == {"value": 100}
    data = ask("hip").data
    assert data["hsa"]["init"] == {"value": 4096}
    assert data["hip"]["init"] == {"value": 100}
    assert data["hip"]["count"] == {"status": "broken", "detail": "hipGetDeviceCount returned 100", "code": 100}
    data = ask("levelzero").data
    assert (data["init"], data["count"]["status"]) == ({"value": 0x78000001}, "absent")


def test_level_zero_counts_cards_and_looks_at_their_memory(fake_runtimes: FakeMachine) -> None:
    fake_runtimes.put({"levelzero.init": 0, "levelzero.count": 2, "levelzero.memory_health": 3})
    data = ask("levelzero").data
    assert (data["count"], data["drivers"]) == ({"value": 2}, {"value": 1})
    assert data["memories"] == [[{"value": 3}], [{"value": 3}]]


@pytest.mark.parametrize("helper", ["cuda", "hip", "levelzero"])
def test_a_library_that_is_not_installed(helper: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    for name in ("LD_LIBRARY_PATH", "ROCM_PATH", "ROCM_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    reply = ask(helper)
    if reply.status == "ok":
        pytest.skip(f"this computer has the library of helper {helper}")
    assert (reply.status, reply.data) == ("absent", {"cause": "no-library"}), reply


@pytest.mark.parametrize(("helper", "name"), [("cuda", "libcuda.so.1"), ("levelzero", "libze_loader.so.1")])
def test_a_file_that_is_no_library(helper: str, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (tmp_path / name).write_bytes(b"no ELF file")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    reply = ask(helper)
    assert (reply.status, reply.data) == ("broken", {"cause": "library"}), reply


# ---- lib.nv ----


@pytest.mark.parametrize(
    ("code", "status", "words"),
    [
        pytest.param(0, "PASS", "CUDA initialises", marks=proves("lib.nv.libcuda", "PASS", on="fake")),
        pytest.param(999, "FAIL", "unknown error (999)", marks=proves("lib.nv.libcuda", "FAIL", on="fake")),
        pytest.param(802, "FAIL", "system not ready (802)", marks=proves("lib.nv.libcuda", "FAIL", on="fake")),
        (100, "FAIL", "no device (100)"),
        (46, "FAIL", "CUresult 46 (46)"),
    ],
)
def test_cuinit(fake_runtimes: FakeMachine, code: int, status: str, words: str) -> None:
    """The codes that DCGM's libcudaCheck and gorgonia/cu#2 met."""
    fake_runtimes.nvidia(RTX_4090)
    fake_runtimes.put({"cuda.init": code})
    said = verdict(asked_here(NVIDIA), "lib.nv.libcuda", deadline_s=DEADLINE_S)
    assert (said.status, words in said.reason, said.blocks) == (status, True, False), said


def with_reply(machine: MachineBuilder, helper: str, **changes: Any) -> MachineBuilder:
    return machine.with_reply(helper, HelperReply(status="ok", data=machine.host().ask(helper).data | changes))


def test_a_mask_that_leaves_nothing_is_no_fault() -> None:
    machine = with_reply(NVIDIA, "cuda", init={"value": 100}).with_environ(CUDA_VISIBLE_DEVICES="")
    said = verdict(machine, "lib.nv.libcuda")
    assert (said.status, said.reason) == ("SKIP", "CUDA_VISIBLE_DEVICES= leaves no device")


@pytest.mark.parametrize("init", [None, {"value": True}, {"value": "0"}, {}, 0])
def test_no_pass_out_of_garbage(init: Any) -> None:
    assert verdict(with_reply(NVIDIA, "cuda", init=init), "lib.nv.libcuda").status == "UNKNOWN"
    hip = {"hip": {"init": init, "count": {"value": 1}}, "hsa": {"init": init}}
    for gate in ("lib.amd.hip", "lib.amd.hsa"):
        assert verdict(with_reply(AMD, "hip", **hip), gate).status == "UNKNOWN"
    assert verdict(with_reply(INTEL, "levelzero", init=init), "lib.levelzero").status == "UNKNOWN"


@pytest.mark.parametrize(
    ("gate", "helper", "machine"),
    [("lib.nv.libcuda", "cuda", NVIDIA), ("lib.nv.nvml", "nvml", NVIDIA)],
)
def test_a_library_that_is_missing(gate: str, helper: str, machine: MachineBuilder) -> None:
    missing = machine.with_reply(helper, HelperReply(status="absent", data={"cause": "no-library"}, detail="no file"))
    assert verdict(missing, gate).status == "SKIP"
    said = verdict(missing, gate, promised={"cuda": 2})
    assert (said.status, "is not installed, and cuda:2 is promised" in said.reason) == ("FAIL", True), said


@pytest.mark.parametrize(
    ("version", "status", "words"),
    [
        pytest.param("570.133.07", "PASS", "570.133.07 loads", marks=proves("lib.nv.nvml", "PASS", on="fake")),
        pytest.param("575.57.08", "FAIL", "libnvidia-ml is 575.57.08", marks=proves("lib.nv.nvml", "FAIL", on="fake")),
    ],
)
def test_libnvidia_ml(fake_runtimes: FakeMachine, version: str, status: str, words: str) -> None:
    fake_runtimes.nvidia(RTX_4090)
    fake_runtimes.put({"nvidia.nvml_version": f"12.{version}"})
    said = verdict(asked_here(NVIDIA), "lib.nv.nvml", deadline_s=DEADLINE_S)
    assert (said.status, words in said.reason) == (status, True), said


def test_libnvidia_ml_that_does_not_load() -> None:
    detail = "NVML cannot be loaded: libnvidia-ml.so.1: file too short"
    machine = NVIDIA.with_reply("nvml", HelperReply(status="broken", data={"cause": "library"}, detail=detail))
    said = verdict(machine, "lib.nv.nvml")
    assert (said.status, "file too short" in said.reason) == ("FAIL", True)


CUDART = {"nvidia/cuda_runtime/lib/libcudart.so.12": "x"}


@pytest.mark.parametrize(
    ("driver", "status", "words"),
    [
        pytest.param(12080, "PASS", "CUDA 12.8", marks=proves("lib.nv.cudart", "PASS", on="tree")),
        (12020, "PASS", "CUDA 12.2"),  # minor versions of one major version work together
        pytest.param(11080, "WARN", "the driver has CUDA 11.8", marks=proves("lib.nv.cudart", "WARN", on="tree")),
        ("new", "UNKNOWN", "does not tell"),
    ],
)
def test_runtimes_and_the_driver(driver: Any, status: str, words: str) -> None:
    machine = NVIDIA.with_distribution("nvidia-cuda-runtime-cu12", "12.8.90", imports=("nvidia",), files=CUDART)
    said = verdict(with_reply(machine, "cuda", driver_version={"value": driver}), "lib.nv.cudart")
    assert (said.status, words in said.reason) == (status, True), said


# ---- lib.amd ----


@pytest.mark.parametrize(
    ("keys", "gate", "status", "words"),
    [
        pytest.param({}, "lib.amd.hip", "PASS", "HIP initialises", marks=proves("lib.amd.hip", "PASS", on="fake")),
        pytest.param({}, "lib.amd.hsa", "PASS", "HSA initialises", marks=proves("lib.amd.hsa", "PASS", on="fake")),
        pytest.param(
            {"hsa.init": 4104}, "lib.amd.hsa", "FAIL", "/dev/kfd that may not be opened (4104)",
            marks=proves("lib.amd.hsa", "FAIL", on="fake"),
        ),
        pytest.param(
            {"hip.init": 100}, "lib.amd.hip", "FAIL", "no device (100)", marks=proves("lib.amd.hip", "FAIL", on="fake")
        ),
    ],
)  # fmt: skip
def test_hip_and_hsa(fake_runtimes: FakeMachine, keys: dict[str, int], gate: str, status: str, words: str) -> None:
    fake_runtimes.put({"hsa.init": 0, "hip.init": 0, "hip.count": 1, **keys})
    said = verdict(asked_here(AMD), gate, deadline_s=DEADLINE_S)
    assert (said.status, words in said.reason) == (status, True), said


def with_hip(**hip: Any) -> MachineBuilder:
    return with_reply(AMD, "hip", hip={"init": {"value": 0}, "count": {"value": 1}, **hip})


@pytest.mark.parametrize(
    ("machine", "status", "words"),
    [
        (with_hip(count={"value": 0}), "FAIL", "counts no GPU"),
        (with_hip(init={"value": 100}).with_environ(HIP_VISIBLE_DEVICES="7"), "SKIP", "HIP_VISIBLE_DEVICES is set"),
        (with_hip(init={"value": 100}).without_permission("amd0"), "WARN", "may not use these GPUs"),
        (with_hip(status="absent", detail="not installed"), "SKIP", "not installed"),
        (with_hip(status="broken", detail="libdrm is missing"), "FAIL", "libdrm is missing"),
        (a_machine().with_gpu("rx7900xtx", driver="vfio-pci"), "SKIP", "no AMD GPU here is in KFD"),
    ],
)
def test_other_answers_of_hip(machine: MachineBuilder, status: str, words: str) -> None:
    said = verdict(machine, "lib.amd.hip")
    assert (said.status, words in said.reason) == (status, True), said


# ---- lib.levelzero ----


@pytest.mark.parametrize(
    ("code", "asked", "status"),
    [
        pytest.param(0, False, "PASS", marks=proves("lib.levelzero", "PASS", on="fake")),
        pytest.param(0x78000001, False, "WARN", marks=proves("lib.levelzero", "WARN", on="fake")),
        pytest.param(0x78000001, True, "FAIL", marks=proves("lib.levelzero", "FAIL", on="fake")),
    ],
)
def test_level_zero(fake_runtimes: FakeMachine, code: int, asked: bool, status: str) -> None:
    fake_runtimes.put({"levelzero.init": code})
    promised = {"intel": 1} if asked else {}
    said = verdict(asked_here(INTEL), "lib.levelzero", deadline_s=DEADLINE_S, promised=promised)
    assert said.status == status, said


def test_a_desktop_on_intel_needs_no_level_zero() -> None:
    missing = HelperReply(status="absent", data={"cause": "no-library"}, detail="not installed: libze_loader.so.1")
    machine = a_machine().with_gpu("uhd770").with_reply("levelzero", missing)
    for gate in ("lib.levelzero", "drv.intel.count_match", "ras.intel.mem_health"):
        assert {each.status for each in verdicts(machine, gate)} <= {"SKIP", "UNKNOWN"}
    said = verdict(machine, "lib.levelzero", needed=frozenset({"intel"}))
    assert (said.status, said.reason) == ("WARN", "Level Zero is not installed, and selected tests need it")
    said = verdict(machine, "lib.levelzero", promised={"intel": 1})
    assert (said.status, said.reason) == ("FAIL", "Level Zero is not installed, and intel:1 is promised")

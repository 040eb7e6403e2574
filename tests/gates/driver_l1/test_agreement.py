"""Counts, versions and modes: who disagrees is named, and a part of a machine is healthy."""

from __future__ import annotations

import errno
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings, strategies as st

from pytest_gpucoexist.host.base import Completed, HelperReply
from pytest_gpucoexist.testing.builder import MachineBuilder, a_machine
from pytest_gpucoexist.testing.vendor_replies import MigInstance
from tests.gates.boards import DEADLINE_S, FIRST, SECOND, asked_here
from tests.gates.judging import judged, verdict, verdicts
from tests.gates.nvidia_smi import machine_of
from tests.vendor.machines import A100, RTX_4090

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.machine import FakeMachine

proves = pytest.mark.proves
TWO = a_machine().with_gpu("rtx4090").with_gpu("a100")
THIRD_ADDRESS = "0000:02:00.0"


# ---- drv.nv.count_match ----


@proves("drv.nv.count_match", "PASS", on="fake")
def test_all_count_two(machine: FakeMachine) -> None:
    machine.nvidia(RTX_4090, A100)
    said = verdict(asked_here(), "drv.nv.count_match", deadline_s=DEADLINE_S)
    assert (said.status, said.reason) == ("PASS", "bus, driver and NVML agree about 2 GPUs")


@proves("drv.nv.count_match", "FAIL", on="fake")
def test_a_gpu_that_nvml_leaves_out(machine: FakeMachine) -> None:
    """DCGM compares the nodes with nvmlDeviceGetCount: one that differs is a lost GPU."""
    machine.nvidia(RTX_4090)
    judgement = judged(asked_here(), "drv.nv.count_match", deadline_s=DEADLINE_S)
    (said,) = judgement.verdicts
    assert (said.status, said.reason, said.devices) == (
        "FAIL",
        "nvidia holds it and NVML does not list it",
        (SECOND,),
    )
    assert [each.source for each in said.evidence][1:] == ["/proc/driver/nvidia/gpus", "NVML"]
    assert set(judgement.unfit) == {SECOND}


@proves("drv.nv.count_match", "FAIL", on="tree")
def test_a_gpu_that_is_gone_from_the_bus() -> None:
    """NVIDIA/open-gpu-kernel-modules#1283: the function is gone, no Xid says so, and the driver still lists it."""
    machine = TWO.with_file("/proc/driver/nvidia/gpus/0000:c9:00.0/information", "Model: \t\t NVIDIA A100\n")
    judgement = judged(machine, "drv.nv.count_match")
    (said,) = judgement.verdicts
    assert (said.status, said.reason) == ("FAIL", "0000:c9:00.0 is known to the driver and gone from the bus")
    assert not judgement.unfit  # the others answer


@proves("drv.nv.count_match", "FAIL", on="tree")
def test_a_gpu_that_the_driver_does_not_list() -> None:
    said = verdict(TWO.without(f"/proc/driver/nvidia/gpus/{THIRD_ADDRESS}"), "drv.nv.count_match")
    assert (said.status, said.devices) == ("FAIL", (THIRD_ADDRESS,))


def test_a_container_with_one_of_two_gpus_is_healthy() -> None:
    said = verdict(TWO.without_nodes("nvidia1").with_file("/.dockerenv", ""), "drv.nv.count_match")
    assert (said.status, said.devices) == ("PASS", ("0000:01:00.0",))


def test_a_gpu_that_this_user_may_not_open_is_not_counted() -> None:
    said = {each.status: each for each in verdicts(TWO.without_permission("nvidia1"), "drv.nv.count_match")}
    assert set(said) <= {"PASS", "SKIP"}
    assert "may not open /dev/nvidia1" in said["SKIP"].reason


def test_mig_is_healthy() -> None:
    instance = MigInstance(uuid="MIG-1", name="A100 MIG 3g.20gb", gi=2, memory_total_bytes=20 * 2**30)
    machine = TWO.with_mig("nvidia1", instance)
    assert {each.status for each in judged(machine, "drv.nv.count_match", "drv.nv.mig").verdicts} <= {"PASS", "SKIP"}


# ---- drv.amd.count_match, drv.intel.count_match ----

AMD = a_machine().with_gpu("rx7900xtx").with_gpu("mi210")


def with_hip(count: int, machine: MachineBuilder = AMD) -> MachineBuilder:
    data = machine.host().ask("hip").data
    data["hip"]["count"] = {"value": count}
    return machine.with_reply("hip", HelperReply(status="ok", data=data))


@pytest.mark.parametrize(
    ("machine", "status", "words"),
    [
        pytest.param(AMD, "PASS", "agree about 2 GPUs", marks=proves("drv.amd.count_match", "PASS", on="tree")),
        pytest.param(
            with_hip(1),
            "WARN",
            "HIP counts 1 GPUs, and KFD has 2",
            marks=proves("drv.amd.count_match", "WARN", on="tree"),
        ),
        (with_hip(1).with_environ(ROCR_VISIBLE_DEVICES="0"), "PASS", "agree"),
        (AMD.without_nodes("amd1").with_file("/.dockerenv", ""), "PASS", "agree about 1 GPUs"),
    ],
)
def test_amd_counts(machine: MachineBuilder, status: str, words: str) -> None:
    said = verdict(machine, "drv.amd.count_match")
    assert (said.status, words in said.reason) == (status, True), said


@proves("drv.amd.count_match", "FAIL", on="tree")
def test_amdsmi_that_lists_nothing_beside_kfd() -> None:
    """ROCm/rocm-systems#7643: two copies of the library in one process, and not missing hardware."""
    data = AMD.host().ask("amdsmi").data | {"count": 0, "devices": []}
    said = verdict(AMD.with_reply("amdsmi", HelperReply(status="ok", data=data)), "drv.amd.count_match")
    assert (said.status, said.reason, said.blocks) == (
        "FAIL",
        "AMD SMI lists no GPU, and KFD has some: two copies of a library?",
        False,
    )


INTEL = a_machine().with_gpu("arc-b580")


def with_levelzero(**changes: Any) -> MachineBuilder:
    data = INTEL.host().ask("levelzero").data | changes
    return INTEL.with_reply("levelzero", HelperReply(status="ok", data=data))


@pytest.mark.parametrize(
    ("machine", "status", "words"),
    [
        pytest.param(INTEL, "PASS", "agree about 1", marks=proves("drv.intel.count_match", "PASS", on="tree")),
        pytest.param(
            with_levelzero(count={"value": 0}),
            "WARN",
            "Level Zero counts 0 GPUs, and 1 are held",
            marks=proves("drv.intel.count_match", "WARN", on="tree"),
        ),
        (with_levelzero(count={"value": 0}).with_environ(ZE_AFFINITY_MASK="1"), "SKIP", "ZE_AFFINITY_MASK is set"),
        (with_levelzero(count={"value": "one"}), "UNKNOWN", "does not tell"),
    ],
)
def test_intel_counts(machine: MachineBuilder, status: str, words: str) -> None:
    said = verdict(machine, "drv.intel.count_match")
    assert (said.status, words in said.reason) == (status, True), said


# ---- drv.nv.version_match ----


@proves("drv.nv.version_match", "PASS", on="fake")
def test_one_release(machine: FakeMachine) -> None:
    machine.nvidia(RTX_4090, A100)
    said = verdict(asked_here(), "drv.nv.version_match", deadline_s=DEADLINE_S)
    assert (said.status, said.reason) == ("PASS", "kernel module and libraries are 570.133.07")


@proves("drv.nv.version_match", "FAIL", on="fake")
def test_libraries_that_were_upgraded_under_the_module(machine: FakeMachine) -> None:
    """tinygrad/open-gpu-kernel-modules#47, ublue-os/bazzite#2668: NVML refuses with 18."""
    machine.nvidia(RTX_4090, A100)
    machine.fault("nvidia.nvmlInitWithFlags", "status 18")
    judgement = judged(asked_here(), "drv.nv.version_match", deadline_s=DEADLINE_S)
    (said,) = judgement.verdicts
    assert (said.status, said.reason) == (
        "FAIL",
        "NVIDIA's libraries are not of the release of the loaded kernel module",
    )
    assert said.action.startswith("Reboot, or unload")
    assert set(judgement.unfit) == {FIRST, SECOND}


@proves("drv.nv.version_match", "FAIL", on="fake")
def test_a_module_of_another_release_than_nvml(machine: FakeMachine) -> None:
    machine.nvidia(RTX_4090, A100, driver_version="575.57.08")
    said = verdict(asked_here(), "drv.nv.version_match", deadline_s=DEADLINE_S)
    assert (said.status, said.reason) == (
        "FAIL",
        "the loaded kernel module is 570.133.07, and libnvidia-ml is 575.57.08; the driver, asked by NVML is 575.57.08",
    )


def with_cuda(machine: MachineBuilder = TWO, **changes: Any) -> MachineBuilder:
    return machine.with_reply("cuda", HelperReply(status="ok", data=machine.host().ask("cuda").data | changes))


def test_libcuda_of_another_release() -> None:
    said = verdict(with_cuda(path="/usr/lib/libcuda.so.575.57.08"), "drv.nv.version_match")
    assert (said.status, "libcuda.so.1 (/usr/lib/libcuda.so.575.57.08) is 575.57.08" in said.reason) == ("FAIL", True)


def test_forward_compatibility_is_no_mismatch() -> None:
    said = verdict(with_cuda(path="/usr/local/cuda/compat/libcuda.so.575.57.08"), "drv.nv.version_match")
    assert said.status == "PASS"


def test_cuda_that_says_so_itself() -> None:
    said = verdict(with_cuda(init={"value": 803}), "drv.nv.version_match")
    assert (said.status, "another release" in said.reason) == ("FAIL", True)


@given(st.text(max_size=20))
@settings(max_examples=60)
def test_no_version_out_of_garbage(text: str) -> None:
    said = verdict(TWO.with_file("/sys/module/nvidia/version", text), "drv.nv.version_match")
    assert said.status == ("PASS" if text.strip() == "570.133.07" else said.status)
    assert said.status in {"PASS", "FAIL", "UNKNOWN"}


# ---- drv.vbios_equal ----


def same_boards(first: str, second: str) -> MachineBuilder:
    machine = a_machine().with_gpu("rtx4090").with_gpu("rtx4090")
    host = machine.host()
    reply = host.ask("nvml")
    for device, version in zip(reply.data["devices"], (first, second), strict=True):
        device["vbios_version"] = {"value": version} if version else {"status": "denied", "detail": "NVML: No"}
    for address in host.list_dir("/proc/driver/nvidia/gpus"):
        machine = machine.without(f"/proc/driver/nvidia/gpus/{address}/information")
    return machine.with_reply("nvml", reply)


@pytest.mark.parametrize(
    ("second", "status"),
    [
        pytest.param("95.02.3C.40.B5", "PASS", marks=proves("drv.vbios_equal", "PASS", on="tree")),
        pytest.param("95.02.18.80.5F", "WARN", marks=proves("drv.vbios_equal", "WARN", on="tree")),
        ("", "UNKNOWN"),
    ],
)
def test_vbios(second: str, status: str) -> None:
    said = verdict(same_boards("95.02.3C.40.B5", second), "drv.vbios_equal")
    assert (said.status, len(said.devices)) == (status, 2), said


# ---- modes ----


@pytest.mark.parametrize(
    ("keys", "gate", "status", "words"),
    [
        pytest.param({"mig": 0}, "drv.nv.mig", "PASS", "MIG is off", marks=proves("drv.nv.mig", "PASS", on="fake")),
        pytest.param(
            {"mig": 0, "mig_pending": 1},
            "drv.nv.mig",
            "WARN",
            "MIG is off, and will be on after a reset",
            marks=proves("drv.nv.mig", "WARN", on="fake"),
        ),
        pytest.param(
            {"mig": 1, "mig_slots": 7},
            "drv.nv.mig",
            "WARN",
            "there is no instance",
            marks=proves("drv.nv.mig", "WARN", on="fake"),
        ),
        pytest.param(
            {"compute_mode": 0},
            "drv.nv.compute_mode",
            "PASS",
            "several",
            marks=proves("drv.nv.compute_mode", "PASS", on="fake"),
        ),
        pytest.param(
            {"compute_mode": 3},
            "drv.nv.compute_mode",
            "WARN",
            "one process",
            marks=proves("drv.nv.compute_mode", "WARN", on="fake"),
        ),
        pytest.param(
            {"compute_mode": 2},
            "drv.nv.compute_mode",
            "FAIL",
            "no process",
            marks=proves("drv.nv.compute_mode", "FAIL", on="fake"),
        ),
        ({"compute_mode": 9}, "drv.nv.compute_mode", "UNKNOWN", "makes no sense"),
        pytest.param(
            {"persistence": 1},
            "drv.nv.persistence",
            "PASS",
            "is on",
            marks=proves("drv.nv.persistence", "PASS", on="fake"),
        ),
        pytest.param(
            {"persistence": 0},
            "drv.nv.persistence",
            "WARN",
            "is off",
            marks=proves("drv.nv.persistence", "WARN", on="fake"),
        ),
        ({"persistence": 0, "display_active": 1}, "drv.nv.persistence", "PASS", "a display keeps it"),
    ],
)
def test_modes(machine: FakeMachine, keys: dict[str, object], gate: str, status: str, words: str) -> None:
    machine.nvidia(RTX_4090)
    machine.put({f"nvidia.0.{name}": value for name, value in keys.items()})
    said = verdict(asked_here(a_machine().with_gpu("rtx4090", address=FIRST)), gate, deadline_s=DEADLINE_S)
    assert (said.status, words in said.reason) == (status, True), said


@proves("drv.nv.persistence", "PASS", on="recording")
@proves("drv.nv.compute_mode", "PASS", on="recording")
@proves("drv.nv.recovery_action", "PASS", on="recording")
@proves("drv.nv.nvml_errors", "PASS", on="recording")
def test_a_healthy_cluster(shared: Path) -> None:
    machine = machine_of((shared / "machines/nvidia-smi/text/gls-H100SXMx8_smi-q.txt").read_text())
    said = judged(machine, "drv.nv.*").verdicts
    assert not [each for each in said if each.status in {"FAIL", "WARN", "ERROR"}]


# ---- drv.intel.state: xpu-smi ----


class WithPrograms:
    """A host on which programs print this."""

    def __init__(self, host: Any, programs: dict[tuple[str, ...], Completed | int]) -> None:
        self._host = host
        self._programs = programs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)

    def run(self, argv: Any, *, timeout_s: float = 5.0) -> Completed:
        done = self._programs.get(tuple(argv), errno.ENOENT)
        if isinstance(done, int):
            raise OSError(done, "no such program", argv[0])
        return done


def with_xpu_smi(state: str | None, health: Any) -> Any:
    host = INTEL.host()
    address = host.list_dir("/sys/bus/pci/drivers/xe")[0]
    entry = {"device_id": 0, "pci_bdf_address": address, "device_name": "Intel(R) Arc(TM) B580 Graphics"}
    listing = {"device_list": [entry if state is None else {**entry, "device_state": state}]}
    programs: dict[tuple[str, ...], Completed | int] = {
        ("xpu-smi", "discovery", "-j"): Completed(returncode=0, stdout=json.dumps(listing).encode())
    }
    if health is not None:
        done = health if isinstance(health, Completed) else Completed(returncode=0, stdout=json.dumps(health).encode())
        programs["xpu-smi", "health", "-d", "0", "-j"] = done
    return WithPrograms(host, programs)


def component(status: str) -> dict[str, Any]:
    """Return what `xpu-smi health -j` prints of a component (xpumanager, docs/sphinx/xpu-smi/health.rst)."""
    return {"description": "All temperature sensors are healthy.", "status": status, "throttle_threshold": 95}


@pytest.mark.parametrize(
    ("state", "health", "status", "words"),
    [
        pytest.param(
            "normal", {"device_id": 0, "core_temperature": component("OK"), "memory": component("Unknown")},
            "PASS", "normal",
            marks=proves("drv.intel.state", "PASS", on="tree"),
        ),
        pytest.param(
            "survivability", None, "FAIL", "survivability", marks=proves("drv.intel.state", "FAIL", on="tree")
        ),
        pytest.param(
            None, {"memory": component("Critical")}, "FAIL", "memory: critical",
            marks=proves("drv.intel.state", "FAIL", on="tree"),
        ),
        pytest.param(
            "normal", {"core_temperature": component("Warning")}, "WARN", "core temperature: warning",
            marks=proves("drv.intel.state", "WARN", on="tree"),
        ),
        (None, {"memory": component("Unknown")}, "UNKNOWN", "none of its components"),
        (None, Completed(returncode=0, stdout=b"Error: XPUM Service"), "UNKNOWN", "printed no JSON"),
        (None, Completed(returncode=None, timed_out=True), "UNKNOWN", "gave no answer"),
    ],
)  # fmt: skip
def test_xpu_smi(state: str | None, health: Any, status: str, words: str) -> None:
    said = verdict(with_xpu_smi(state, health), "drv.intel.state")
    assert (said.status, words in said.reason) == (status, True), said


def test_no_xpu_smi() -> None:
    said = verdict(INTEL, "drv.intel.state")
    assert (said.status, said.reason) == ("SKIP", "xpu-smi is not installed")

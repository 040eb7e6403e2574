"""Every way in which a vendor's library fails, by the real clients: a fact with its reason, never a stall."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.host import local_host
from pytest_gpucoexist.probes import discover
from pytest_gpucoexist.testing.builder import a_machine
from tests.fakes.build import incomplete_amdsmi_library
from tests.vendor.hosts import asking_here
from tests.vendor.machines import A100, MI210, RTX_4090, W7900

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucoexist.host.base import HelperReply
    from tests.fakes.machine import FakeMachine

DEADLINE_S = 30
FILES = a_machine().with_gpu("rtx4090").with_gpu("rx7900xtx")


def ask(helper: str) -> HelperReply:
    return local_host().ask(helper, deadline_s=DEADLINE_S)


def is_dead(pid: int) -> bool:
    """Whether a process is gone; a PID that another process has by now counts as gone too."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return b"pytest_gpucoexist.helpers.nvml" not in file.read()
    except OSError:
        return True


def test_a_hanging_nvml_costs_its_deadline_and_delays_nobody(machine: FakeMachine) -> None:
    machine.nvidia(RTX_4090)
    machine.amd(W7900)
    machine.fault("nvidia.nvmlInitWithFlags", "hang 60")
    replies = local_host().ask_all(["nvml", "amdsmi"], deadline_s=5)
    assert replies["nvml"].status == "broken"
    assert replies["nvml"].detail == "no answer within 5 s"
    assert replies["nvml"].left_behind is None
    assert replies["nvml"].duration_s < 30  # not the 60 s of the library
    assert replies["amdsmi"].status == "ok"  # it had its own time, at the same time
    assert all(is_dead(pid) for pid in machine.callers())


def test_a_hanging_nvml_leaves_the_pci_facts(machine: FakeMachine) -> None:
    machine.nvidia(RTX_4090)
    machine.fault("nvidia.nvmlInitWithFlags", "hang 60")
    found = discover(asking_here(FILES.host()), ask=["nvidia"], deadline_s=1)
    gpu = found.gpu("nvidia0")
    assert gpu is not None
    assert (gpu.pci_address, gpu.driver, gpu.link.max_width) == ("0000:01:00.0", "nvidia", 16)
    assert gpu.memory_total_bytes is None
    assert gpu.facts["memory_total_bytes"].source == "nvml"
    assert gpu.facts["memory_total_bytes"].status == "broken"
    assert gpu.facts["memory_total_bytes"].detail == "no answer within 1 s"
    assert "no answer within 1 s" in (gpu.facts["usable.cuda"].detail or "")
    assert all(is_dead(pid) for pid in machine.callers())


def test_a_function_that_hangs_in_the_middle_is_no_different(machine: FakeMachine) -> None:
    machine.nvidia(RTX_4090)
    machine.amd(W7900, MI210)
    machine.fault("amd.1.amdsmi_get_gpu_asic_info", "hang 60")
    reply = local_host().ask("amdsmi", deadline_s=1)
    assert (reply.status, reply.detail) == ("broken", "no answer within 1 s")


@pytest.mark.parametrize(
    ("helper", "where"),
    [
        ("nvml", "nvidia.nvmlInitWithFlags"),
        ("nvml", "nvidia.0.nvmlDeviceGetMemoryInfo"),
        ("nvml", "nvidia.nvmlShutdown"),
        ("amdsmi", "amd.amdsmi_init"),
        ("amdsmi", "amd.0.amdsmi_get_gpu_process_list"),
    ],
)
@pytest.mark.parametrize(("action", "signal"), [("kill", "SIGKILL"), ("segv", "SIGSEGV")])
def test_a_crash_names_its_signal(machine: FakeMachine, helper: str, where: str, action: str, signal: str) -> None:
    machine.nvidia(RTX_4090)
    machine.amd(W7900)
    machine.fault(where, action)
    reply = ask(helper)
    assert reply.status == "broken"
    assert reply.detail is not None
    assert f"killed by {signal}" in reply.detail


@pytest.mark.parametrize(
    ("helper", "where"), [("nvml", "nvidia.0.nvmlDeviceGetName"), ("amdsmi", "amd.0.amdsmi_get_gpu_asic_info")]
)
def test_text_on_stdout_does_no_harm_and_is_told(machine: FakeMachine, helper: str, where: str) -> None:
    machine.nvidia(RTX_4090)
    machine.amd(W7900)
    machine.fault(where, 'print {"status": "ok", "data": "garbage"}')
    reply = ask(helper)
    assert reply.status == "ok"
    assert reply.data["count"] == 1
    assert reply.detail is not None
    assert "text on its stdout" in reply.detail
    assert "garbage" in reply.detail


@pytest.mark.parametrize(
    ("code", "status", "words"),
    [
        (4, "denied", "no permission to talk to the nvidia driver"),
        (9, "unsupported", "the nvidia driver is not loaded"),
        (18, "broken", "driver/library version mismatch"),
        (18, "broken", "reboot or reload the module"),
        (999, "broken", "NVML did not initialise: Unknown Error"),
    ],
)
def test_nvml_that_does_not_initialise(machine: FakeMachine, code: int, status: str, words: str) -> None:
    machine.nvidia(RTX_4090)
    machine.fault("nvidia.nvmlInitWithFlags", f"status {code}")
    reply = ask("nvml")
    assert reply.status == status
    assert words in (reply.detail or "")


@pytest.mark.parametrize(
    ("code", "status", "words"),
    [
        (10, "denied", "no permission to talk to the amdgpu driver"),
        (34, "unsupported", "the amdgpu driver is not loaded"),
        (7, "broken", "AMD SMI did not initialise: AMDSMI_STATUS_API_FAILED - API call failed"),
    ],
)
def test_amdsmi_that_does_not_initialise(machine: FakeMachine, code: int, status: str, words: str) -> None:
    machine.amd(W7900)
    machine.fault("amd.amdsmi_init", f"status {code}")
    reply = ask("amdsmi")
    assert reply.status == status
    assert words in (reply.detail or "")


@pytest.mark.parametrize(
    ("code", "cell"),
    [
        (3, {"status": "unsupported", "detail": "NVML: Not Supported"}),
        (4, {"status": "denied", "detail": "NVML: Insufficient Permissions"}),
        (13, {"status": "broken", "detail": "NVML: Function Not Found", "code": 13}),
        (15, {"status": "broken", "detail": "NVML: GPU is lost", "code": 15}),
        (999, {"status": "broken", "detail": "NVML: Unknown Error", "code": 999}),
    ],
)
def test_a_field_of_nvml_fails_alone(machine: FakeMachine, code: int, cell: dict[str, object]) -> None:
    machine.nvidia(RTX_4090)
    machine.fault("nvidia.0.nvmlDeviceGetEccMode", f"status {code}")
    device = ask("nvml").data["devices"][0]
    assert device["ecc"] == cell
    assert device["name"] == {"value": RTX_4090.name}


@pytest.mark.parametrize(
    ("code", "status"), [(2, "unsupported"), (3, "unsupported"), (10, "denied"), (31, "absent"), (12, "broken")]
)
def test_a_field_of_amdsmi_fails_alone(machine: FakeMachine, code: int, status: str) -> None:
    machine.amd(W7900)
    machine.fault("amd.0.amdsmi_get_gpu_vbios_info", f"status {code}")
    device = ask("amdsmi").data["devices"][0]
    assert device["vbios"]["status"] == status
    assert device["vbios"]["detail"].startswith("AMD SMI: AMDSMI_STATUS_")
    assert device["bdf"] == {"value": W7900.pci_address}


def test_what_can_be_asked_in_another_way_is(machine: FakeMachine) -> None:
    machine.nvidia(RTX_4090)
    machine.amd(W7900)
    machine.fault("amd.0.amdsmi_get_gpu_memory_total", "status 2")
    machine.fault("amd.0.amdsmi_get_gpu_enumeration_info", "status 2")
    machine.fault("amd.0.amdsmi_get_gpu_total_ecc_count", "status 2")
    device = ask("amdsmi").data["devices"][0]
    assert device["memory"]["value"] == {"total": 48 << 30, "used": 3 << 30}  # the other function counts in MiB
    assert device["uuid"] == {"value": W7900.uuid}  # from the serial of the chip
    assert device["ecc"]["value"]["enabled_blocks"] == W7900.ecc_blocks


def test_a_driver_older_than_the_client(machine: FakeMachine) -> None:
    machine.nvidia(RTX_4090)
    machine.fault("nvidia.0.nvmlDeviceGetComputeRunningProcesses_v3", "status 13")
    processes = ask("nvml").data["devices"][0]["processes"]
    # The fake has no second version either, and the client says so.
    assert processes["status"] == "broken"
    assert "nvmlDeviceGetComputeRunningProcesses" in processes["detail"]


def test_mig_instances_that_cannot_be_asked(machine: FakeMachine) -> None:
    machine.nvidia(A100)
    machine.fault("nvidia.0.nvmlDeviceGetMigDeviceHandleByIndex", "status 4")
    instances = ask("nvml").data["devices"][0]["mig_devices"]["value"]
    assert {cell["status"] for instance in instances for cell in instance.values()} == {"denied"}


def test_no_library_at_all(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("LD_LIBRARY_PATH", "ROCM_PATH", "ROCM_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    nvml, amdsmi = ask("nvml"), ask("amdsmi")
    if nvml.status != "absent" or amdsmi.status != "absent":
        pytest.skip("this machine has a driver library of its own")
    assert nvml.detail is not None
    assert nvml.detail.startswith("NVML is not installed: libnvidia-ml.so.1: cannot open shared object file")
    assert amdsmi.detail is not None
    assert "found no libamd_smi.so" in amdsmi.detail
    assert "Unable to find libamd_smi.so library" in amdsmi.detail  # what amdsmi printed to stdout


def test_a_library_that_is_no_library(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_text("not an ELF file")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    reply = ask("nvml")
    assert reply.status == "broken"
    assert "NVML cannot be loaded" in (reply.detail or "")


def test_amdsmi_of_another_release_than_its_library(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, fake_drivers_cache: Path
) -> None:
    library = incomplete_amdsmi_library(fake_drivers_cache)
    monkeypatch.setenv("ROCM_PATH", str(library))
    monkeypatch.setenv("ROCM_HOME", str(library))
    reply = ask("amdsmi")
    assert reply.status == "broken"
    assert reply.detail is not None
    assert "does not match" in reply.detail
    assert str(library / "lib" / "libamd_smi.so") in reply.detail
    assert "it has no amdsmi_" in reply.detail


def test_amdsmi_whose_library_is_no_library(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libamd_smi.so").write_text("not an ELF file")
    for name in ("LD_LIBRARY_PATH", "ROCM_PATH", "ROCM_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    reply = ask("amdsmi")
    assert reply.status == "broken"
    assert "its library cannot be loaded" in (reply.detail or "")

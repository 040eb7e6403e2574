"""From replies to facts about GPUs, alone and through `discover`."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.host import open_recording
from pytest_gpucoexist.host.base import HelperReply
from pytest_gpucoexist.probes import discover
from pytest_gpucoexist.probes.vendor import vendor_observations
from pytest_gpucoexist.testing.builder import a_machine
from pytest_gpucoexist.testing.vendor_replies import GpuUser, amdsmi_reply, nvml_reply
from tests.vendor.hosts import answering, asking_here
from tests.vendor.machines import A100, GIB, MI210, RTX_4090, W7900

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucoexist.host import Host
    from pytest_gpucoexist.model.machine import Gpu, Machine
    from pytest_gpucoexist.model.readings import Observation
    from tests.fakes.machine import FakeMachine

BUILT = a_machine().with_gpu("rtx4090").with_gpu("rtx4090").with_gpu("rx7900xtx").with_gpu("rx7900xtx")
SEEN = discover(BUILT.host())
FIRST, SECOND = (gpu.pci_address or "" for gpu in SEEN.gpus if gpu.vendor == "nvidia")
AMD_FIRST, AMD_SECOND = (gpu.pci_address or "" for gpu in SEEN.gpus if gpu.vendor == "amd")

ADA = replace(RTX_4090, pci_address=FIRST)
AMPERE = replace(A100, pci_address=SECOND)
NAVI = replace(W7900, pci_address=AMD_FIRST)
CDNA = replace(MI210, pci_address=AMD_SECOND)
LOST = ("broken", "NVML: GPU is lost")


def host(**replies: Any) -> Host:
    return answering(BUILT.host(), **replies)


def observe(vendor: str, **replies: Any) -> list[Observation]:
    return vendor_observations(host(**replies), [vendor], 5.0)[0]


def readings(observation: Observation) -> dict[str, Any]:
    return {
        reading.field: reading.value if reading.status == "ok" else (reading.status, reading.detail)
        for reading in observation.readings
    }


def machine_of(*ask: str, **replies: Any) -> Machine:
    return discover(host(**replies), ask=ask)


def gpu_of(machine: Machine, key: str) -> Gpu:
    gpu = machine.gpu(key)
    assert gpu is not None, [gpu.key for gpu in machine.gpus]
    return gpu


def test_nobody_is_asked_unless_wanted() -> None:
    assert vendor_observations(host(), [], 5.0) == ([], [], [])
    assert vendor_observations(host(), ["intel"], 5.0) == ([], [], [])


def test_what_nvml_says_of_a_gpu() -> None:
    whole, *_ = observe("nvidia", nvml=nvml_reply([ADA, AMPERE], p2p=[(0, 1)]))
    assert (whole.probe, whole.pci_address, whole.partition, whole.creates) == ("nvml", FIRST, None, False)
    told = readings(whole)
    processes = told.pop("processes")
    assert told == {
        "uuid": RTX_4090.uuid,
        "name": RTX_4090.name,
        "vbios_version": RTX_4090.vbios_version,
        "memory_total_bytes": 24 * GIB,
        "memory_free_bytes": 22 * GIB,
        "arch": "8.9",
        "driver_version": "570.133.07",
        "features.ecc": ("unsupported", "NVML: Not Supported"),
        "features.mig": ("unsupported", "NVML: Not Supported"),
        "features.p2p": True,
        "features.large_bar": True,
        "features.fp64": False,
    }
    assert [(process.pid, process.memory_bytes, process.source) for process in processes] == [
        (1, GIB, "nvml"),
        (4194303, None, "nvml"),
    ]
    assert all(reading.source == "nvml" for reading in whole.readings)


def test_what_amdsmi_says_of_a_gpu() -> None:
    first, second = observe("amd", amdsmi=amdsmi_reply([NAVI, CDNA]))
    told = readings(first)
    processes = told.pop("processes")
    assert (first.probe, first.pci_address, first.partition) == ("amdsmi", AMD_FIRST, None)
    assert told == {
        "uuid": W7900.uuid,
        "name": W7900.name,
        "arch": "gfx1100",
        "memory_total_bytes": 48 * GIB,
        "memory_free_bytes": 45 * GIB - 1,
        "driver_version": "6.14.14",
        "vbios_version": "113-D7070100-125",
        "features.ecc": True,
        "features.fp64": False,
        "features.p2p": False,
    }
    assert processes[0].memory_bytes == 2 * GIB
    told = readings(second)
    assert told["features.fp64"] is True
    assert told["uuid"][0] == "unsupported"
    assert told["name"] == ("unsupported", "the library gives no asic")
    assert told["features.ecc"][0] == "unsupported"


def test_runtimes_that_the_libraries_tell() -> None:
    replies = {"nvml": nvml_reply([ADA], cuda_driver_version=12080), "amdsmi": amdsmi_reply([NAVI])}
    runtimes = vendor_observations(host(**replies), ["nvidia", "amd"], 5.0)[2]
    assert [(runtime.name, runtime.version, runtime.vendors, runtime.source) for runtime in runtimes] == [
        ("nvml", "12.570.133.07", ("nvidia",), "nvml"),
        ("cuda", "12.8", ("nvidia",), "nvml"),
        ("amdsmi", "26.0.2", ("amd",), "amdsmi"),
    ]


def test_versions_that_are_not_told_are_no_runtimes() -> None:
    nvml, amdsmi = nvml_reply([ADA]), amdsmi_reply([NAVI])
    for reply in (nvml, amdsmi):
        for name in ("nvml_version", "cuda_driver_version", "library_version"):
            reply[name] = {"status": "broken", "detail": "NVML: Unknown Error"}
    assert vendor_observations(host(nvml=nvml, amdsmi=amdsmi), ["nvidia", "amd"], 5.0)[2] == []


def test_mig_instances_are_devices_of_their_own() -> None:
    machine = machine_of("nvidia", nvml=nvml_reply([ADA, AMPERE]))
    part = gpu_of(machine, f"{SECOND}/mig2.0")
    assert (part.pci_address, part.partition, part.vendor) == (SECOND, "mig2.0", "nvidia")
    assert part.uuid == "MIG-11111111-1111-5111-8111-111111111111"
    assert part.name == "NVIDIA A100-SXM4-40GB MIG 3g.20gb"
    assert (part.memory_total_bytes, part.memory_free_bytes) == (20 * GIB, 19 * GIB)
    assert (part.arch, part.driver, part.numa_node) == ("8.0", "nvidia", gpu_of(machine, SECOND).numa_node)
    assert part.features["mig"]
    assert part.features["ecc"]
    assert part.features["fp64"]
    assert not part.features["p2p"]
    assert [process.pid for process in part.processes or ()] == [1]
    assert gpu_of(machine, f"{SECOND}/mig5.0").memory_total_bytes == 5 * GIB
    assert gpu_of(machine, SECOND).features["mig"]
    assert not [conflict for conflict in machine.conflicts if conflict.kind == "count"]


def test_a_mig_instance_without_numbers_is_left_out() -> None:
    reply = nvml_reply([AMPERE])
    reply["devices"][0]["mig_devices"]["value"][0]["gi"] = {
        "status": "denied",
        "detail": "NVML: Insufficient Permissions",
    }
    parts = [item.partition for item in observe("nvidia", nvml=reply) if item.partition]
    assert parts == ["mig5.0"]


def test_compute_partitions_of_an_instinct() -> None:
    parts = [
        replace(
            CDNA,
            pci_address=f"{AMD_FIRST[:-1]}{number}",
            compute_partition="CPX",
            kfd_node=1 + number,
            partition_id=number,
        )
        for number in range(3)
    ]
    observations = observe("amd", amdsmi=amdsmi_reply(parts))
    told = [(item.pci_address, item.partition, item.creates) for item in observations if item.probe == "amdsmi"]
    assert told == [(AMD_FIRST, "0", True), (AMD_FIRST, "1", True), (AMD_FIRST, "2", True)]


@pytest.mark.parametrize("status", ["absent", "unsupported", "denied", "broken"])
@pytest.mark.parametrize(("vendor", "helper"), [("nvidia", "nvml"), ("amd", "amdsmi")])
def test_a_library_that_does_not_answer_leaves_its_reason(vendor: str, helper: str, status: Any) -> None:
    replies = {helper: HelperReply(status=status, detail="this is why")}
    for observation in observe(vendor, **replies):
        assert {(item.source, item.status, item.detail) for item in observation.readings} == {
            (helper, status, "this is why")
        }
    machine = machine_of(vendor, **replies)
    assert [gpu.key for gpu in machine.gpus] == [gpu.key for gpu in SEEN.gpus]
    if vendor == "nvidia":  # amdgpu tells its memory in sysfs
        fact = gpu_of(machine, "nvidia0").facts["memory_total_bytes"]
        assert (fact.source, fact.status, fact.detail) == (helper, status, "this is why")


def test_a_card_that_another_driver_holds_gets_the_reason_too() -> None:
    built = a_machine().with_gpu("rtx4090").with_wrong_driver("nvidia0", "vfio-pci").with_gpu("rtx4090").host()
    reply = HelperReply(status="absent", detail="NVML is not installed")
    found = vendor_observations(answering(built, nvml=reply), ["nvidia"], 5.0)[0]
    assert [observation.probe for observation in found] == ["nvml-failure", "nvml-failure"]
    assert {readings(observation)["arch"] for observation in found} == {("absent", "NVML is not installed")}


@pytest.mark.parametrize(("model", "vendor"), [("rtx4090", "nvidia"), ("rx7900xtx", "amd")])
def test_a_library_without_its_driver_is_not_called(model: str, vendor: str) -> None:
    """libnvidia-ml makes /dev/nvidiactl when root calls it, loaded module or not: looking must change nothing."""
    built = a_machine().with_gpu(model).with_wrong_driver(f"{vendor}0", None).host()
    answered = answering(built, nvml=HelperReply(status="ok", data=7), amdsmi=HelperReply(status="ok", data=7))
    found = vendor_observations(answered, ["nvidia", "amd"], 5.0)[0]
    (observation,) = (each for each in found if each.pci_address is not None)
    assert not any(each.readings == () for each in found), "a library was called"
    status, detail = readings(observation)["memory_total_bytes"]
    assert status == "unsupported"
    assert "driver is not loaded" in str(detail)


def test_a_function_whose_files_cannot_be_read_is_passed_by() -> None:
    built = BUILT.with_error(f"/sys/bus/pci/devices/{FIRST}/vendor", errno.EIO).host()
    observations, _, _ = vendor_observations(answering(built), ["nvidia"], 5.0)
    assert [observation.pci_address for observation in observations] == [SECOND]


def test_no_reply_and_no_reason() -> None:
    assert readings(observe("nvidia")[0])["uuid"] == ("broken", "the helper gave no reply")
    reply = HelperReply(status="broken")
    assert readings(observe("nvidia", nvml=reply)[0])["uuid"] == ("broken", "no reason given")


@pytest.mark.parametrize("data", [None, 5, "text", [], {}, {"devices": 5}, {"devices": [5]}, {"devices": None}])
@pytest.mark.parametrize(("vendor", "helper"), [("nvidia", "nvml"), ("amd", "amdsmi")])
def test_a_reply_that_makes_no_sense(vendor: str, helper: str, data: Any) -> None:
    (first, *_) = observe(vendor, **{helper: HelperReply(status="ok", data=data)})
    status, detail = readings(first)["memory_total_bytes"]
    assert status == "broken"
    assert detail.startswith("the helper's reply was not understood")


@pytest.mark.parametrize("junk", [None, 5, "text", [], {}, {"value": "x"}, {"value": None}, {"status": "odd"}])
def test_cells_that_make_no_sense_cost_only_themselves(junk: Any) -> None:
    for vendor, helper, reply in (
        ("nvidia", "nvml", nvml_reply([ADA, AMPERE])),
        ("amd", "amdsmi", amdsmi_reply([NAVI, CDNA])),
    ):
        device = reply["devices"][0]
        for name in [name for name in device if name not in {"index", "fault", "pci", "bdf", "uuid"}]:
            changed = {**reply, "devices": [{**device, name: junk}, *reply["devices"][1:]]}
            first = observe(vendor, **{helper: changed})[0]
            told = readings(first)
            assert told["uuid"] == device["uuid"]["value"]
            del told["processes"]
            assert {value[0] for value in told.values() if isinstance(value, tuple)} <= {"broken", "unsupported"}


def test_a_lost_gpu_is_counted_told_and_explained() -> None:
    machine = machine_of("nvidia", nvml=nvml_reply([replace(ADA, fault=LOST), replace(AMPERE, mig=None)]))
    lost, other = gpu_of(machine, FIRST), gpu_of(machine, SECOND)
    assert other.memory_total_bytes == 40 * GIB
    fact = lost.facts["memory_total_bytes"]
    assert (fact.source, fact.status) == ("nvml", "broken")
    assert "GPU is lost" in (fact.detail or "")
    (conflict,) = [conflict for conflict in machine.conflicts if conflict.kind == "device-fault"]
    assert conflict.message == "NVML counts device 0 and cannot ask it: NVML: GPU is lost"
    assert not [conflict for conflict in machine.conflicts if conflict.kind == "count"]


def test_a_fault_of_an_unknown_status_is_broken() -> None:
    reply = nvml_reply([replace(ADA, fault=("odd", "words")), AMPERE])
    left_out = [item for item in observe("nvidia", nvml=reply) if item.probe == "nvml-failure"]
    assert readings(left_out[0])["arch"][0] == "broken"


def test_a_gpu_that_nvml_leaves_out() -> None:
    machine = machine_of("nvidia", nvml=nvml_reply([ADA]))
    fact = gpu_of(machine, SECOND).facts["memory_total_bytes"]
    assert (fact.status, fact.detail) == ("absent", "nvml lists 1 GPUs and not this one")
    assert [conflict.claims for conflict in machine.conflicts if conflict.kind == "count"] == [{"nvml": 1, "pci": 2}]


def test_a_gpu_that_only_nvml_shows() -> None:
    """WSL2: NVML gives the address that the GPU has under Windows."""
    elsewhere = replace(ADA, pci_address="0000:99:00.0", uuid="GPU-99999999-9999-9999-9999-999999999999")
    machine = machine_of("nvidia", nvml=nvml_reply([elsewhere]))
    gpu = gpu_of(machine, "GPU-99999999-9999-9999-9999-999999999999")
    assert (gpu.pci_address, gpu.vendor, gpu.vendor_id, gpu.device_id) == (None, "nvidia", "0x10de", "0x2684")
    assert gpu.memory_total_bytes == 24 * GIB
    (conflict,) = [conflict for conflict in machine.conflicts if conflict.kind == "no-pci-function"]
    assert "0000:99:00.0" in conflict.message


def test_a_gpu_without_an_address_is_keyed_by_its_uuid() -> None:
    """Jetson: NVML knows no PCI function."""
    reply = nvml_reply([ADA])
    reply["devices"][0]["pci"] = {"status": "unsupported", "detail": "NVML: Not Supported"}
    (observation, *_) = observe("nvidia", nvml=reply)
    assert (observation.pci_address, observation.uuid, observation.creates) == (None, RTX_4090.uuid, True)
    assert "device_id" not in readings(observation)
    reply["devices"][0]["uuid"] = {"status": "unsupported", "detail": "NVML: Not Supported"}
    (observation, *_) = observe("nvidia", nvml=reply)
    assert not observation.creates


def test_without_a_pci_bus_nvml_is_believed() -> None:
    empty = a_machine().with_file("/dev/dxg", "").host()
    (observation,) = vendor_observations(answering(empty, nvml=nvml_reply([RTX_4090])), ["nvidia"], 5.0)[0]
    if empty.exists("/sys/bus/pci/devices"):
        assert observation.pci_address is None
    else:
        assert observation.pci_address == RTX_4090.pci_address
    assert observation.creates


def test_a_process_is_listed_once_and_told_whether_it_can_be_seen() -> None:
    users = (
        GpuUser(pid=10, memory_bytes=5),
        GpuUser(pid=10, memory_bytes=7, kind="graphics"),
        GpuUser(pid=11),
        GpuUser(pid=12, memory_bytes=1),
    )
    built = BUILT.with_file("/proc/10/comm", "python3\n").with_file("/proc/12/stat", "12 (x) S\n").host()
    reply = nvml_reply([replace(ADA, processes=users)])
    (observation, *_) = vendor_observations(answering(built, nvml=reply), ["nvidia"], 5.0)[0]
    told = [(each.pid, each.memory_bytes, each.name, each.visible) for each in readings(observation)["processes"]]
    assert told == [(10, 7, "python3", True), (11, None, None, False), (12, 1, None, True)]


def test_p2p_needs_a_peer_that_reads_and_writes() -> None:
    assert readings(observe("nvidia", nvml=nvml_reply([ADA]))[0])["features.p2p"][0] == "unsupported"
    assert readings(observe("nvidia", nvml=nvml_reply([ADA, AMPERE]))[0])["features.p2p"] is False
    assert readings(observe("amd", amdsmi=amdsmi_reply([NAVI, CDNA], p2p=[(0, 1)]))[0])["features.p2p"] is True
    assert readings(observe("amd", amdsmi=amdsmi_reply([NAVI]))[0])["features.p2p"][0] == "unsupported"


def test_a_small_bar_is_told() -> None:
    (_, second, *_rest) = observe("nvidia", nvml=nvml_reply([ADA, replace(AMPERE, mig=None)]))
    assert readings(second)["features.large_bar"] is False


def test_a_client_that_something_shadows_is_a_conflict() -> None:
    reply = nvml_reply([ADA])
    reply["client"] |= {"path": "/site/pynvml.py", "shadowed_by": "/site/pynvml/__init__.py"}
    (conflict,) = vendor_observations(host(nvml=reply), ["nvidia"], 5.0)[1]
    assert (conflict.subject, conflict.kind) == ("pynvml", "import")
    assert "/site/pynvml/__init__.py" in conflict.message
    assert conflict.claims == {"pynvml": "/site/pynvml/__init__.py", "nvidia-ml-py": "/site/pynvml.py"}


def test_both_vendors_through_the_real_clients(machine: FakeMachine) -> None:
    machine.nvidia(ADA, AMPERE, driver_version="580.65.06")
    machine.amd(NAVI, CDNA)
    found = discover(asking_here(BUILT.host()), ask=["nvidia", "amd"], deadline_s=30)
    assert gpu_of(found, FIRST).memory_free_bytes == 22 * GIB
    assert gpu_of(found, f"{SECOND}/mig5.0").uuid == "MIG-22222222-2222-5222-8222-222222222222"
    assert {runtime.name for runtime in found.runtimes} >= {"nvml", "cuda", "amdsmi"}
    assert [(c.kind, sorted(map(str, c.claims.values()))) for c in found.conflicts if c.subject == FIRST][:1] == [
        ("driver_version", ["570.133.07", "580.65.06"])
    ]
    assert set(machine.calls()) >= {"nvmlInitWithFlags", "nvmlShutdown", "amdsmi_init", "amdsmi_shut_down"}


def test_a_recording_of_one_card_is_not_judged_by_an_nvml_that_nobody_recorded(shared: Path) -> None:
    host = open_recording(str(shared / "machines/lact/lact-nvidia-rtx4080.tar.xz"))
    (gpu,) = discover(host, ask=["nvidia"]).gpus
    assert gpu.usable.cuda
    assert "assumed" in str(gpu.facts["usable.cuda"].detail)

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.host import local_host
from pytest_gpucoexist.host.base import HelperReply
from pytest_gpucoexist.model.machine import Conflict, Machine, Runtime
from pytest_gpucoexist.model.readings import Observation, Reading
from pytest_gpucoexist.probes import discover
from tests.probes.sysfs import a_workstation, as_host, host_of, watched

if TYPE_CHECKING:
    from collections.abc import Callable


STEPS = {
    "PCI": "pci.scan",
    "DRM": "drm.cards_only",
    "NUMA": "numa.nodes",
    "DRM nodes": "drm.observe",
    "the NVIDIA driver": "nvidia.observe",
    "amdgpu": "amd.observe",
    "i915 and xe": "intel.observe",
    "platforms without PCI": "platform.observe",
    "KFD": "kfd.observe",
    "vendor libraries": "vendor.vendor_observations",
    "pci.ids": "names.observe",
    "NVIDIA versions": "nvidia.conflicts",
    "drivers (amd)": "amd.drivers",
    "access": "access.judge",
    "processes": "usage.processes",
    "runtimes": "find_runtimes",
    "masks": "apply_masks",
    "merge": "merge",
}


def breaking(*_args: Any, **_kwargs: Any) -> Any:
    raise RuntimeError("this probe has a bug")


@pytest.mark.parametrize("name", STEPS)
def test_a_probe_that_breaks_costs_what_it_would_have_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = discover(host_of(a_workstation().tree), ask=["nvidia"])
    monkeypatch.setattr(f"pytest_gpucoexist.probes.discovery.{STEPS[name]}", breaking)
    machine = discover(host_of(a_workstation().tree), ask=["nvidia"])
    broken = [item for item in machine.conflicts if item.kind == "probe"]
    assert [item.subject for item in broken] == [name]
    assert "RuntimeError: this probe has a bug" in broken[0].message
    if name not in {"PCI", "merge"}:
        assert [gpu.key for gpu in machine.gpus] == [gpu.key for gpu in whole.gpus]
        assert [gpu.vendor_id for gpu in machine.gpus] == [gpu.vendor_id for gpu in whole.gpus]
    assert Machine.from_json(machine.to_json()) == machine


@pytest.mark.parametrize("platform", ["win32", "darwin"])
def test_other_systems_have_no_gpus_and_nothing_is_read(platform: str) -> None:
    watching = watched(a_workstation().tree, platform=platform)
    machine = discover(as_host(watching), ask=["nvidia", "amd"])
    assert machine.gpus == ()
    assert machine.notes == (f"platform {platform}: GPUs are looked for on Linux only",)
    assert watching.reads == []


def test_this_machine_is_looked_at_without_an_error() -> None:
    machine = discover(local_host())
    assert not machine.simulated
    assert [item.message for item in machine.conflicts if item.kind == "probe"] == []
    assert Machine.from_json(machine.to_json()) == machine


def test_without_asking_no_helper_is_called_and_no_process_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_gpucoexist.probes.discovery.usage.processes", breaking)
    watching = watched(a_workstation().tree)
    monkeypatch.setattr(watching, "ask_all", breaking, raising=False)
    machine = discover(as_host(watching))
    assert machine.conflicts == ()
    assert {gpu.processes for gpu in machine.gpus} == {None}
    assert not any(path.endswith(("/fd", "/fdinfo")) for path in watching.reads)


def test_both_vendors_are_asked_at_once_with_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[tuple[str, ...], float]] = []

    def ask_all(helpers: list[str], request: object = None, *, deadline_s: float = 5.0) -> dict[str, HelperReply]:
        asked.append((tuple(helpers), deadline_s))
        return {name: HelperReply(status="broken", detail="no answer in 0.5 s") for name in helpers}

    watching = watched(a_workstation().tree)
    monkeypatch.setattr(watching, "ask_all", ask_all, raising=False)
    machine = discover(as_host(watching), ask={"amd", "nvidia"}, deadline_s=0.5)
    assert asked == [(("nvml", "amdsmi"), 0.5)]
    assert machine.asked == ("amd", "nvidia")
    gpu = machine.gpus[1]
    assert (gpu.vendor_id, gpu.numa_node, gpu.link.current_width) == ("0x10de", 0, 16)
    assert gpu.facts["uuid"].status == "broken"
    assert "no answer in 0.5 s" in str(gpu.facts["uuid"].detail)


@pytest.mark.parametrize(
    ("told", "status"),
    [
        ([Observation(probe="nvml", pci_address="0000:43:00.0")], "ok"),
        (
            [
                Observation(
                    probe="nvml-failure",
                    pci_address="0000:43:00.0",
                    readings=(Reading(field="uuid", value=None, source="nvml", status="broken", detail="hung"),),
                )
            ],
            "broken",
        ),
        ([], "absent"),
        ([Observation(probe="nvml-failure")], "absent"),
    ],
)
def test_access_is_judged_with_what_came_of_asking_nvml(
    told: list[Observation], status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []

    def judge(_host: object, machine: Machine, *, nvml: Any) -> Machine:
        seen.append(nvml)
        return machine

    conflict = Conflict(subject="pynvml", kind="import", message="shadowed")
    runtime = Runtime(name="nvml", kind="runtime", version="12.595")
    monkeypatch.setattr(
        "pytest_gpucoexist.probes.discovery.vendor.vendor_observations", lambda *_: (told, [conflict], [runtime])
    )
    monkeypatch.setattr("pytest_gpucoexist.probes.discovery.access.judge", judge)
    machine = discover(host_of(a_workstation().tree), ask=["nvidia"])
    discover(host_of(a_workstation().tree), ask=["amd"])
    assert [getattr(fact, "status", None) for fact in seen] == [status, None]
    assert conflict in machine.conflicts
    assert runtime in machine.runtimes


def test_the_masks_of_the_caller_are_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    watching = watched(a_workstation().tree)
    monkeypatch.setattr(watching, "environ", {"CUDA_VISIBLE_DEVICES": "1"}, raising=False)
    machine = discover(as_host(watching))
    assert {mask.variable for mask in machine.masks} == {"CUDA_VISIBLE_DEVICES"}
    assert [gpu.visible for gpu in machine.gpus if gpu.vendor == "nvidia"] == [False, True]


def test_the_exports_are_the_folders_public_face() -> None:
    from pytest_gpucoexist import probes

    assert probes.__all__ == ["discover"]
    function: Callable[..., Machine] = probes.discover
    assert callable(function)

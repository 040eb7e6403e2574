"""Whatever stands in the files, no gate of drivers and modules breaks; and none has anything against this computer."""

from __future__ import annotations

import errno
import gzip
from functools import cache
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings, strategies as st

from pytest_gpucoexist.gates.catalogue import all_gates
from pytest_gpucoexist.gates.runner import judge
from pytest_gpucoexist.host.anonymise import anonymised
from pytest_gpucoexist.host.caller import people_of
from pytest_gpucoexist.host.local import LocalHost
from pytest_gpucoexist.host.recording import RecordingHost
from pytest_gpucoexist.host.replay import ReplayHost
from tests.gates.judging import judged, subject_of
from tests.gates.kernel_module.installed import (
    FOLDER,
    KERNEL,
    LIB,
    a_module,
    booted_with,
    folder_of,
    wanting,
    with_modules,
)

if TYPE_CHECKING:
    from pytest_gpucoexist.gates.registry import Gate
    from pytest_gpucoexist.model.verdicts import Judgement
    from pytest_gpucoexist.testing.builder import MachineBuilder

DRIVER = ("bound", "crash", "inventory", "nvidia_build", "partition", "versions")
ADDRESSES = {"nvidia": "0000:01:00.0", "amd": "0000:04:00.0", "intel": "0000:00:02.0"}


@cache
def gates() -> list[Gate]:
    """The gates of this folder and its neighbour."""
    ours = (
        "pytest_gpucoexist.gates.kernel_module.",
        *(f"pytest_gpucoexist.gates.driver.{name}" for name in DRIVER),
    )
    return [gate for gate in all_gates() if gate.check is not None and gate.check.__module__.startswith(ours)]


@cache
def healthy() -> MachineBuilder:
    """A workstation of three vendors on which every file is there that these gates read."""
    machine = with_modules(
        wanting("rtx4090", "rx7900xtx", "uhd770"),
        {
            "updates/dkms/nvidia.ko": a_module("nvidia", version="570.133.07"),
            "updates/dkms/nvidia-uvm.ko": a_module("nvidia_uvm", version="570.133.07"),
            "kernel/drivers/gpu/drm/amd/amdgpu/amdgpu.ko": a_module("amdgpu", srcversion="6EE36B336CBB156C922FD9B"),
            "kernel/drivers/gpu/drm/i915/i915.ko": a_module("i915", signed=True),
            "kernel/drivers/gpu/drm/nouveau/nouveau.ko": a_module("nouveau"),
        },
    )
    files: dict[str, str | bytes] = {
        "/etc/modprobe.d/nvidia.conf": "blacklist nouveau\noptions nvidia-drm modeset=1\n",
        "/sys/module/amdgpu/srcversion": "6EE36B336CBB156C922FD9B\n",
        "/sys/module/amdgpu/parameters/gpu_recovery": "-1\n",
        "/sys/module/nvidia_drm/parameters/modeset": "Y\n",
        "/proc/driver/nvidia/params": 'EnableGpuFirmware: 18\nRegistryDwords: ""\n',
        "/proc/sys/kernel/tainted": "12288\n",
        "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c": b"\6\0\0\0\0",
        "/sys/kernel/security/lockdown": "[none] integrity confidentiality\n",
        "/lib/firmware/nvidia/570.133.07/gsp_ga10x.bin": "",
        "/proc/config.gz": gzip.compress(b"CONFIG_HSA_AMD=y\n", mtime=0),
        "/sys/class/devcoredump/disabled": "0\n",
        f"/var/lib/dkms/nvidia/570.133.07/{KERNEL}/x86_64/module/nvidia.ko": "",
        f"{folder_of(machine, ADDRESSES['intel'])}/drm/card0/error": "No error state collected\n",
    }
    for path, content in files.items():
        machine = machine.with_file(path, content)
    machine = machine.with_link(f"/var/lib/dkms/nvidia/kernel-{KERNEL}-x86_64", f"570.133.07/{KERNEL}/x86_64")
    return booted_with(machine, "iommu=pt")


PATHS = (
    "/etc/modprobe.d/nvidia.conf",
    "/etc/os-release",
    "/proc/cmdline",
    "/proc/config.gz",
    "/proc/driver/nvidia/gpus/0000:01:00.0/information",
    "/proc/driver/nvidia/params",
    "/proc/driver/nvidia/version",
    "/proc/modules",
    "/proc/sys/kernel/osrelease",
    "/proc/sys/kernel/tainted",
    "/sys/devices/virtual/kfd/kfd/topology/generation_id",
    "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c",
    "/sys/kernel/security/lockdown",
    "/sys/module/amdgpu/initstate",
    "/sys/module/amdgpu/parameters/gpu_recovery",
    "/sys/module/amdgpu/srcversion",
    "/sys/module/amdgpu/taint",
    "/sys/module/nvidia/initstate",
    "/sys/module/nvidia/version",
    "/sys/module/nvidia_drm/parameters/modeset",
    f"{FOLDER}/modules.builtin",
    f"{FOLDER}/modules.dep",
    f"{FOLDER}/updates/dkms/nvidia.ko",
    f"{FOLDER}/kernel/drivers/gpu/drm/amd/amdgpu/amdgpu.ko",
)

garbage = st.binary(max_size=60) | st.text(max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass"))


def asked(machine: MachineBuilder) -> Judgement:
    return judge(subject_of(machine), gates=gates())


def test_a_healthy_workstation_of_three_vendors() -> None:
    judgement = asked(healthy())
    assert len({gate.id for gate in gates()}) >= 25
    bad = [(each.id, each.status, each.reason) for each in judgement.verdicts if each.status not in {"PASS", "SKIP"}]
    assert bad == []
    assert judgement.fit
    passed = [gate for gate, status in judgement.by_gate().items() if status == "PASS"]
    assert len(passed) >= 20


@settings(max_examples=60)
@given(st.dictionaries(st.sampled_from(PATHS), garbage, min_size=1, max_size=8))
def test_no_gate_breaks_on_garbage(files: dict[str, bytes]) -> None:
    machine = healthy()
    for path, content in files.items():
        machine = machine.with_file(path, content)
    broken = [(each.id, each.detail) for each in asked(machine).verdicts if each.status == "ERROR"]
    assert broken == []


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.ENOENT, errno.ENODATA, errno.EISDIR])
def test_no_gate_breaks_where_nothing_can_be_read(code: int) -> None:
    machine = healthy()
    for path in PATHS:
        machine = machine.with_error(path, code)
    statuses = {each.id: each.status for each in asked(machine).verdicts}
    assert "ERROR" not in statuses.values()
    for unread in ("kmod.taint", "kmod.nv.params", "kmod.vermagic", "kmod.amd.origin"):
        assert statuses[unread] in {"UNKNOWN", "SKIP", "WARN"}, unread


def test_this_computer_has_nothing_against_it() -> None:
    """A machine without GPUs, or with GPUs in order: no gate fails."""
    judgement = judged(LocalHost(), "drv.bound_driver", "drv.inventory", "drv.nv.s*", "kmod.*", level="quick")
    assert [each.reason for each in judgement.verdicts if each.status in {"FAIL", "ERROR"}] == []


def test_the_libraries_that_make_a_vendor_wanted_are_where_the_tests_put_them() -> None:
    subject = subject_of(healthy())
    assert subject.wanted("nvidia") == f"{LIB}/libcuda.so.570.133.07 is installed"
    assert subject.wanted("amd") == "/opt/rocm is installed"
    assert subject.wanted("intel") == f"{LIB}/libze_loader.so.1 is installed"


def test_a_record_says_the_same_as_the_machine() -> None:
    """Modules are too large for a record: without modinfo's answers, which a record keeps, they are unknown in it."""
    machine = booted_with(healthy(), "nomodeset", "rd.driver.blacklist=nova_core", "root=LABEL=secret")
    recording = RecordingHost(machine.host())
    first = judge(subject_of(recording), gates=gates())
    tree, manifest = anonymised(*recording.recorded(), people_of(recording))
    second = judge(subject_of(ReplayHost(tree, manifest, name="record")), gates=gates())
    of_files = {"drv.amd.disk_vs_loaded", "drv.nv.disk_vs_loaded", "kmod.vermagic"}

    def said(judgement: Judgement) -> list[tuple[str, str, str]]:
        return [(each.id, each.status, each.reason) for each in judgement.verdicts if each.id not in of_files]

    assert said(first) == said(second)
    assert {each.status for each in second.verdicts if each.id in of_files} == {"UNKNOWN"}
    assert tree.read("/proc/cmdline", 4096) == b"ro quiet nomodeset rd.driver.blacklist=nova_core\n"

"""AMD's and Intel's runtimes: HSA, HIP and Level Zero load and initialise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.gates.asked import VENDOR_NAMES, asked_by_name, promise_of
from pytest_gpucoexist.gates.boards import no_reply
from pytest_gpucoexist.gates.driver_l1.answers import cause_of, driven, hung
from pytest_gpucoexist.gates.findings import Finding, failed, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.gates.vendors import library_reply
from pytest_gpucoexist.model.verdicts import Evidence
from pytest_gpucoexist.probes.cells import value_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.host.base import HelperReply
    from pytest_gpucoexist.model.machine import Gpu

_MASKS = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
_HIP = {100: "no device", 101: "invalid device", 3: "not initialized"}  # hip_runtime_api.h, hipError_t
_HSA = {4096: "error", 4104: "out of resources, mostly /dev/kfd that may not be opened"}  # hsa.h, hsa_status_t
_ZE = {0x78000001: "uninitialized: no driver found a GPU", 0x70010000: "insufficient permissions"}  # ze_api.h


@gate(
    "lib.amd.hip",
    group="libraries",
    title="HIP initialises and counts GPUs",
    reads="libamdhip64 loaded in a process of its own, hipInit(0) and hipGetDeviceCount; no context is made",
    criterion="0, and at least one GPU where ROCm can use one and no mask is set",
    why="Every ROCm program fails at its first call.",
    action="Look at lib.amd.hsa; install the ROCm release that supports this gfx target",
    source="ROCm/hip#3180; ROCm/ROCmValidationSuite rcqt.so",
    vendors=("amd",),
    level="standard",
    severity="fail",
)
def hip(subject: Subject) -> Iterator[Finding]:
    """Judge where KFD has a GPU that this process may use."""
    yield _amd(subject, "hip")


@gate(
    "lib.amd.hsa",
    group="libraries",
    title="HSA initialises",
    reads="libhsa-runtime64 loaded in a process of its own, hsa_init",
    criterion="0",
    why="HIP, OpenCL and OpenMP on AMD GPUs stand on it; one render node that may not be opened hides all GPUs.",
    action="Join the groups render and video; see dev.amd.kfd and dev.render",
    source="ROCm/rocminfo#34; hsa.h",
    vendors=("amd",),
    level="standard",
    severity="fail",
)
def hsa(subject: Subject) -> Iterator[Finding]:
    """Judge where KFD has a GPU that this process may use."""
    yield _amd(subject, "hsa")


def _amd(subject: Subject, part: str) -> Finding:
    name = {"hip": "HIP", "hsa": "HSA"}[part]
    on = [gpu for gpu in driven(subject, "amd") if gpu.kfd is not None]
    if not on:
        return skipped(f"no AMD GPU here is in KFD; {name} has nothing to use")
    reply = library_reply(subject, "hip")
    told = reply.data.get(part) if isinstance(reply.data, dict) else None
    if reply.status != "ok":
        return _refused(subject, reply, name, on, "amd")
    if not isinstance(told, dict):
        return unknown(f"what the helper says of {name} makes no sense", on=on)
    if "status" in told:
        evidence = Evidence(source=name, found=str(told.get("detail")), expected="it loads")
        if told["status"] == "absent":
            return skipped(f"{name} is not installed", on=on)
        return failed(f"{name} does not load: {told.get('detail')}", evidence, on=on)
    code, count = value_of(told, "init"), value_of(told, "count")
    evidence = Evidence(source=f"{name}: initialise", found=f"{code}, {count} GPUs" if part == "hip" else str(code))
    if isinstance(code, bool) or not isinstance(code, int):
        return unknown(f"what the helper says of {name} makes no sense", evidence, on=on)
    masked = next((each for each in _MASKS if subject.host.environ.get(each) is not None), None)
    usable = any(gpu.usable.rocm for gpu in on)
    words = (_HIP if part == "hip" else _HSA).get(code, f"code {code}")
    if code != 0 and masked is not None and part == "hip":
        return skipped(f"{masked} is set, and {name} finds no device that it leaves", on=on)
    if code != 0 and not usable:
        return warned(f"{name} does not initialise ({words}), and this process may not use these GPUs", evidence, on=on)
    if code != 0:
        return failed(f"{name} does not initialise: {words} ({code})", evidence, on=on)
    if part == "hip" and count == 0 and masked is None and usable:
        return failed("HIP initialises and counts no GPU", evidence, on=on)
    return passed(f"{name} initialises", evidence, on=on)


@gate(
    "lib.levelzero",
    group="libraries",
    title="Level Zero initialises",
    reads="libze_loader.so.1 loaded in a process of its own, zeInit for GPUs",
    criterion="0",
    why="SYCL and PyTorch on Intel GPUs stand on it.",
    action="Install intel-level-zero-gpu; join the group render",
    source="intel/xpumanager; ze_api.h ze_result_t",
    vendors=("intel",),
    level="standard",
    severity="fail",
)
def levelzero(subject: Subject) -> Iterator[Finding]:
    """Put the result of zeInit into words. A machine that only shows its desktop on Intel needs none of it."""
    on = driven(subject, "intel")
    if not on:
        yield skipped("no Intel GPU here is held by i915 or xe")
        return
    reply = library_reply(subject, "levelzero")
    if reply.status != "ok":
        yield _refused(subject, reply, "Level Zero", on, "intel")
        return
    code = value_of(reply.data, "init")
    evidence = Evidence(source="zeInit", found=f"{code:#x}" if isinstance(code, int) else str(code), expected="0x0")
    if isinstance(code, bool) or not isinstance(code, int):
        yield unknown("what the helper says of zeInit makes no sense", evidence, on=on)
    elif code == 0:
        yield passed("Level Zero initialises", evidence, on=on)
    else:
        words = _ZE.get(code, f"result {code:#x}")
        say: Any = failed if promise_of(subject, "intel") else warned
        yield say(f"Level Zero does not initialise: {words}", evidence, on=on)


def _refused(subject: Subject, reply: HelperReply, name: str, on: list[Gpu], vendor: str) -> Finding:
    """Say why a library was not loaded; one that is not installed is a fault where its vendor is promised."""
    cause = cause_of(reply)
    evidence = Evidence(source=name, found=reply.detail or reply.status, expected="it loads")
    if cause == "library":
        return failed(f"{name} does not load: {reply.detail}", evidence, on=on)
    if cause == "no-library":
        promise, asked = promise_of(subject, vendor), asked_by_name(subject, vendor)
        if promise is not None:
            return failed(f"{name} is not installed, and {promise}", evidence, on=on)
        if asked is not None:
            return warned(f"{name} is not installed, and {asked}", evidence, on=on)
        return skipped(f"{name} is not installed, and no test here asks for {VENDOR_NAMES[vendor]}", on=on)
    if hung(reply) is not None:
        return unknown(f"{name}: {reply.detail}; see drv.query_timeout", on=on)
    return no_reply(reply, name, tuple(on))

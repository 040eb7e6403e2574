"""NVIDIA's libraries: libcuda and NVML load and initialise, and CUDA runtimes are not newer than the driver."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.boards import no_reply
from pytest_gpucoexist.gates.driver_l1.answers import TEGRA, cause_of, driven, hung
from pytest_gpucoexist.gates.findings import Finding, failed, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.gates.vendors import library_reply, vendor_reply
from pytest_gpucoexist.model.verdicts import Evidence
from pytest_gpucoexist.probes.cells import value_of
from pytest_gpucoexist.probes.platform import WSL_DRIVER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.host.base import HelperReply
    from pytest_gpucoexist.model.machine import Gpu

# cuda.h, CUresult.
_NO_DEVICE = 100
_RESULTS = {
    3: ("not initialized", "look at the driver's messages in the kernel log"),
    100: ("no device", "look at device nodes, masks, and MIG boards without an instance"),
    101: ("invalid device", "reboot"),
    802: ("system not ready", "start nvidia-fabricmanager, which boards with NVSwitch need"),
    803: ("system driver mismatch", "reboot after the upgrade of the driver; in a container, restart it"),
    804: ("forward compatibility is not supported here", "take CUDA's compat folder out of LD_LIBRARY_PATH"),
    999: ("unknown error", "load nvidia_uvm, and look at the rights of /dev/nvidia-uvm; after a suspend, reload it"),
}
_MAJOR = re.compile(r"(\d{1,3})\.")


@gate(
    "lib.nv.libcuda",
    group="libraries",
    title="CUDA initialises",
    reads="libcuda.so.1 loaded in a process of its own, cuInit(0); no context is made",
    criterion="0",
    why="Every CUDA program fails at its first call.",
    action="Look at the code: it says which part of the driver is missing",
    source="NVIDIA/DCGM Software.cpp libcudaCheck; gorgonia/cu#2; cuda.h CUresult",
    vendors=("nvidia",),
    level="standard",
    severity="fail",
)
def libcuda(subject: Subject) -> Iterator[Finding]:
    """Put the result of cuInit into words."""
    on = driven(subject, "nvidia")
    if not on:
        yield skipped("no NVIDIA GPU here is held by nvidia")
        return
    reply = library_reply(subject, "cuda")
    if reply.status != "ok":
        yield _not_loaded(subject, reply, "libcuda.so.1", "CUDA", on)
        return
    code = value_of(reply.data, "init")
    evidence = Evidence(source="cuInit", found=str(code), expected="0")
    mask = subject.host.environ.get("CUDA_VISIBLE_DEVICES")
    if isinstance(code, bool) or not isinstance(code, int):
        yield unknown("what the helper says of cuInit makes no sense", evidence, on=on)
    elif code == 0:
        yield passed("CUDA initialises", evidence, on=on)
    elif code == _NO_DEVICE and mask is not None:
        yield skipped(f"CUDA_VISIBLE_DEVICES={mask} leaves no device", on=on)
    else:
        words, action = _RESULTS.get(code, (f"CUresult {code}", "look the code up in cuda.h"))
        action = action[0].upper() + action[1:]
        yield failed(f"CUDA does not initialise: {words} ({code})", evidence, on=on, action=action)


@gate(
    "lib.nv.nvml",
    group="libraries",
    title="Libnvidia-ml loads",
    reads="libnvidia-ml.so.1 loaded in a process of its own; its version against the driver's",
    criterion="it loads, and is of the driver's release",
    why="nvidia-smi and every monitor need it; one of another release refuses the driver.",
    action="Install the user-space part of the driver that is loaded",
    source="NVIDIA/DCGM nvvs/src/Software.cpp",
    vendors=("nvidia",),
    level="standard",
    severity="fail",
)
def libnvidia_ml(subject: Subject) -> Iterator[Finding]:
    """Tell a library that does not load from one that loads and finds no driver."""
    on = driven(subject, "nvidia")
    if not on:
        yield skipped("no NVIDIA GPU here is held by nvidia")
        return
    reply = vendor_reply(subject, "nvidia")
    cause = cause_of(reply)
    own = value_of(reply.data, "nvml_version")
    evidence = Evidence(source="libnvidia-ml.so.1", found=f"{own or reply.detail}", expected="it loads")
    if reply.status == "ok":
        driver = value_of(reply.data, "driver_version")
        if not isinstance(own, str) or not isinstance(driver, str):
            yield unknown("the library does not tell its version", evidence, on=on)
        elif all(gpu.driver == WSL_DRIVER for gpu in on):
            passing = f"libnvidia-ml {own.partition('.')[2]} of WSL loads, for the driver {driver} of Windows"
            yield passed(passing, evidence, on=on)
        elif own.partition(".")[2] != driver:
            yield failed(f"libnvidia-ml is {own.partition('.')[2]}, the driver {driver}", evidence, on=on)
        else:
            yield passed(f"libnvidia-ml {driver} loads", evidence, on=on)
    elif cause in {"not-loaded", "denied", "lost", "unknown"}:
        yield passed("libnvidia-ml loads; see drv.nv.nvml_init", evidence, on=on)
    elif cause == "mismatch":
        yield failed("libnvidia-ml is of another release than the driver", evidence, on=on)
    else:
        yield _not_loaded(subject, reply, "libnvidia-ml.so.1", "NVML", on)


@gate(
    "lib.nv.cudart",
    group="libraries",
    title="CUDA runtimes are not newer than the driver",
    reads="the versions of the CUDA runtimes that are installed; cuDriverGetVersion, else NVML",
    criterion="no runtime of a later major version than the driver's",
    why="Such a runtime fails with cudaErrorInsufficientDriver (35), or only at its first kernel.",
    action="Upgrade the driver, or install packages that are built for its CUDA version",
    source="NVIDIA/DCGM cudart and cublas check; CUDA compatibility guide",
    vendors=("nvidia",),
    level="standard",
)
def cudart(subject: Subject) -> Iterator[Finding]:
    """Compare major versions: minor versions of one major version work together."""
    on = driven(subject, "nvidia")
    if not on:
        yield skipped("no NVIDIA GPU here is held by nvidia")
        return
    runtimes = {
        (runtime.path or runtime.distribution or runtime.name): runtime.version
        for runtime in subject.machine.runtimes
        if runtime.name == "cudart" and runtime.version is not None and _MAJOR.match(runtime.version)
    }
    if not runtimes:
        yield skipped("no CUDA runtime is installed for this interpreter")
        return
    cuda, nvml = library_reply(subject, "cuda"), vendor_reply(subject, "nvidia")
    number = value_of(cuda.data, "driver_version") or value_of(nvml.data, "cuda_driver_version")
    if isinstance(number, bool) or not isinstance(number, int) or number < 1000:
        silent = next((reply for reply in (cuda, nvml) if reply.status != "ok"), None)
        missing = unknown("the driver does not tell its CUDA version", on=on)
        yield missing if silent is None else no_reply(silent, "CUDA", tuple(on))
        return
    driver = f"{number // 1000}.{number % 1000 // 10}"
    newer = {path: version for path, version in runtimes.items() if int(version.partition(".")[0]) > number // 1000}
    evidence = [
        Evidence(source=path, found=version, expected=f"at most {number // 1000}.x")
        for path, version in (newer or runtimes).items()
    ]
    if newer:
        words = ", ".join(dict.fromkeys(newer.values()))
        yield warned(f"a CUDA runtime {words} is installed, and the driver has CUDA {driver}", *evidence, on=on)
    else:
        yield passed(f"no CUDA runtime is newer than the driver's CUDA {driver}", *evidence, on=on)


def _not_loaded(subject: Subject, reply: HelperReply, library: str, name: str, on: list[Gpu]) -> Finding:
    """Say why a library was not loaded; one that is only not installed is a fault where NVIDIA is wanted."""
    cause = cause_of(reply)
    evidence = Evidence(source=library, found=reply.detail or reply.status, expected="it loads")
    if cause == "library":
        return failed(f"{library} does not load: {reply.detail}", evidence, on=on)
    if cause == "no-library":
        wanted = subject.wanted("nvidia")
        if name == "NVML" and all(gpu.driver in TEGRA for gpu in on):
            return skipped(f"{library} is not installed: a Jetson has it from JetPack 6 on", on=on)
        if wanted is None:
            return skipped(f"{library} is not installed, and nobody wants NVIDIA here", on=on)
        return failed(f"{library} is not installed, and {wanted}", evidence, on=on)
    if hung(reply) is not None:
        return unknown(f"{name}: {reply.detail}; see drv.query_timeout", on=on)
    return no_reply(reply, name, tuple(on))

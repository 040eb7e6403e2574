"""Gates about visibility variables. What each comes to was found out with the machine (`Machine.masks`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.asked import asked_by_name
from pytest_gpucoexist.gates.environment.variables import not_recorded, rows_of, set_among
from pytest_gpucoexist.gates.findings import Finding, failed, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence, Fix
from pytest_gpucoexist.model.visibility.order import count_cuda, count_rocm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import Gpu, Mask

__all__ = ["cuda_list_leaks", "device_order", "forms", "hip_precedence", "intel_masks", "rocr_hip_stack"]

_CUDA, _HIP, _ROCR, _ORDINAL = (
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
)
_INTEL = ("ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR", "SYCL_DEVICE_FILTER", "ZE_FLAT_DEVICE_HIERARCHY")


@gate(
    "env.cvd_leak",
    group="environment",
    vendors=("amd",),
    severity="fail",
    blocking=True,
    title="NVIDIA's mask does not reach AMD's GPUs",
    reads="CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES, and what HIP makes of them",
    criterion="CUDA_VISIBLE_DEVICES hides no AMD GPU from HIP, beside NVIDIA GPUs for which it is meant",
    why="where HIP_VISIBLE_DEVICES is not set or empty, HIP reads CUDA_VISIBLE_DEVICES: a list that was meant for "
    "NVIDIA hides AMD's GPUs, and their tests run on fewer or none",
    action="set HIP_VISIBLE_DEVICES (or ROCR_VISIBLE_DEVICES) beside CUDA_VISIBLE_DEVICES",
    source="ROCm/rocm-systems projects/rocprofiler-sdk/source/lib/rocprofiler-sdk/agent.cpp; ollama/ollama#15752",
)
def cuda_list_leaks(subject: Subject) -> Iterator[Finding]:
    """Judge what HIP makes of CUDA's list."""
    absent = not_recorded(subject)
    if absent is not None:
        yield absent
        return
    rows = rows_of(set_among(subject, (_CUDA, _HIP, _ROCR)))
    mask = _mask(subject, "hip", _CUDA)
    if mask is None:
        why = f"{_HIP} is set and wins" if subject.host.environ.get(_HIP) else f"{_CUDA} is not set, or empty"
        yield passed(f"HIP does not read {_CUDA}: {why}", *(rows or _unset(_CUDA)))
        return
    hidden = [gpu for gpu in _left_by_rocr(subject) if gpu.key not in (mask.devices or ())]
    if mask.warning is None or not hidden:
        yield passed(f"HIP reads {_CUDA}, which hides no AMD GPU", *rows)
        return
    if not subject.gpus("nvidia"):
        yield passed(f"no NVIDIA GPU is here: {_CUDA} can only be meant for AMD's", *rows)
        return
    count = len(_left_by_rocr(subject))
    fix = [Fix(lines=(f"export {_HIP}={','.join(map(str, range(count)))}",))]
    wish = asked_by_name(subject, "amd")
    if _hides_all(mask.value):
        reason = f"{_CUDA}={mask.value} hides AMD's GPUs as well as NVIDIA's"
        yield warned(reason, *rows, on=hidden, fix=fix, action=f"set {_HIP} where AMD's GPUs shall be seen")
    elif wish is not None and any(gpu.usable.rocm for gpu in hidden):
        yield failed(f"{mask.warning} ({wish})", *rows, on=hidden, fix=fix)
    else:
        yield warned(mask.warning, *rows, on=hidden, fix=fix)


@gate(
    "env.rocr_hip_stack",
    group="environment",
    vendors=("amd",),
    severity="fail",
    blocking=True,
    title="HIP's mask counts what ROCR's leaves",
    reads="ROCR_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES, and the GPUs that are left",
    criterion="every number in HIP_VISIBLE_DEVICES is less than the number of GPUs that ROCR_VISIBLE_DEVICES leaves",
    why="ROCR filters first and counts anew: ROCR_VISIBLE_DEVICES=1 with HIP_VISIBLE_DEVICES=1 is no GPU at all, and "
    "every AMD test is skipped as if the machine had none",
    action="keep ROCR_VISIBLE_DEVICES alone, or count HIP_VISIBLE_DEVICES from 0 within it",
    source="Parsl/parsl#3858; mcmonkeyprojects/SwarmUI#566",
)
def rocr_hip_stack(subject: Subject) -> Iterator[Finding]:
    """Judge the two masks together."""
    absent = not_recorded(subject)
    if absent is not None:
        yield absent
        return
    both = set_among(subject, (_ROCR, _HIP))
    hip = _mask(subject, "hip", _HIP)
    if len(both) < 2 or not both[_HIP] or hip is None:
        yield passed(f"{_ROCR} and {_HIP} are not both set", *(rows_of(both) or _unset(_ROCR, _HIP)))
        return
    rows = rows_of(both)
    left = _left_by_rocr(subject)
    if not left:
        yield skipped(f"{_ROCR}={both[_ROCR]} leaves no GPU: AMD's are masked")
    elif hip.warning is None:
        yield passed(f"{_HIP} names GPUs among the {len(left)} that {_ROCR} leaves", *rows)
    elif hip.devices or _hides_all(both[_HIP]):
        yield warned(hip.warning, *rows, on=left)
    else:
        fix = [Fix(lines=(f"export {_HIP}={','.join(map(str, range(len(left))))}",)), Fix(lines=(f"unset {_HIP}",))]
        wish = asked_by_name(subject, "amd")
        if wish is None:
            yield warned(hip.warning, *rows, on=left, fix=fix)
        else:
            yield failed(f"{hip.warning} ({wish})", *rows, on=left, fix=fix)


@gate(
    "env.hip_precedence",
    group="environment",
    vendors=("amd",),
    title="AMD's visibility variables agree",
    reads="HIP_VISIBLE_DEVICES, CUDA_VISIBLE_DEVICES, GPU_DEVICE_ORDINAL",
    criterion="those that are set and meant for AMD's GPUs are equal",
    why="HIP takes HIP_VISIBLE_DEVICES before CUDA_VISIBLE_DEVICES, OpenCL reads GPU_DEVICE_ORDINAL: where they "
    "differ, two libraries of one process use different cards; Ray and vLLM refuse to start",
    action="keep one of them",
    source="ROCm/rocm-systems rocprofiler-sdk agent.cpp; Parsl/parsl#3858; flux-framework/flux-core#4534",
)
def hip_precedence(subject: Subject) -> Iterator[Finding]:
    """Compare the variables that are about AMD's GPUs."""
    absent = not_recorded(subject)
    if absent is not None:
        yield absent
        return
    names = [_HIP, _ORDINAL]
    if not subject.gpus("nvidia"):
        names.append(_CUDA)  # beside NVIDIA GPUs it is theirs, and rightly different
    given = {name: value for name, value in set_among(subject, names).items() if value}
    rows = rows_of(given)
    if len(set(given.values())) > 1:
        yield warned(f"{' and '.join(f'{name}={value}' for name, value in given.items())} differ", *rows)
        return
    said = "one of AMD's visibility variables is set, at most" if len(given) < 2 else "they are equal"
    yield passed(said, *(rows or _unset(*names)))


@gate(
    "env.uuid_forms",
    group="environment",
    vendors=("nvidia", "amd"),
    title="Masks mean what they say",
    reads="each visibility variable, and what its runtimes make of it",
    criterion="no entry is out of range, repeated, of a form that the runtime does not know, or of Slurm's own count",
    why="CUDA, ROCR and HIP read lists by different rules: an entry that one skips ends the list for another, and "
    "what is left is not what was meant",
    action="write the variable as its own runtime reads it: indices within its own count, or UUIDs of its own vendor",
    source="ollama/ollama#15752; Slurm's gres.conf (devices are counted across vendors)",
)
def forms(subject: Subject) -> Iterator[Finding]:
    """Pass on what each runtime makes of its variables, where that cannot have been meant."""
    absent = not_recorded(subject)
    if absent is not None:
        yield absent
        return
    said = False
    for mask in subject.machine.masks:
        own = mask.runtime in {"cuda", "rocr", "opencl"} or (mask.runtime == "hip" and mask.variable == _HIP)
        if not own or mask.warning is None or (mask.variable == _HIP and _ROCR in subject.host.environ):
            continue
        said = True
        if mask.runtime == "cuda" and "MIG-" in mask.value and "nvidia" not in subject.machine.asked:
            evidence = Evidence(source=mask.variable, found=mask.value, expected="instances that are here")
            yield unknown("only NVML tells which MIG instances there are, and it was not asked", evidence)
            continue
        yield warned(mask.warning, Evidence(source=mask.variable, found=mask.value, expected="what was meant"))
    given = set_among(subject, (_CUDA, _HIP, _ROCR, _ORDINAL))
    if not said:
        reason = "every visibility variable means what it says" if given else "no visibility variable is set"
        yield passed(reason, *(rows_of(given) or _unset(_CUDA, _HIP, _ROCR)))


@gate(
    "env.device_order",
    group="environment",
    vendors=("nvidia",),
    title="CUDA counts GPUs as NVML does",
    reads="CUDA_DEVICE_ORDER, and the models of the NVIDIA GPUs",
    criterion="PCI_BUS_ID, or GPUs of one model",
    why="CUDA counts the fastest GPU first by default, nvidia-smi by the bus: with different models an index in "
    "CUDA_VISIBLE_DEVICES is another card than the one that was looked up",
    action="export CUDA_DEVICE_ORDER=PCI_BUS_ID",
    source="CUDA C++ Programming Guide, environment variables (CUDA_DEVICE_ORDER)",
)
def device_order(subject: Subject) -> Iterator[Finding]:
    """Judge the order where it can matter."""
    absent = not_recorded(subject)
    if absent is not None:
        yield absent
        return
    counted = count_cuda(subject.machine, subject.host.environ)
    order = subject.host.environ.get("CUDA_DEVICE_ORDER")
    evidence = Evidence(source="CUDA_DEVICE_ORDER", found=order or "not set", expected="PCI_BUS_ID")
    if order == "PCI_BUS_ID":
        yield passed("CUDA counts by the bus, as NVML does", evidence)
    elif len(counted.places) < 2:
        yield passed("one NVIDIA GPU: its index is 0 in any order", evidence)
    elif counted.doubt is None:
        yield passed("the NVIDIA GPUs are of one model: CUDA counts them by the bus", evidence)
    else:
        fix = [Fix(lines=("export CUDA_DEVICE_ORDER=PCI_BUS_ID",))]
        yield warned(counted.doubt, evidence, on=subject.functions("nvidia"), fix=fix)


@gate(
    "env.intel_masks",
    group="environment",
    vendors=("intel",),
    title="Intel's masks mean what they say",
    reads="ZE_AFFINITY_MASK, ONEAPI_DEVICE_SELECTOR, SYCL_DEVICE_FILTER, ZE_FLAT_DEVICE_HIERARCHY",
    criterion="every number exists, every word is known, and none is of a variable that was taken away",
    why="Level Zero skips a number that does not exist, SYCL aborts on a word that it does not know, and "
    "SYCL_DEVICE_FILTER does nothing any more",
    action="use ONEAPI_DEVICE_SELECTOR=level_zero:0 and numbers that exist",
    source="pytorch/pytorch PR#197790; intel/llvm (SYCL_DEVICE_FILTER removed in 2024.0)",
)
def intel_masks(subject: Subject) -> Iterator[Finding]:
    """Judge Intel's variables."""
    absent = not_recorded(subject)
    if absent is not None:
        yield absent
        return
    given = set_among(subject, _INTEL)
    said = False
    for mask in subject.machine.masks:
        if mask.runtime in {"level-zero", "sycl"} and mask.warning is not None:
            said = True
            yield warned(mask.warning, Evidence(source=mask.variable, found=mask.value))
    if "SYCL_DEVICE_FILTER" in given:
        said = True
        yield warned(
            "SYCL_DEVICE_FILTER is set, which SYCL does not read any more",
            *rows_of({"SYCL_DEVICE_FILTER": given["SYCL_DEVICE_FILTER"]}, "ONEAPI_DEVICE_SELECTOR"),
        )
    hierarchy = given.get("ZE_FLAT_DEVICE_HIERARCHY")
    if hierarchy and hierarchy.upper() not in {"COMPOSITE", "FLAT", "COMBINED"}:
        said = True
        expected = "COMPOSITE, FLAT or COMBINED"
        reason = f"ZE_FLAT_DEVICE_HIERARCHY={hierarchy} is not a word that Level Zero knows"
        yield warned(reason, *rows_of({"ZE_FLAT_DEVICE_HIERARCHY": hierarchy}, expected))
    if not said:
        yield passed(
            "Intel's masks mean what they say" if given else "no mask of Intel is set",
            *(rows_of(given) or _unset(*_INTEL[:2])),
        )


def _mask(subject: Subject, runtime: str, variable: str) -> Mask | None:
    return next((mask for mask in subject.machine.masks if (mask.runtime, mask.variable) == (runtime, variable)), None)


def _left_by_rocr(subject: Subject) -> list[Gpu]:
    """Return the GPUs that HIP has to choose from."""
    rocr = _mask(subject, "rocr", _ROCR)
    counted = count_rocm(subject.machine).gpus
    return [gpu for gpu in counted if rocr is None or gpu.key in (rocr.devices or ())]


def _hides_all(value: str) -> bool:
    """Whether a list was written to hide everything: -1 and its like."""
    return value.strip().startswith("-") or value.strip().lower() in {"", "none", "nodevfiles"}


def _unset(*names: str) -> list[Evidence]:
    return [Evidence(source=name, found="not set") for name in names]

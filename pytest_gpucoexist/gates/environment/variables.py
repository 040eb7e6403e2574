"""The variables that gates look at, and what it takes to say that one is not set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.findings import Finding, unknown
from pytest_gpucoexist.model.verdicts import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["VARIABLES", "is_on", "not_recorded", "rows_of", "set_among"]

DEBUG_NVIDIA = (
    "NSIGHT_CUDA_DEBUGGER",
    "CUDA_INJECTION32_PATH",
    "CUDA_INJECTION64_PATH",
    "CUDA_AUTO_BOOST",
    "CUDA_ENABLE_COREDUMP_ON_EXCEPTION",
    "CUDA_COREDUMP_FILE",
    "CUDA_DEVICE_WAITS_ON_EXCEPTION",
    "CUDA_PROFILE",
    "COMPUTE_PROFILE",
    "OPENCL_PROFILE",
)
DEBUG_AMD = (
    "HSA_TOOLS_LIB",
    "ROCP_TOOL_LIB",
    "ROCPROFILER_REGISTER_FORCE_LOAD",
    "AMD_LOG_LEVEL",
    "HIP_LAUNCH_BLOCKING",
    "AMD_SERIALIZE_KERNEL",
    "AMD_SERIALIZE_COPY",
)
COPY_AMD = (
    "HSA_ENABLE_SDMA",
    "HSA_ENABLE_PEER_SDMA",
    "HSA_XNACK",
    "HSA_OVERRIDE_GFX_VERSION",
    "ROC_ENABLE_PRE_VEGA",
    "ROC_ACTIVE_WAIT_TIMEOUT",
    "GPU_MAX_HW_QUEUES",
)
COLLECTIVES = (
    "NCCL_P2P_DISABLE",
    "NCCL_P2P_LEVEL",
    "NCCL_NET_GDR_LEVEL",
    "NCCL_SHM_DISABLE",
    "NCCL_PROTO",
    "RCCL_ENABLE_CLIQUE",
    "RCCL_MSCCL_ENABLE",
)
OFFLOAD = (
    "DRI_PRIME",
    "__NV_PRIME_RENDER_OFFLOAD",
    "__GLX_VENDOR_LIBRARY_NAME",
    "MESA_VK_DEVICE_SELECT",
    "VK_LOADER_DRIVERS_SELECT",
)
MASKS = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "ZE_AFFINITY_MASK",
    "ONEAPI_DEVICE_SELECTOR",
    "SYCL_DEVICE_FILTER",
    "ZE_FLAT_DEVICE_HIERARCHY",
)

VARIABLES = (*MASKS, "CUDA_LAUNCH_BLOCKING", *DEBUG_NVIDIA, *DEBUG_AMD, *COPY_AMD, *COLLECTIVES, *OFFLOAD)
"""Everything that these gates look at by name: a record of a machine holds them too."""

_SHOWN = 80


def not_recorded(subject: Subject) -> Finding | None:
    """Return that nothing is known, where no variable at all is: a process without any is a recording without them."""
    if subject.host.environ:
        return None
    evidence = Evidence(source="environment", found="no variable at all", expected="the variables of a process")
    return unknown("the environment is not recorded", evidence)


def set_among(subject: Subject, names: Iterable[str]) -> dict[str, str]:
    """Return those of the variables that are set, an empty value included."""
    environ = subject.host.environ
    return {name: environ[name] for name in names if name in environ}


def rows_of(variables: Mapping[str, str], expected: str | None = None) -> list[Evidence]:
    """Show variables and their values, shortened."""
    return [
        Evidence(source=name, found=value if len(value) <= _SHOWN else f"{value[:_SHOWN]}…", expected=expected)
        for name, value in variables.items()
    ]


def is_on(value: str | None) -> bool:
    """Whether a switch is on, as runtimes read one: set, and neither empty nor 0."""
    return value is not None and value.strip().lower() not in {"", "0", "false", "off", "no"}

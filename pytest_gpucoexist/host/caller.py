"""The process that records: which of its variables a record holds, and whom the record must not name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.host.personal import People

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucoexist.host.base import Host

__all__ = ["FIRST_USER_ID", "people_of", "recorded_variables"]

FIRST_USER_ID = 1000
"""Below are the system's own users and groups (login.defs, UID_MIN)."""

# By name, each one: with a prefix (`NVIDIA_`, `GPU_`, `JAX_`) it would hold addresses of servers and keys as well.
_RECORDED = re.compile(
    r"CUDA_(?:VISIBLE_DEVICES|DEVICE_ORDER|HOME|PATH)|NVIDIA_(?:VISIBLE_DEVICES|DRIVER_CAPABILITIES)"
    r"|HIP_(?:VISIBLE_DEVICES|PATH)|ROCR_VISIBLE_DEVICES|ROCM_(?:PATH|HOME)|GPU_DEVICE_ORDINAL"
    r"|NSIGHT_CUDA_DEBUGGER|CUDA_(?:INJECTION(?:32|64)_PATH|AUTO_BOOST|ENABLE_COREDUMP_ON_EXCEPTION|COREDUMP_FILE"
    r"|DEVICE_WAITS_ON_EXCEPTION|PROFILE|LAUNCH_BLOCKING)|(?:COMPUTE|OPENCL)_PROFILE"
    r"|HSA_(?:TOOLS_LIB|ENABLE_(?:PEER_)?SDMA|XNACK)|ROCP_TOOL_LIB|ROCPROFILER_REGISTER_FORCE_LOAD|AMD_LOG_LEVEL"
    r"|HIP_LAUNCH_BLOCKING|AMD_SERIALIZE_(?:KERNEL|COPY)|ROC_(?:ENABLE_PRE_VEGA|ACTIVE_WAIT_TIMEOUT)|GPU_MAX_HW_QUEUES"
    r"|NCCL_(?:P2P_(?:DISABLE|LEVEL)|NET_GDR_LEVEL|SHM_DISABLE|PROTO)|RCCL_(?:ENABLE_CLIQUE|MSCCL_ENABLE)"
    r"|SYCL_DEVICE_FILTER|MESA_VK_DEVICE_SELECT|VK_LOADER_DRIVERS_SELECT"
    r"|HSA_OVERRIDE_GFX_VERSION(?:_\d+)?|ZE_(?:AFFINITY_MASK|FLAT_DEVICE_HIERARCHY|ENABLE_PCI_ID_DEVICE_ORDER)"
    r"|ONEAPI_DEVICE_SELECTOR|OCL_ICD_(?:VENDORS|FILENAMES)|VK_(?:(?:ADD_)?DRIVER_FILES|ICD_FILENAMES)"
    r"|__EGL_VENDOR_LIBRARY_(?:FILENAMES|DIRS)|__GLX_VENDOR_LIBRARY_NAME|__NV_PRIME_RENDER_OFFLOAD|DRI_PRIME"
    r"|SLURM_(?:JOB|STEP)_(?:GPUS|GRES)|SLURM_GPUS(?:_PER_(?:NODE|TASK)|_ON_NODE)?|SLURM_TRES_PER_TASK|SLURMD_TRES_BIND"
    r"|HOME|XDG_(?:CONFIG_HOME|DATA_HOME|DATA_DIRS)|LD_LIBRARY_PATH|LD_PRELOAD|LLVM_PATH|container"
)
# Of these it only matters that they are set: their values are addresses of a cluster and paths of images.
_ONLY_SET = frozenset({"KUBERNETES_SERVICE_HOST", "APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"})


def recorded_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a record holds: those that discovery and the runtimes' loaders look at, no others."""
    return {
        name: "set" if name in _ONLY_SET else environ[name]
        for name in sorted(environ)
        if _RECORDED.fullmatch(name) or (name in _ONLY_SET and environ[name])
    }


def people_of(host: Host) -> People:
    """Return whom the record must not name: the host, its user, the user's home."""
    users = {host.environ.get(name, "") for name in ("USER", "LOGNAME", "SUDO_USER")}
    me = host.identity()
    # A user's private group has the user's name.
    users |= {name for name, gid in me.group_names.items() if gid == me.gid and gid >= FIRST_USER_ID}
    return People(
        hosts=frozenset({host.name, host.environ.get("HOSTNAME", "")} - {""}),
        users=frozenset(users - {""}),
        homes=frozenset({host.environ.get("HOME", "")} - {""}),
    )

"""What belongs to which vendor: variables by name, folders by a part of their path, libraries by file name.

One table for what is taken out of a vendor process's environment and for what must not be mapped in it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucoexist.model.identity import Vendor

__all__ = ["BELONGINGS", "MASKS", "PATH_LISTS", "Belongings", "library_vendor", "path_vendors", "variable_vendor"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Belongings:
    """What is one vendor's alone. `source` says where the names were read."""

    variables: re.Pattern[str]
    folders: re.Pattern[str]
    libraries: re.Pattern[str]
    source: str


_VERSION = r"(?:[-_.]?v?\d[\w.-]*)?"

BELONGINGS: Mapping[Vendor, Belongings] = {
    "nvidia": Belongings(
        # Not CUDA_* as a whole: ROCm builds of frameworks read some (CUDA_VISIBLE_DEVICES, PYTORCH_CUDA_ALLOC_CONF).
        variables=re.compile(
            r"CUDA_(?:HOME|ROOT|ROOT_DIR|TOOLKIT_ROOT(?:_DIR)?|BIN_PATH|INC_PATH|LIB_PATH|PATH(?:_V\d+_\d+)?"
            r"|CACHE_(?:PATH|MAXSIZE|DISABLE)|INJECTION(?:32|64)_PATH|MPS_\w+|DEVICE_MAX_CONNECTIONS|MODULE_LOADING"
            r"|FORCE_(?:PTX_JIT|JIT|PRELOAD_LIBRARIES)|DISABLE_(?:PTX_)?JIT|AUTO_BOOST|COREDUMP_\w+|ENABLE_\w+"
            r"|DEVICE_WAITS_ON_EXCEPTION|SCALE_LAUNCH_QUEUES|BINARY_LOADER_THREAD_COUNT|LOG_FILE)|CUDAToolkit_ROOT"
            r"|NVIDIA_\w+|NVCC_\w+|NVRTC_\w+|CUDNN_\w+|CUBLAS(?:LT)?_\w+|CUSPARSE_\w+|CUSOLVER_\w+|CUFFT_\w+|NVPL_\w+"
            r"|NVSHMEM_\w+|NSIGHT_\w+|NSYS_\w+|TENSORRT_\w+|TRT_\w+|OPTIX_\w+"
        ),
        folders=re.compile(
            rf"cuda{_VERSION}|cudnn{_VERSION}|tensorrt{_VERSION}|nvidia(?:[-_]\w.*)?|nsight[-_].+|nccl{_VERSION}|hpc_sdk",
            re.IGNORECASE,
        ),
        libraries=re.compile(
            r"cuda|cudart|cudadevrt|cudla|nvidia-.+|nvrtc(?:-builtins)?|nvJitLink|nvcuvid|nvfatbin|nvptxcompiler|nvvm"
            r"|cublas(?:Lt)?|cudnn\w*|cufft\w?|cufile\w*|curand|cusolver\w*|cusparse(?:Lt)?|cutensor\w*|cupti"
            r"|npp\w+|nvjpeg|nccl|nvinfer\w*|nvonnxparser|nvshmem\w*|nvToolsExt|nvml_injection"
        ),
        source="CUDA C++ Programming Guide, environment variables; CUDA Toolkit and cuDNN installation guides",
    ),
    "amd": Belongings(
        variables=re.compile(
            r"ROCM_\w+|HIP_\w+|HSA_\w+|HSAKMT_\w+|ROCR_\w+|ROC_\w+|ROCP_\w+|ROCPROFILER_\w+|ROCTX_\w+|ROCTRACER_\w+"
            r"|HCC_\w+|DEVICE_LIB_PATH|AMD_(?:LOG_\w+|SERIALIZE_\w+|DIRECT_DISPATCH|COMGR_\w+|CPU_AFFINITY)"
            r"|AMDGPU_\w+|AMDDeviceLibs_DIR|GPU_(?:MAX_HW_QUEUES|DEVICE_ORDINAL|SINGLE_ALLOC_PERCENT|MAX_HEAP_SIZE)"
            r"|MIOPEN_\w+|RCCL_\w+|ROCBLAS_\w+|HIPBLASLT_\w+|HIPSPARSE_\w+|TENSILE_\w+|ROCSOLVER_\w+|MIGRAPHX_\w+"
        ),
        folders=re.compile(
            rf"rocm{_VERSION}|_?rocm_sdk\w*|hip|hsa|hsakmt|amdgpu(?:-pro)?|aomp{_VERSION}|rccl{_VERSION}",
            re.IGNORECASE,
        ),
        libraries=re.compile(
            r"amdhip64|hiprtc(?:-builtins)?|hsa-runtime64|hsakmt|hsa-amd-aqlprofile64|amd_comgr\w*|amd_smi|amdocl64|rocm[\w-]+"
            r"|rocprofiler\w*(?:-\w+)*|roctx64|roctracer64|rocblas|rocfft|rocrand|rocsolver|rocsparse|roctriton|rccl\w*"
            r"|hipblas(?:lt)?|hipfft|hiprand|hipsolver|hipsparse(?:lt)?|hipdnn\w*|MIOpen|migraphx\w*|magma_hip"
        ),
        source="ROCm documentation, environment variables of HIP, ROCr, CLR and the libraries; layout of /opt/rocm",
    ),
    "intel": Belongings(
        variables=re.compile(
            r"ONEAPI_\w+|SETVARS_\w+|CMPLR_ROOT|SYCL_\w+|ZE_\w+|ZEL_\w+|ZES_\w+|ZET_\w+|NEO\w*|IGC_\w+|UR_\w+"
            r"|CCL_ROOT|DPCT_\w+|DPCPP_ROOT|INTELOCLSDKROOT"
        ),
        folders=re.compile(rf"oneapi{_VERSION}|level[-_]zero{_VERSION}|intel-opencl|neo", re.IGNORECASE),
        libraries=re.compile(
            r"ze_(?:loader|tracing_layer|validation_layer|intel_\w+)|sycl\w*|igdrcl|igc|igdgmm|ur_\w+|pi_\w+"
        ),
        source="oneAPI base toolkit setvars; Level Zero specification, environment variables; compute-runtime",
    ),
}

MASKS: Mapping[Vendor, tuple[str, ...]] = {
    "nvidia": ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"),
    "amd": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"),
    "intel": (
        "ZE_AFFINITY_MASK",
        "ONEAPI_DEVICE_SELECTOR",
        "ZE_FLAT_DEVICE_HIERARCHY",
        "ZE_ENABLE_PCI_ID_DEVICE_ORDER",
    ),
}
"""The variables by which a runtime decides what is visible; the first ones are set to `-1` to hide its devices."""

PATH_LISTS: Mapping[str, str] = {
    **dict.fromkeys(("LD_LIBRARY_PATH", "LIBRARY_PATH", "PATH", "PYTHONPATH", "PKG_CONFIG_PATH", "MODULEPATH"), ":"),
    **dict.fromkeys(("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "CMAKE_PREFIX_PATH", "LLVM_PATH"), ":"),
    **dict.fromkeys(("OCL_ICD_FILENAMES", "OCL_ICD_VENDORS", "VK_DRIVER_FILES", "VK_ICD_FILENAMES"), ":"),
    "LD_PRELOAD": ": ",  # ld.so(8): spaces or colons
    "LD_AUDIT": ":",
}
"""Variables that hold paths, and what stands between them. `LLVM_PATH` steers comgr though it is nobody's."""

# `libamdhip64.so.6.2.41133`, `libcudart-9335f6a2.so.12` (auditwheel), `libsycl.so.8`, `libze_intel_gpu.so.1`.
_LIBRARY = re.compile(r"lib(?P<stem>[A-Za-z0-9_+-]+?)(?:-[0-9a-f]{8}|-\d+(?:\.\d+)*)?\.so(?:\.[\w.]+)?")
_HOMES = re.compile(r"/(?:home|Users|media|mnt|workspace)/[^/]+")


def variable_vendor(name: str) -> Vendor | None:
    """Return whose a variable is; None for those of nobody alone.

    >>> variable_vendor("HSA_OVERRIDE_GFX_VERSION"), variable_vendor("NCCL_DEBUG")
    ('amd', None)
    """
    return next((vendor for vendor, each in BELONGINGS.items() if each.variables.fullmatch(name)), None)


def library_vendor(path: str) -> Vendor | None:
    """Return whose library a file is, by its name alone.

    >>> library_vendor("/opt/rocm-6.2.0/lib/libamdhip64.so.6"), library_vendor("/usr/lib/libOpenCL.so.1")
    ('amd', None)
    """
    match = _LIBRARY.fullmatch(path.rsplit("/", 1)[-1])
    if match is None:
        return None
    return next((vendor for vendor, each in BELONGINGS.items() if each.libraries.fullmatch(match["stem"])), None)


def path_vendors(path: str, home: str = "") -> frozenset[Vendor]:
    """Return the vendors whose name is a part of a path; a person's home folder tells nothing of what is in it.

    >>> sorted(path_vendors("/usr/local/cuda-12.4/lib64")), sorted(path_vendors("/home/nvidia/lib"))
    (['nvidia'], [])
    """
    if home and (path == home or path.startswith(f"{home.rstrip('/')}/")):
        path = path[len(home.rstrip("/")) :]
    path = _HOMES.sub("", path, count=1) if _HOMES.match(path) else path
    parts = [part for part in path.split("/") if part]
    return frozenset(
        vendor for vendor, each in BELONGINGS.items() if any(each.folders.fullmatch(part) for part in parts)
    )

"""The environment of one vendor's process, as a table: what goes, what stays, and what is said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.errors import RequirementError
from pytest_gpucoexist.host import local_host
from pytest_gpucoexist.model.visibility import apply_masks
from pytest_gpucoexist.processes import scope_environment
from pytest_gpucoexist.processes.belongings import library_vendor, path_vendors, variable_vendor
from pytest_gpucoexist.processes.contents import folder_contents
from tests.machines import amd, dual, intel, machine, nvidia

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucoexist.model.identity import Vendor
    from pytest_gpucoexist.model.machine import Gpu

GPUS: dict[str, Gpu] = {"nvidia": nvidia(1), "amd": amd(0), "intel": intel()}
WHOLE = machine(nvidia(0), nvidia(1), amd(0), intel())

# name, value, and what is left of it in a process of NVIDIA, of AMD and of Intel; None: the variable is gone.
SAME = object()
TABLE: list[tuple[str, str, Any, Any, Any]] = [
    ("ROCM_PATH", "/opt/rocm", None, SAME, None),
    ("ROCM_HOME", "/opt/rocm", None, SAME, None),
    ("HIP_PATH", "/opt/rocm/hip", None, SAME, None),
    ("HIP_PLATFORM", "nvidia", None, SAME, None),
    ("HSA_OVERRIDE_GFX_VERSION", "10.3.0", None, SAME, None),
    ("HSA_OVERRIDE_GFX_VERSION_1", "10.3.0", None, SAME, None),
    ("HSA_ENABLE_SDMA", "0", None, SAME, None),
    ("AMD_LOG_LEVEL", "4", None, SAME, None),
    ("GPU_MAX_HW_QUEUES", "2", None, SAME, None),
    ("MIOPEN_USER_DB_PATH", "/x", None, SAME, None),
    ("CUDA_HOME", "/usr/local/cuda", SAME, None, None),
    ("CUDA_PATH", "/usr/local/cuda", SAME, None, None),
    ("CUDA_PATH_V12_4", "/usr/local/cuda-12.4", SAME, None, None),
    ("CUDA_INJECTION64_PATH", "/x/libinjection.so", SAME, None, None),
    ("NVIDIA_VISIBLE_DEVICES", "all", SAME, None, None),
    ("NVIDIA_TF32_OVERRIDE", "0", SAME, None, None),
    ("CUDNN_PATH", "/x", SAME, None, None),
    ("ONEAPI_ROOT", "/opt/intel/oneapi", None, None, SAME),
    ("SYCL_CACHE_DIR", "/x", None, None, SAME),
    ("ZES_ENABLE_SYSMAN", "1", None, None, SAME),
    # Nobody's alone.
    ("CUDA_LAUNCH_BLOCKING", "1", SAME, SAME, SAME),
    ("PYTORCH_CUDA_ALLOC_CONF", "backend:native", SAME, SAME, SAME),
    ("NCCL_DEBUG", "INFO", SAME, SAME, SAME),
    ("MKLROOT", "/opt/intel/oneapi/mkl/latest", SAME, SAME, SAME),
    ("HIPSTER", "1", SAME, SAME, SAME),
    ("NVIDIAN", "1", SAME, SAME, SAME),
    ("HOME", "/home/nvidia", SAME, SAME, SAME),
    # Lists of paths.
    ("LD_LIBRARY_PATH", "/usr/local/cuda/lib64", SAME, None, None),
    (
        "LD_LIBRARY_PATH",
        "/opt/rocm-6.2.0/lib:/usr/local/cuda-12.4/lib64:/usr/lib:/opt/intel/oneapi/2024.1/lib",
        "/usr/local/cuda-12.4/lib64:/usr/lib",
        "/opt/rocm-6.2.0/lib:/usr/lib",
        "/usr/lib:/opt/intel/oneapi/2024.1/lib",
    ),
    ("LD_LIBRARY_PATH", "/v/lib/python3.11/site-packages/nvidia/cublas/lib::/a", SAME, ":/a", ":/a"),
    ("LD_LIBRARY_PATH", "/v/site-packages/_rocm_sdk_core/lib:/a", "/a", SAME, "/a"),
    ("LD_LIBRARY_PATH", "/home/nvidia/lib:/home/rocm/lib", SAME, SAME, SAME),
    ("LD_LIBRARY_PATH", "/opt/both/cuda/rocm/lib", SAME, SAME, None),
    ("LD_PRELOAD", "/x/libcuda.so.1:/x/libjemalloc.so.2", SAME, "/x/libjemalloc.so.2", "/x/libjemalloc.so.2"),
    ("LD_PRELOAD", "librocm_smi64.so.7 libmine.so", "libmine.so", SAME, "libmine.so"),
    ("LD_PRELOAD", "/opt/rocm/lib/libcudart.so.12", SAME, None, None),
    ("LD_AUDIT", "/x/libhsa-runtime64.so.1", None, SAME, None),
    (
        "PATH",
        "/opt/rocm/bin:/usr/local/cuda/bin:/usr/bin",
        "/usr/local/cuda/bin:/usr/bin",
        "/opt/rocm/bin:/usr/bin",
        "/usr/bin",
    ),
    ("CMAKE_PREFIX_PATH", "/opt/rocm:/usr", "/usr", SAME, "/usr"),
    ("LLVM_PATH", "/opt/rocm/llvm", None, SAME, None),
    ("PYTHONPATH", "/src/mine/cuda:/opt/rocm/share/amd_smi", "/src/mine/cuda", SAME, "/src/mine/cuda"),
    ("VK_DRIVER_FILES", "/usr/share/vulkan/icd.d/nvidia_icd.json", SAME, None, None),
]


@pytest.mark.parametrize("vendor", ["nvidia", "amd", "intel"])
@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row[0]}={row[1][:40]}")
def test_what_is_left_of_a_variable(row: tuple[str, str, Any, Any, Any], vendor: Vendor) -> None:
    name, value, *left = row
    expected = left[["nvidia", "amd", "intel"].index(vendor)]
    expected = value if expected is SAME else expected
    scoped = scope_environment({name: value, "OTHER": "kept"}, [GPUS[vendor]], WHOLE, vendor)
    assert scoped.environment.get(name) == expected
    assert scoped.environment["OTHER"] == "kept"
    changes = {change.name: change for change in scoped.changes}
    if expected == value:
        assert name not in changes
    else:
        change = changes[name]
        assert (change.before, change.after) == (value, expected)
        assert change.rule
        assert name in change.describe()


@pytest.mark.parametrize("vendor", ["nvidia", "amd", "intel"])
@pytest.mark.parametrize("caller", ["nothing", "everything", "masks"])
@pytest.mark.parametrize("present", ["all", "own"])
def test_exactly_the_leased_devices_are_visible(vendor: Vendor, caller: str, present: str) -> None:
    environ = {
        "nothing": {},
        "everything": {
            "CUDA_VISIBLE_DEVICES": "",
            "ROCR_VISIBLE_DEVICES": "0",
            "HIP_VISIBLE_DEVICES": "",
            "GPU_DEVICE_ORDINAL": "0,1",
            "ZE_AFFINITY_MASK": "",
            "ONEAPI_DEVICE_SELECTOR": "*:*",
        },
        "masks": {"CUDA_VISIBLE_DEVICES": "0", "ROCR_VISIBLE_DEVICES": "7", "HIP_VISIBLE_DEVICES": "3"},
    }[caller]
    own = machine(*(gpu for gpu in WHOLE.gpus if gpu.vendor == vendor))
    scoped = scope_environment(environ, [GPUS[vendor]], WHOLE if present == "all" else own, vendor)
    seen = [gpu.key for gpu in apply_masks(scoped.environment, WHOLE).gpus if gpu.visible]
    assert seen == [GPUS[vendor].key]
    for name, mine in (
        ("CUDA_VISIBLE_DEVICES", "nvidia"),
        ("ROCR_VISIBLE_DEVICES", "amd"),
        ("HIP_VISIBLE_DEVICES", "amd"),
        ("ZE_AFFINITY_MASK", "intel"),
    ):
        if mine != vendor:
            assert scoped.environment[name] == "-1"
        else:
            assert scoped.environment[name] not in {"", "-1"}
    assert scoped.environment.get("GPU_DEVICE_ORDINAL") is None


def test_no_device_at_all_hides_the_own_vendor_too() -> None:
    scoped = scope_environment({}, [], dual(), "amd")
    assert [gpu for gpu in apply_masks(scoped.environment, WHOLE).gpus if gpu.visible] == []


def test_a_device_of_another_vendor_is_refused() -> None:
    with pytest.raises(RequirementError, match=r"a process of nvidia was asked to see 0000:c1:00\.0"):
        scope_environment({}, [nvidia(0), amd(0)], WHOLE, "nvidia")
    with pytest.raises(RequirementError, match="a vendor without runtime"):
        scope_environment({}, [], WHOLE, "other")


def test_a_folder_that_serves_both_stays_and_is_said(tmp_path: Path) -> None:
    conda, shared, theirs = (tmp_path / name for name in ("conda/lib", "usr/lib", "opt/rocm/lib"))
    for folder, *files in (
        (conda, "libcudart.so.12", "libamdhip64.so.6", "libz.so.1"),
        (shared, "librocm_smi64.so.5", "libc.so.6"),
        (theirs, "libamdhip64.so.6", "libcudart.so.12"),
    ):
        folder.mkdir(parents=True)
        for name in files:
            (folder / name).touch()
    # A home folder's own name says nothing of what is in it.
    environ = {"LD_LIBRARY_PATH": f"{conda}:{shared}:{theirs}:{tmp_path}/absent", "HOME": str(tmp_path.parent)}
    contents = folder_contents(local_host(), environ)
    assert contents[str(conda)] == ["libamdhip64.so.6", "libcudart.so.12", "libz.so.1"]
    scoped = scope_environment(environ, [nvidia(0)], WHOLE, "nvidia", contents=contents)
    assert scoped.environment["LD_LIBRARY_PATH"] == environ["LD_LIBRARY_PATH"]
    said = {kept.entry: kept.reason for kept in scoped.kept}
    assert said[str(conda)] == "it serves nvidia too (libcudart.so.12); of amd it has libamdhip64.so.6"
    assert said[str(shared)] == "its path is nobody's alone; of amd it has librocm_smi64.so.5"
    assert "it serves nvidia too (libcudart.so.12)" in said[str(theirs)]
    assert len(said) == 3
    (theirs / "libcudart.so.12").unlink()
    contents = folder_contents(local_host(), environ)
    scoped = scope_environment(environ, [nvidia(0)], WHOLE, "nvidia", contents=contents)
    assert scoped.environment["LD_LIBRARY_PATH"] == f"{conda}:{shared}:{tmp_path}/absent"


def test_a_folder_of_nothing_but_another_vendor_s_libraries_goes_whatever_its_name_is() -> None:
    environ = {"LD_LIBRARY_PATH": "/data/a:/data/b:/data/empty"}
    contents = {"/data/a": ["libamdhip64.so.6", "librccl.so.1"], "/data/b": ["libcuda.so.1"], "/data/empty": []}
    seen = {
        vendor: scope_environment(environ, [GPUS[vendor]], WHOLE, vendor, contents=contents).environment  # type: ignore[arg-type]
        for vendor in GPUS
    }
    assert {vendor: each["LD_LIBRARY_PATH"] for vendor, each in seen.items()} == {
        "nvidia": "/data/b:/data/empty",
        "amd": "/data/a:/data/empty",
        "intel": "/data/empty",
    }


def test_the_caller_s_own_affairs_stay_with_the_caller() -> None:
    environ = {"PYTEST_GPU_HOME": "x", "PYTEST_GPU_HOME_DETAILS": "{}", "PYTHONHOME": "/usr", "VIRTUAL_ENV": "/v"}
    same = scope_environment(environ, [nvidia(0)], WHOLE, "nvidia").environment
    other = scope_environment(environ, [nvidia(0)], WHOLE, "nvidia", same_interpreter=False).environment
    assert {name for name in environ if name in same} == {"PYTHONHOME", "VIRTUAL_ENV"}
    assert {name for name in environ if name in other} == set()


def test_the_caller_s_environment_is_not_changed() -> None:
    environ = {"ROCM_PATH": "/opt/rocm", "PATH": "/opt/rocm/bin:/bin"}
    before = dict(environ)
    scope_environment(environ, [nvidia(0)], WHOLE, "nvidia")
    assert environ == before


@pytest.mark.parametrize(
    ("path", "vendor"),
    [
        ("/usr/lib/x86_64-linux-gnu/libcuda.so.1", "nvidia"),
        ("/usr/lib/libcuda.so.550.54.14", "nvidia"),
        ("/w/nvidia_cublas.libs/libcudart-9335f6a2.so.12", "nvidia"),
        ("/usr/lib/libnvidia-ml.so.1", "nvidia"),
        ("/usr/lib/libnvidia-ptxjitcompiler.so.550.1", "nvidia"),
        ("/w/libcublasLt.so.12", "nvidia"),
        ("/w/libcudnn_ops_infer.so.8", "nvidia"),
        ("/w/libnccl.so.2", "nvidia"),
        ("/opt/rocm/lib/libamdhip64.so.6.2.41133", "amd"),
        ("/opt/rocm/lib/libhsa-runtime64.so.1", "amd"),
        ("/opt/rocm/lib/librocm_smi64.so.7", "amd"),
        ("/opt/rocm/lib/librocm-core.so.1", "amd"),
        ("/opt/rocm/lib/librocprofiler-register.so.0", "amd"),
        ("/opt/rocm/lib/libamd_comgr.so.2", "amd"),
        ("/opt/rocm/lib/librccl.so.1", "amd"),
        ("/usr/lib/libze_loader.so.1", "intel"),
        ("/usr/lib/libze_intel_gpu.so.1", "intel"),
        ("/usr/lib/libsycl.so.8", "intel"),
        ("/usr/lib/libOpenCL.so.1", None),
        ("/usr/lib/libdrm_amdgpu.so.1", None),
        ("/usr/lib/libc.so.6", None),
        ("/usr/lib/libcudacore.so", None),
        ("/x/libcuda", None),
        ("/x/libcuda.so.d/readme", None),
    ],
)
def test_whose_a_library_is(path: str, vendor: str | None) -> None:
    assert library_vendor(path) == vendor


@pytest.mark.parametrize(
    ("path", "vendors"),
    [
        ("/usr/local/cuda", {"nvidia"}),
        ("/usr/local/cuda-12.4/targets/x86_64-linux/lib", {"nvidia"}),
        ("/opt/nvidia/nsight-compute/2024.1", {"nvidia"}),
        ("/opt/rocm-6.2.0/lib", {"amd"}),
        ("/opt/amdgpu/lib", {"amd"}),
        ("/opt/intel/oneapi/compiler/latest", {"intel"}),
        ("/home/rocm/cuda/lib", {"nvidia"}),
        ("/home/nvidia", set()),
        ("/opt/rocmetrics/lib", set()),
        ("/opt/barracuda/lib", set()),
        ("/usr/lib", set()),
    ],
)
def test_whose_a_folder_is(path: str, vendors: set[str]) -> None:
    assert path_vendors(path) == vendors


def test_no_variable_is_two_vendors() -> None:
    names = [row[0] for row in TABLE]
    assert {name: variable_vendor(name) for name in ("HIP_PATH", "CUDA_HOME", "ZE_X", "PATH")} == {
        "HIP_PATH": "amd",
        "CUDA_HOME": "nvidia",
        "ZE_X": "intel",
        "PATH": None,
    }
    from pytest_gpucoexist.processes.belongings import BELONGINGS

    for name in names:
        assert sum(each.variables.fullmatch(name) is not None for each in BELONGINGS.values()) <= 1

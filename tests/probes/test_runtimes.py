"""Runtimes found by file names and small text files."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st

from pytest_gpucoexist.host import local_host
from pytest_gpucoexist.probes.libraries import LibraryFolders
from pytest_gpucoexist.probes.runtimes import cuda_of_driver, find_runtimes
from tests.probes.installed import SITE, InstalledHost, named, wheel

if TYPE_CHECKING:
    from pathlib import Path

LIB = "/usr/lib/x86_64-linux-gnu"
# As CUDA 12.4's version.json has it, shortened.
VERSION_JSON = """{
   "cuda" : { "name" : "CUDA SDK", "version" : "12.4.1" },
   "cuda_cudart" : { "name" : "CUDA Runtime (cudart)", "version" : "12.4.127" },
   "nvidia_driver" : { "name" : "NVIDIA Linux Driver", "version" : "550.54.15" }
}"""


def found(host: InstalledHost, name: str) -> list[tuple[str | None, str | None]]:
    return [(runtime.version, runtime.path) for runtime in named(find_runtimes(host)[0], name)]


class TestCudaDriver:
    def test_the_file_name_tells_the_driver_and_its_branch_the_cuda_version(self) -> None:
        host = InstalledHost(
            files={f"{LIB}/libcuda.so.550.54.14": b""},
            links={f"{LIB}/libcuda.so.1": "libcuda.so.550.54.14", f"{LIB}/libcuda.so": "libcuda.so.1"},
        )
        (cuda,) = named(find_runtimes(host)[0], "cuda")
        assert (cuda.version, cuda.built_for, cuda.path) == ("12.4", "driver 550.54.14", f"{LIB}/libcuda.so.550.54.14")
        assert (cuda.kind, cuda.vendors) == ("runtime", ("nvidia",))

    def test_wsl_has_no_version_in_its_file_name(self) -> None:
        host = InstalledHost(files={"/usr/lib/wsl/lib/libcuda.so.1": b""})
        (cuda,) = named(find_runtimes(host)[0], "cuda")
        assert (cuda.version, cuda.built_for, cuda.path) == (None, None, "/usr/lib/wsl/lib/libcuda.so.1")

    def test_the_toolkits_stub_is_no_driver(self) -> None:
        host = InstalledHost(
            files={"/usr/local/cuda-12.4/lib64/stubs/libcuda.so": b""},
            environ={"LD_LIBRARY_PATH": "/usr/local/cuda-12.4/lib64/stubs"},
        )
        assert found(host, "cuda") == []

    def test_a_dangling_link_is_nothing(self) -> None:
        host = InstalledHost(files={f"{LIB}/libc.so.6": b""}, links={f"{LIB}/libcuda.so.1": "libcuda.so.535.54.03"})
        assert found(host, "cuda") == []

    @pytest.mark.parametrize(
        ("driver", "cuda"),
        [("535.261.03", "12.2"), ("418.87.01", "10.1"), ("595.45", "13.2"), ("999.1", None), ("1", None), (None, None)],
    )
    def test_branches(self, driver: str | None, cuda: str | None) -> None:
        assert cuda_of_driver(driver) == cuda

    def test_the_branches_agree_with_what_nvidia_smi_printed(self, shared: Path) -> None:
        """Real output names both numbers."""
        import re

        pairs = set()
        for path in sorted((shared / "machines" / "nvidia-smi").rglob("*")):
            if path.is_file():
                text = path.read_text(encoding="utf-8", errors="replace")
                pairs |= set(re.findall(r"Driver Version: (\d{3}\.[\d.]+)\s+CUDA Version: ([\d.]+)", text))
                pairs |= set(
                    re.findall(r"<driver_version>(\d{3}\.[\d.]+)</driver_version>\s*<cuda_version>([\d.]+)<", text)
                )
        # Windows branches have numbers of their own (536 is 535's).
        known = {(driver, cuda) for driver, cuda in pairs if cuda_of_driver(driver) is not None}
        assert len(known) >= 5
        assert {(driver, cuda_of_driver(driver)) for driver, _cuda in known} == known


class TestLoaderFolders:
    def test_order(self) -> None:
        host = InstalledHost(
            files={
                "/etc/ld.so.conf": "include /etc/ld.so.conf.d/*.conf\n/opt/last # why\nhwcap 1 nosegneg\n",
                "/etc/ld.so.conf.d/nvidia.conf": "/opt/nvidia/lib\n",
                "/etc/ld.so.conf.d/rocm.conf": "include more/*.list\n/opt/rocm/lib\n",
                "/etc/ld.so.conf.d/more/a.list": "/opt/more\n",
                "/etc/ld.so.conf.d/README": "/not/this\n",
            },
            environ={"LD_LIBRARY_PATH": "/first/:relative::/second"},
        )
        folders = LibraryFolders(host).folders
        assert folders[:6] == ("/first", "/second", "/opt/nvidia/lib", "/opt/more", "/opt/rocm/lib", "/opt/last")
        assert LIB in folders
        assert "/not/this" not in folders

    def test_an_include_of_itself_ends(self) -> None:
        host = InstalledHost(files={"/etc/ld.so.conf": "include /etc/ld.so.conf\n/a\n"})
        assert "/a" in LibraryFolders(host).folders

    def test_an_include_of_nothing_is_nothing(self) -> None:
        host = InstalledHost(files={"/etc/ld.so.conf": "include /nowhere/*.conf\n/a\n"})
        assert LibraryFolders(host).folders[0] == "/a"

    def test_the_loaders_choice_comes_first_and_copies_are_kept(self) -> None:
        host = InstalledHost(
            files={
                "/mine/libnvinfer.so.10.3.0": b"",
                f"{LIB}/libnvinfer.so.8.6.1": b"",
                f"{LIB}/libnvinfer.so.8.6.1.bak": b"",
                f"{LIB}/libnvinfer_plugin.so.8.6.1": b"",
            },
            links={f"{LIB}/libnvinfer.so.8": "libnvinfer.so.8.6.1"},
            environ={"LD_LIBRARY_PATH": "/mine"},
        )
        assert [version for version, _path in found(host, "tensorrt")][:2] == ["10.3.0", "8.6.1"]

    def test_a_folder_that_cannot_be_listed_is_passed_over(self) -> None:
        host = InstalledHost(files={f"{LIB}/libze_loader.so.1.17.6": b""}, errors={"/usr/lib64": errno.EACCES})
        assert found(host, "level-zero") == [("1.17.6", f"{LIB}/libze_loader.so.1.17.6")]

    def test_smi_libraries(self) -> None:
        host = InstalledHost(files={f"{LIB}/libnvidia-ml.so.550.54.14": b"", f"{LIB}/libamd_smi.so.25.0": b""})
        assert found(host, "nvml") == [("550.54.14", f"{LIB}/libnvidia-ml.so.550.54.14")]
        assert found(host, "amdsmi") == [("25.0", f"{LIB}/libamd_smi.so.25.0")]


class TestCudaRuntime:
    def test_a_toolkit_is_found_once_whatever_links_lead_to_it(self) -> None:
        host = InstalledHost(
            files={
                "/usr/local/cuda-12.4/version.json": VERSION_JSON,
                "/usr/local/cuda-12.4/lib64/libcudart.so.12.4.127": b"",
                "/etc/ld.so.conf.d/cuda.conf": "/usr/local/cuda/lib64\n",
                "/etc/ld.so.conf": "include /etc/ld.so.conf.d/*.conf\n",
            },
            links={"/usr/local/cuda": "cuda-12.4", "/usr/local/cuda-12": "/usr/local/cuda-12.4"},
            environ={"CUDA_HOME": "/usr/local/cuda", "CUDA_PATH": "/gone"},
        )
        (cudart,) = named(find_runtimes(host)[0], "cudart")
        assert (cudart.version, cudart.built_for, cudart.path) == ("12.4.127", "CUDA 12.4.1", "/usr/local/cuda-12.4")

    def test_an_old_toolkit_has_a_text_file(self) -> None:
        host = InstalledHost(files={"/usr/local/cuda-10.2/version.txt": "CUDA Version 10.2.89\n"})
        assert found(host, "cudart") == [("10.2.89", "/usr/local/cuda-10.2")]

    def test_a_folder_without_a_version_is_no_toolkit(self) -> None:
        assert found(InstalledHost(files={"/usr/local/cuda-11/README": "x"}), "cudart") == []
        assert found(InstalledHost(files={"/usr/local/cuda-11/version.txt": "soon"}), "cudart") == []

    @pytest.mark.parametrize(
        "text", ["{", '{"cuda": 12}', '{"cuda": {}}', "\x00\xff", "7", '{"cuda": {"version": 12}}']
    )
    def test_a_broken_version_file_is_a_conflict(self, text: str) -> None:
        path = "/usr/local/cuda-12.4/version.json"
        runtimes, conflicts = find_runtimes(InstalledHost(files={path: text}))
        assert named(runtimes, "cudart") == []
        assert [(conflict.subject, conflict.kind) for conflict in conflicts] == [(path, "broken_file")]

    def test_a_version_file_that_tells_nothing_is_no_conflict(self) -> None:
        assert find_runtimes(InstalledHost(files={"/usr/local/cuda-12.4/version.json": "{}"})) == ((), ())

    def test_a_loose_library(self) -> None:
        host = InstalledHost(files={f"{LIB}/libcudart.so.11.5.117": b""})
        assert found(host, "cudart") == [("11.5.117", f"{LIB}/libcudart.so.11.5.117")]

    def test_wheels(self) -> None:
        host = InstalledHost(
            files={
                **wheel("nvidia-cuda-runtime-cu12", "12.4.127", {"nvidia/cuda_runtime/lib/libcudart.so.12": ""}),
                **wheel("nvidia-cuda-runtime", "13.0.96", {"nvidia/cu13/lib/libcudart.so.13": ""}),
                **wheel("tensorrt-cu12-libs", "10.3.0", {"tensorrt_libs/libnvinfer.so.10": ""}),
            }
        )
        runtimes, _conflicts = find_runtimes(host)
        assert {(each.distribution, each.version) for each in named(runtimes, "cudart")} == {
            ("nvidia-cuda-runtime-cu12", "12.4.127"),
            ("nvidia-cuda-runtime", "13.0.96"),
        }
        assert [each.version for each in named(runtimes, "tensorrt") if each.kind == "runtime"] == ["10.3.0"]

    def test_a_toolkit_without_its_version_file_is_known_by_its_library(self) -> None:
        files: dict[str, str | bytes] = {
            "/usr/local/cuda-13.0/lib/libcudart.so.13": "",
            "/usr/local/cuda-13.0/bin/nvcc": "",
        }
        path = "/usr/local/cuda-13.0/lib/libcudart.so.13"
        assert found(InstalledHost(files=files), "cudart") == [("13", path)]


class TestRocm:
    def test_releases_and_hip(self) -> None:
        host = InstalledHost(
            files={
                "/opt/rocm-6.2.0/.info/version": "6.2.0-66\n",
                "/opt/rocm-6.2.0/lib/libamdhip64.so.6.2.60200": b"",
                "/srv/rocm/.info/version": "7.0.1\n",
            },
            links={"/opt/rocm": "rocm-6.2.0", "/opt/rocm-6.2.0/lib/libamdhip64.so.6": "libamdhip64.so.6.2.60200"},
            environ={"ROCM_PATH": "/srv/rocm"},
        )
        assert found(host, "rocm") == [("7.0.1", "/srv/rocm"), ("6.2.0", "/opt/rocm-6.2.0")]
        assert found(host, "hip") == [("6.2.60200", "/opt/rocm-6.2.0/lib/libamdhip64.so.6.2.60200")]

    def test_a_wheel_brings_its_own(self) -> None:
        files = {"_rocm_sdk_core/lib/libamdhip64.so.7": "", "_rocm_sdk_core/__init__.py": ""}
        host = InstalledHost(files=wheel("rocm-sdk-core", "7.9.0", files))
        (rocm,) = named(find_runtimes(host)[0], "rocm")
        assert (rocm.version, rocm.distribution) == ("7.9.0", "rocm-sdk-core")
        assert found(host, "hip") == [("7", f"{SITE}/_rocm_sdk_core/lib/libamdhip64.so.7")]

    def test_a_debian_library_needs_no_release(self) -> None:
        host = InstalledHost(files={f"{LIB}/libamdhip64.so.5.2.21153-0": b"", f"{LIB}/libamdhip64.so.5": b""})
        assert ("5", f"{LIB}/libamdhip64.so.5") in found(host, "hip")
        assert found(host, "rocm") == []

    def test_garbage_in_place_of_a_version(self) -> None:
        host = InstalledHost(files={"/opt/rocm/.info/version": "???", "/opt/rocm-5.7.1/bin/hipcc": ""})
        runtimes, conflicts = find_runtimes(host)
        assert named(runtimes, "rocm") == []
        assert [conflict.subject for conflict in conflicts] == ["/opt/rocm/.info/version"]


class TestIcds:
    def test_opencl(self) -> None:
        host = InstalledHost(
            files={
                "/etc/OpenCL/vendors/amdocl64_60200.icd": "/opt/rocm-6.2.0/lib/libamdocl64.so\n",
                "/etc/OpenCL/vendors/intel.icd": "/usr/lib/x86_64-linux-gnu/intel-opencl/libigdrcl.so\n",
                "/etc/OpenCL/vendors/nvidia.icd": "libnvidia-opencl.so.1\n",
                "/etc/OpenCL/vendors/pocl.icd": "libpocl.so.2.10.0\n",
                "/etc/OpenCL/vendors/empty.icd": "\n",
            }
        )
        runtimes, conflicts = find_runtimes(host)
        assert {each.built_for: each.vendors for each in named(runtimes, "opencl")} == {
            "libamdocl64.so": ("amd",),
            "libigdrcl.so": ("intel",),
            "libnvidia-opencl.so.1": ("nvidia",),
            "libpocl.so.2.10.0": (),
        }
        assert [(each.subject, each.kind) for each in conflicts] == [("/etc/OpenCL/vendors/empty.icd", "broken_file")]

    @pytest.mark.parametrize(
        ("value", "libraries"),
        [
            ("/mine", ["libmine.so"]),
            ("/mine/", ["libmine.so"]),
            ("/mine/only.icd", ["libmine.so"]),
            ("libnvidia-opencl.so.1", ["libnvidia-opencl.so.1"]),
            ("/lib/libOther.so", ["libOther.so"]),
            ("", ["libpocl.so.2"]),
        ],
    )
    def test_ocl_icd_vendors_is_a_folder_a_file_or_a_library(self, value: str, libraries: list[str]) -> None:
        host = InstalledHost(
            files={"/mine/only.icd": "libmine.so\n", "/etc/OpenCL/vendors/pocl.icd": "libpocl.so.2\n"},
            environ={"OCL_ICD_VENDORS": value},
        )
        assert [each.built_for for each in named(find_runtimes(host)[0], "opencl")] == libraries

    def test_vulkan_folders(self) -> None:
        manifest = '{{"ICD": {{"api_version": "{}", "library_path": "{}"}}, "file_format_version": "1.0.0"}}'
        host = InstalledHost(
            files={
                "/etc/vulkan/icd.d/nvidia_icd.json": manifest.format("1.3.277", "libGLX_nvidia.so.0"),
                "/usr/share/vulkan/icd.d/radeon_icd.x86_64.json": manifest.format(
                    "1.3.255", "/usr/lib/libvulkan_radeon.so"
                ),
                "/usr/share/vulkan/icd.d/lvp_icd.x86_64.json": manifest.format("1.3.255", "libvulkan_lvp.so"),
                "/usr/share/vulkan/icd.d/readme.txt": "x",
                "/extra/a.json": manifest.format("1.3.0", "libvulkan_intel.so"),
            },
            environ={"VK_ADD_DRIVER_FILES": "/extra"},
        )
        assert [(each.vendors, each.version) for each in named(find_runtimes(host)[0], "vulkan")] == [
            (("intel",), "1.3.0"),
            (("nvidia",), "1.3.277"),
            ((), "1.3.255"),
            (("amd",), "1.3.255"),
        ]

    def test_vk_driver_files_beats_vk_icd_filenames(self) -> None:
        files: dict[str, str | bytes] = {f"/{name}.json": '{"ICD": {"library_path": "lib.so"}}' for name in "abc"}
        files["/etc/vulkan/icd.d/d.json"] = files["/a.json"]
        both = {"VK_DRIVER_FILES": "/a.json:/b.json", "VK_ICD_FILENAMES": "/c.json"}
        old = {"VK_ICD_FILENAMES": "/c.json"}
        assert [path for _version, path in found(InstalledHost(files=files, environ=both), "vulkan")] == [
            "/a.json",
            "/b.json",
        ]
        assert [path for _version, path in found(InstalledHost(files=files, environ=old), "vulkan")] == ["/c.json"]

    def test_egl_order_and_its_exclusive_list(self) -> None:
        files: dict[str, str | bytes] = {
            "/usr/share/glvnd/egl_vendor.d/50_mesa.json": '{"ICD": {"library_path": "libEGL_mesa.so.0"}}',
            "/usr/share/glvnd/egl_vendor.d/10_nvidia.json": '{"ICD": {"library_path": "libEGL_nvidia.so.0"}}',
        }
        egl = named(find_runtimes(InstalledHost(files=files))[0], "egl")
        assert [each.vendors for each in egl] == [("nvidia",), ("amd", "intel")]
        mesa = "/usr/share/glvnd/egl_vendor.d/50_mesa.json"
        only = InstalledHost(files=files, environ={"__EGL_VENDOR_LIBRARY_FILENAMES": mesa})
        assert [path for _version, path in found(only, "egl")] == [mesa]
        elsewhere = InstalledHost(files=files, environ={"__EGL_VENDOR_LIBRARY_DIRS": "/nowhere"})
        assert found(elsewhere, "egl") == []

    @pytest.mark.parametrize("text", ["{", "[]", "{}", '{"ICD": []}', '{"ICD": {"library_path": 3}}'])
    def test_a_broken_manifest_is_a_conflict(self, text: str) -> None:
        path = "/etc/vulkan/icd.d/bad.json"
        _runtimes, conflicts = find_runtimes(InstalledHost(files={path: text}))
        assert [(each.subject, each.kind) for each in conflicts] == [(path, "broken_file")]

    def test_a_manifest_that_may_not_be_read_is_a_conflict(self) -> None:
        path = "/etc/vulkan/icd.d/secret.json"
        _runtimes, conflicts = find_runtimes(InstalledHost(files={path: "{}"}, errors={path: errno.EACCES}))
        assert "Permission denied" in conflicts[0].message

    def test_a_file_outside_a_recording_is_nothing(self) -> None:
        host = InstalledHost(files={"/x": ""}, environ={"VK_DRIVER_FILES": "/elsewhere/a.json"}, lacks=("/elsewhere",))
        assert find_runtimes(host) == ((), ())

    def test_the_manifests_of_a_distribution(self, shared: Path) -> None:
        folder = shared / "machines" / "distro"
        files: dict[str, str | bytes] = {}
        for source, target in (
            ("OpenCL/vendors", "/etc/OpenCL/vendors"),
            ("vulkan/icd.d", "/usr/share/vulkan/icd.d"),
            ("glvnd/egl_vendor.d", "/usr/share/glvnd/egl_vendor.d"),
        ):
            files |= {f"{target}/{path.name}": path.read_bytes() for path in (folder / source).iterdir()}
        runtimes, conflicts = find_runtimes(InstalledHost(files=files))
        assert conflicts == ()
        assert {(each.name, (each.path or "").rsplit("/", 1)[-1]): each.vendors for each in runtimes} == {
            ("opencl", "intel.icd"): ("intel",),
            ("opencl", "mesa.icd"): ("amd", "intel"),
            ("opencl", "pocl.icd"): (),
            ("opencl", "rusticl.icd"): ("amd", "intel"),
            ("vulkan", "intel_hasvk_icd.x86_64.json"): ("intel",),
            ("vulkan", "intel_icd.x86_64.json"): ("intel",),
            ("vulkan", "lvp_icd.x86_64.json"): (),
            ("vulkan", "radeon_icd.x86_64.json"): ("amd",),
            ("egl", "50_mesa.json"): ("amd", "intel"),
        }


def test_an_empty_machine_has_nothing() -> None:
    assert find_runtimes(InstalledHost()) == ((), ())


def test_this_machine_can_be_asked() -> None:
    """Whatever is installed here: pytest itself is no GPU framework, and nothing raises."""
    runtimes, _conflicts = find_runtimes(local_host())
    assert "pytest" not in {runtime.name for runtime in runtimes}
    assert all(runtime.source for runtime in runtimes)


DEEP = "[" * 60000
GARBAGE = st.one_of(
    st.binary(max_size=200),
    st.sampled_from(
        ["", "{}", "[]", "null", "[1", DEEP, '{"ICD": {"library_path": "x"}}', '{"cuda": {"version": []}}']
    ),
)


@given(data=st.data())
def test_no_content_of_any_file_raises(data: st.DataObject) -> None:
    paths = [
        "/etc/ld.so.conf",
        "/usr/local/cuda-12.4/version.json",
        "/usr/local/cuda-12.4/version.txt",
        "/opt/rocm/.info/version",
        "/etc/OpenCL/vendors/a.icd",
        "/etc/vulkan/icd.d/a.json",
        "/etc/glvnd/egl_vendor.d/a.json",
        *(
            f"{SITE}/{name}"
            for name in ("torch/__init__.py", "torch/version.py", "cupy/__init__.py", "cupy/_version.py")
        ),
        *(f"{SITE}/{name}" for name in ("cupy/.data/_wheel.json", "onnxruntime/__init__.py")),
        f"{SITE}/onnxruntime/capi/build_and_package_info.py",
        *(f"{SITE}/cupy{kind}-1.0.dist-info/RECORD" for kind in ("", "_cuda12x")),
        f"{SITE}/cupy-1.0.dist-info/top_level.txt",
    ]
    host = InstalledHost(files={path: data.draw(GARBAGE) for path in data.draw(st.sets(st.sampled_from(paths)))})
    runtimes, conflicts = find_runtimes(host)
    assert all(runtime.version is None or isinstance(runtime.version, str) for runtime in runtimes)
    assert all(conflict.message for conflict in conflicts)

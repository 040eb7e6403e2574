"""Frameworks told apart by their own files, and distributions that own one import."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.probes.distributions import SitePackages, import_name
from pytest_gpucoexist.probes.runtimes import find_runtimes
from tests.probes.installed import SITE, InstalledHost, named, of_kind, wheel

if TYPE_CHECKING:
    from pytest_gpucoexist.model.machine import Conflict, Runtime

# torch 2.13.0+cpu's version.py, with the values of other builds.
VERSION_PY = """from typing import Optional

__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip', 'rocm', 'xpu']
__version__ = '{version}'
debug = False
cuda: Optional[str] = {cuda}
git_version = 'cf30153c4c131c8164ee7798e5022d810682e2cb'
hip: Optional[str] = {hip}
rocm: Optional[str] = None
xpu: Optional[str] = {xpu}
"""


def torch(version: str, cuda: str = "None", hip: str = "None", xpu: str = "None") -> dict[str, str | bytes]:
    files = {
        "torch/__init__.py": "",
        "torch/version.py": VERSION_PY.format(version=version, cuda=cuda, hip=hip, xpu=xpu),
    }
    return wheel("torch", version, files)


def the(name: str, *wheels: dict[str, str | bytes]) -> Runtime:
    (found,) = named(find_runtimes(InstalledHost(files={k: v for each in wheels for k, v in each.items()}))[0], name)
    return found


def conflicts_of(*wheels: dict[str, str | bytes]) -> tuple[Conflict, ...]:
    return find_runtimes(InstalledHost(files={k: v for each in wheels for k, v in each.items()}))[1]


class TestTorch:
    @pytest.mark.parametrize(
        ("files", "vendors", "built_for"),
        [
            (torch("2.6.0", cuda="'12.4'"), ("nvidia",), "CUDA 12.4"),
            (torch("2.6.0+rocm6.2.4", hip="'6.2.41134-65d174c3e'"), ("amd",), "ROCm 6.2.41134-65d174c3e"),
            (torch("2.7.0+xpu", xpu="'20250004'"), ("intel",), "XPU 20250004"),
            (torch("2.13.0+cpu"), (), "CPU"),
        ],
        ids=["cuda", "rocm", "xpu", "cpu"],
    )
    def test_version_py_tells_the_builds_apart(
        self, files: dict[str, str | bytes], vendors: tuple[str, ...], built_for: str
    ) -> None:
        found = the("torch", files)
        assert (found.vendors, found.built_for, found.distribution) == (vendors, built_for, "torch")
        assert (found.kind, found.path) == ("framework", f"{SITE}/torch")

    @pytest.mark.parametrize(
        ("version", "vendors", "built_for"),
        [
            ("2.6.0+cu124", ("nvidia",), "CUDA 12.4"),
            ("2.6.0+cu118", ("nvidia",), "CUDA 11.8"),
            ("2.6.0+rocm6.3", ("amd",), "ROCm 6.3"),
            ("2.6.0+cpu", (), "CPU"),
            ("2.6.0+xpu", ("intel",), "XPU"),
            ("2.6.0", (), None),
        ],
    )
    def test_without_version_py_the_local_version_tells(
        self, version: str, vendors: tuple[str, ...], built_for: str | None
    ) -> None:
        found = the("torch", wheel("torch", version, {"torch/__init__.py": ""}))
        assert (found.version, found.vendors, found.built_for) == (version, vendors, built_for)

    def test_a_source_tree_has_no_distribution(self) -> None:
        text = VERSION_PY.format(version="2.7.0a0+git1", cuda="'12.8'", hip="None", xpu="None")
        files: dict[str, str | bytes] = {f"{SITE}/torch/__init__.py": "", f"{SITE}/torch/version.py": text}
        found = the("torch", files)
        assert (found.distribution, found.version, found.vendors) == (None, "2.7.0a0+git1", ("nvidia",))

    def test_leftovers_of_an_uninstall_import_nothing(self) -> None:
        files = wheel("torch", "2.6.0", {"torch/lib/libtorch.so": ""})
        runtimes, conflicts = find_runtimes(InstalledHost(files=files))
        assert named(runtimes, "torch") == []
        assert [conflict.kind for conflict in conflicts] == ["broken_install"]


class TestCupy:
    @pytest.mark.parametrize(
        ("name", "wheel_json", "vendors", "built_for"),
        [
            ("cupy-cuda12x", '{"cuda": "12.x", "packaging": "pip"}', ("nvidia",), "CUDA 12.x"),
            ("cupy-rocm-7-0", '{"cuda": "rocm-7.0", "packaging": "pip"}', ("amd",), "ROCm 7.0"),
            ("cupy-cuda102", None, ("nvidia",), "CUDA 10.2"),
            ("cupy-cuda12x", None, ("nvidia",), "CUDA 12.x"),
            ("cupy-rocm-5-0", None, ("amd",), "ROCm 5.0"),
            ("cupy", None, (), None),
            ("cupy", "[]", (), None),
        ],
    )
    def test_by_its_own_file_else_by_name(
        self, name: str, wheel_json: str | None, vendors: tuple[str, ...], built_for: str | None
    ) -> None:
        files = {"cupy/__init__.py": "", "cupy/_version.py": "__version__ = '14.2.0'\n"}
        if wheel_json is not None:
            files["cupy/.data/_wheel.json"] = wheel_json
        found = the("cupy", wheel(name, "14.2.0", files))
        assert (found.version, found.vendors, found.built_for) == ("14.2.0", vendors, built_for)
        assert found.distribution == name

    def test_a_broken_file_is_a_conflict(self) -> None:
        files = wheel("cupy-cuda12x", "14.2.0", {"cupy/__init__.py": "", "cupy/.data/_wheel.json": "{"})
        runtimes, conflicts = find_runtimes(InstalledHost(files=files))
        (found,) = named(runtimes, "cupy")
        assert (found.version, found.vendors) == ("14.2.0", ())
        assert [conflict.kind for conflict in conflicts] == ["broken_metadata"]


class TestOthers:
    def test_jax_is_built_for_the_vendors_of_its_plugins(self) -> None:
        jax = wheel("jax", "0.7.0", {"jax/__init__.py": ""})
        cuda = wheel("jax-cuda12-plugin", "0.7.0", {"jax_cuda12_plugin/__init__.py": ""})
        rocm = wheel("jax-rocm60-plugin", "0.5.0", {"jax_rocm60_plugin/__init__.py": ""})
        xpu = wheel("intel-extension-for-openxla", "0.7.0", {"x/__init__.py": ""})
        assert (the("jax", jax).vendors, the("jax", jax).built_for) == ((), "CPU")
        assert (the("jax", jax, cuda).vendors, the("jax", jax, cuda).built_for) == (("nvidia",), "CUDA 12")
        assert the("jax", jax, rocm).built_for == "ROCm 60"
        assert the("jax", jax, cuda, rocm, xpu).vendors == ("nvidia", "amd", "intel")

    def test_triton_has_the_vendors_of_its_backends(self) -> None:
        files = {
            "triton/__init__.py": "",
            "triton/backends/nvidia/driver.py": "",
            "triton/backends/amd/driver.py": "",
        }
        assert the("triton", wheel("triton", "3.2.0", files)).vendors == ("nvidia", "amd")
        rocm = the("triton", wheel("pytorch-triton-rocm", "3.2.0", files))
        assert (rocm.vendors, rocm.distribution, rocm.version) == (("amd",), "pytorch-triton-rocm", "3.2.0")
        assert the("triton", wheel("triton", "2.0.0", {"triton/__init__.py": ""})).built_for is None

    @pytest.mark.parametrize(
        ("name", "info", "providers", "vendors", "built_for"),
        [
            ("onnxruntime", "package_name = 'onnxruntime'\n", [], (), "CPU"),
            (
                "onnxruntime-gpu",
                "package_name = 'onnxruntime-gpu'\n__version__ = '1.31.1'\ncuda_version = '13.0'\n",
                ["cuda", "tensorrt", "shared"],
                ("nvidia",),
                "CUDA 13.0",
            ),
            ("onnxruntime-rocm", None, ["rocm", "migraphx"], ("amd",), "ROCm"),
            ("onnxruntime-openvino", None, ["openvino"], ("intel",), "OpenVINO"),
            (
                "onnxruntime-directml",
                "package_name = 'onnxruntime-directml'\n",
                [],
                ("nvidia", "amd", "intel"),
                "DirectML",
            ),
        ],
    )
    def test_onnxruntime(
        self, name: str, info: str | None, providers: list[str], vendors: tuple[str, ...], built_for: str
    ) -> None:
        files = {"onnxruntime/__init__.py": "", "onnxruntime/capi/__init__.py": ""}
        files |= {f"onnxruntime/capi/libonnxruntime_providers_{each}.so": "" for each in providers}
        if info is not None:
            files["onnxruntime/capi/build_and_package_info.py"] = info
        found = the("onnxruntime", wheel(name, "1.31.1", files))
        assert (found.vendors, found.built_for, found.distribution) == (vendors, built_for, name)
        assert found.version == "1.31.1"

    def test_tensorrt(self) -> None:
        found = the("tensorrt", wheel("tensorrt-cu12-bindings", "10.3.0", {"tensorrt/__init__.py": ""}))
        assert (found.version, found.vendors, found.built_for) == ("10.3.0", ("nvidia",), "CUDA 12")
        assert the("tensorrt", wheel("tensorrt", "8.6.1", {"tensorrt/__init__.py": ""})).built_for == "CUDA"

    def test_a_single_module_counts_as_a_package(self) -> None:
        assert the("triton", wheel("triton", "1.0", {"triton.py": ""})).path == f"{SITE}/triton.py"


class TestDuplicates:
    CUDA = wheel("cupy-cuda12x", "14.2.0", {"cupy/__init__.py": "", "cupy/_util.abi3.so": "cuda", "cupy/a.py": "same"})
    ROCM = wheel("cupy-rocm-7-0", "14.2.0", {"cupy/__init__.py": "", "cupy/_util.abi3.so": "rocm", "cupy/a.py": "same"})

    def test_cupy_twice(self) -> None:
        (conflict,) = conflicts_of(self.CUDA, self.ROCM)
        assert (conflict.subject, conflict.kind) == ("cupy", "duplicate_import")
        assert conflict.message == (
            f"cupy-cuda12x 14.2.0 and cupy-rocm-7-0 14.2.0 both own `cupy`, `cupy._util`, `cupy.a` in {SITE}: "
            "what is imported is cupy-rocm-7-0's. Uninstall both, then install the one that is wanted"
        )
        assert conflict.claims == {
            "cupy-cuda12x": ["cupy/__init__.py", "cupy/_util.abi3.so", "cupy/a.py"],
            "cupy-rocm-7-0": ["cupy/__init__.py", "cupy/_util.abi3.so", "cupy/a.py"],
        }

    def test_the_last_installed_is_told_by_the_file_on_disk(self) -> None:
        (conflict,) = conflicts_of(self.ROCM, self.CUDA)
        assert "what is imported is cupy-cuda12x's" in conflict.message

    def test_the_files_of_neither_are_said_to_be_unknown(self) -> None:
        (conflict,) = conflicts_of(self.ROCM, self.CUDA, {f"{SITE}/cupy/_util.abi3.so": "edited"})
        assert "whose files these are cannot be told" in conflict.message

    def test_hip_python_interop_over_cuda_bindings_and_pynvml(self) -> None:
        """As the three wheels of 2026 lie on disk, interop installed last."""
        tag = "cpython-311-x86_64-linux-gnu.so"
        bindings = wheel(
            "cuda-bindings",
            "13.5.0",
            {"cuda/bindings/__init__.py": "", f"cuda/bindings/driver.{tag}": "nvidia", "cuda/bindings/_version.py": ""},
        )
        ml = wheel("nvidia-ml-py", "13.615.71", {"pynvml.py": "nvidia"})
        interop = wheel(
            "hip-python-interop",
            "10.0.0.0.1.2",
            {
                "cuda/py.typed": "",
                f"cuda/bindings/driver.{tag}": "longer than nvidia's",
                "cuda/bindings/driver.pyi": "",
                "pynvml/__init__.py": "amd smi",
            },
        )
        found = {conflict.subject: conflict for conflict in conflicts_of(bindings, ml, interop)}
        assert set(found) == {"cuda", "pynvml"}
        assert "both own `cuda.bindings.driver`" in found["cuda"].message
        assert "what is imported is hip-python-interop's" in found["cuda"].message
        assert found["pynvml"].claims == {"hip-python-interop": ["pynvml/__init__.py"], "nvidia-ml-py": ["pynvml.py"]}
        # The package wins over the module even where NVIDIA's came last.
        found = {conflict.subject: conflict for conflict in conflicts_of(interop, bindings, ml)}
        assert "what is imported is cuda-bindings's" in found["cuda"].message
        assert "what is imported is hip-python-interop's" in found["pynvml"].message

    def test_a_mixture_is_told_file_by_file(self) -> None:
        first = wheel("triton", "3.2.0", {"triton/a.py": "1", "triton/b.py": "1"})
        second = wheel("pytorch-triton-rocm", "3.2.0", {"triton/a.py": "2", "triton/b.py": "2"})
        (conflict,) = of_kind(conflicts_of(first, second, {f"{SITE}/triton/b.py": "1"}), "duplicate_import")
        assert "`triton.a` is pytorch-triton-rocm's and `triton.b` is triton's" in conflict.message

    def test_packages_that_share_a_folder_but_no_file_are_no_conflict(self) -> None:
        bindings = wheel("cuda-bindings", "13.5.0", {"cuda/bindings/__init__.py": ""})
        core = wheel("cuda-core", "0.4.0", {"cuda/core/__init__.py": ""})
        assert conflicts_of(bindings, core) == ()

    def test_without_record_top_level_txt_decides(self) -> None:
        first = wheel("cupy", "13.0.0", {"cupy/__init__.py": ""}, record=False, top_level="cupy\ncupyx\n")
        second = wheel("cupy-cuda12x", "13.0.0", {"cupy/__init__.py": ""})
        (conflict,) = conflicts_of(first, second)
        assert "cupy 13.0.0 has no readable RECORD" in conflict.message
        silent = wheel("cupy", "13.0.0", {}, record=False)
        assert conflicts_of(silent, second) == ()

    def test_two_folders_of_sys_path(self) -> None:
        user = "/home/me/.local/lib/python3.11/site-packages"
        files = {
            **wheel("cupy-cuda12x", "13.0.0", {"cupy/__init__.py": ""}, site=user),
            **wheel("cupy-rocm-5-0", "13.0.0", {"cupy/__init__.py": ""}),
        }
        host = InstalledHost(files=files, python_path=(user, SITE))
        (conflict,) = find_runtimes(host)[1]
        assert conflict.message.startswith(f"cupy-cuda12x 13.0.0 in {user} and cupy-rocm-5-0 13.0.0 in {SITE} both own")
        (cupy,) = named(find_runtimes(host)[0], "cupy")
        assert (cupy.distribution, cupy.path) == ("cupy-cuda12x", f"{user}/cupy")

    def test_an_owner_elsewhere_that_provides_nothing_is_no_conflict(self) -> None:
        user = "/home/me/site-packages"
        files = {
            **wheel("pynvml", "13.0.1", {"pynvml_utils/__init__.py": ""}, site=user),
            **wheel("nvidia-ml-py", "13.0", {"pynvml.py": ""}),
        }
        assert find_runtimes(InstalledHost(files=files, python_path=(user, SITE)))[1] == ()

    def test_only_records_of_suspects_are_read(self) -> None:
        files = {k: v for n in range(50) for k, v in wheel(f"pkg{n}", "1", {f"pkg{n}/__init__.py": ""}).items()}
        host = InstalledHost(files={**files, **self.CUDA, **self.ROCM})
        find_runtimes(host)
        assert sorted(path for path in host.read if path.endswith("RECORD")) == [
            f"{SITE}/cupy_cuda12x-14.2.0.dist-info/RECORD",
            f"{SITE}/cupy_rocm_7_0-14.2.0.dist-info/RECORD",
        ]

    @pytest.mark.parametrize("text", ["", "\x00\x01,,,,\n", '"a,b.py",sha256=x,1\n', "cupy/__init__.py\n", ",,\n"])
    def test_a_damaged_record_does_not_raise(self, text: str) -> None:
        files = {**self.CUDA, **self.ROCM, f"{SITE}/cupy_cuda12x-14.2.0.dist-info/RECORD": text}
        assert all(conflict.kind == "duplicate_import" for conflict in conflicts_of(files))

    def test_a_file_that_cannot_be_read_is_nobodys(self) -> None:
        host = InstalledHost(files={**self.CUDA, **self.ROCM}, errors={f"{SITE}/cupy/_util.abi3.so": errno.EIO})
        (conflict,) = find_runtimes(host)[1]
        assert "whose files these are cannot be told" in conflict.message


class TestSitePackages:
    def test_names_and_versions(self) -> None:
        host = InstalledHost(
            files={
                f"{SITE}/Foo_Bar.baz-1.2.dist-info/METADATA": "",
                f"{SITE}/egg-2.0-py3.11.egg-info/PKG-INFO": "",
                f"{SITE}/bare.egg-info": "",
                f"{SITE}/.dist-info/METADATA": "",
            },
            python_path=("", SITE, f"{SITE}/", "/gone.zip"),
        )
        found = {(each.name, each.version) for each in SitePackages(host).distributions}
        assert found == {("foo-bar-baz", "1.2"), ("egg", "2.0"), ("bare", None)}

    @pytest.mark.parametrize(
        ("path", "name"),
        [
            ("pynvml.py", "pynvml"),
            ("cuda/bindings/driver.cpython-311-x86_64-linux-gnu.so", "cuda.bindings.driver"),
            ("a/b.abi3.so", "a.b"),
            ("a/b.cp311-win_amd64.pyd", "a.b"),
            ("a/b.so", "a.b"),
            ("a/__init__.cpython-311-x86_64-linux-gnu.so", "a"),
            ("a/data.json", None),
            ("a/b.pyi", None),
            ("../../bin/tool.py", None),
            ("x-1.0.dist-info/RECORD", None),
            ("x-1.0.data/scripts/y.py", None),
            ("a/not-a-name.py", None),
            ("a/lib.so.12", None),
        ],
    )
    def test_import_names(self, path: str, name: str | None) -> None:
        assert import_name(path) == name

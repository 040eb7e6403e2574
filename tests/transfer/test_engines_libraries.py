"""Libraries that are not there, do not load, or are too old; and the numbers that the tables have."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.errors import EngineError
from pytest_gpucoexist.transfer.cuda_engine import CudaEngine
from pytest_gpucoexist.transfer.engine import open_engine
from pytest_gpucoexist.transfer.hip_engine import HipEngine
from pytest_gpucoexist.transfer.runtime import Runtime
from pytest_gpucoexist.transfer.signatures import CUDA, HIP, KINDS

if TYPE_CHECKING:
    from pytest_gpucoexist.transfer.signatures import Table


@pytest.mark.parametrize("table", [CUDA, HIP], ids=lambda table: table.runtime)
def test_a_library_that_is_not_installed(table: Table) -> None:
    absent = dataclasses.replace(table, sonames=("libnot-there.so.1", "libnot-there-either.so"))
    with pytest.raises(EngineError, match=r"not installed: libnot-there\.so\.1, libnot-there-either\.so") as caught:
        Runtime(absent)
    assert (caught.value.kind, caught.value.call, caught.value.code) == ("library", "dlopen", None)


def test_an_installation_is_looked_into_by_its_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    absent = dataclasses.replace(HIP, sonames=("libnot-there.so.1",))
    with pytest.raises(EngineError, match=re.escape(f"{tmp_path}/lib/libnot-there.so.1")):
        Runtime(absent)


@pytest.mark.parametrize("kind", [CudaEngine, HipEngine])
def test_a_library_that_does_not_load(kind: Any, tmp_path: Path) -> None:
    broken = tmp_path / "libbroken.so"
    broken.write_text("no library")
    with pytest.raises(
        EngineError, match=r"libbroken\.so cannot be loaded: .*(invalid ELF header|too short)"
    ) as caught:
        kind("0000:01:00.0", library=str(broken))
    assert caught.value.kind == "library"


@pytest.mark.parametrize(("kind", "function"), [(CudaEngine, "cuInit"), (HipEngine, "hipGetLastError")])
def test_a_library_that_lacks_a_function(kind: Any, function: str) -> None:
    with pytest.raises(EngineError, match=rf"libc\.so\.6 has no {function}; a newer driver has it") as caught:
        kind("0000:01:00.0", library="libc.so.6")
    assert (caught.value.kind, caught.value.call) == ("library", function)


@pytest.mark.parametrize(("runtime", "function"), [("cuda", "cuInit"), ("hip", "hipGetLastError")])
def test_runtimes_are_opened_by_name(runtime: str, function: str) -> None:
    with pytest.raises(EngineError, match=f"has no {function}"):
        open_engine(runtime, "0000:01:00.0", library="libc.so.6")


@pytest.mark.parametrize("kind", [CudaEngine, HipEngine])
@pytest.mark.parametrize("address", [None, "", "gpu0", "0000:01:20.0"])
def test_an_address_that_is_none(kind: Any, address: str | None) -> None:
    with pytest.raises(EngineError, match="is no PCI address") as caught:
        kind(address)
    assert caught.value.kind == "argument"


def _cuda_header() -> str:
    for folder in (Path(pytest.__file__).parents[1] / "nvidia").glob("*/include/cuda.h"):
        return folder.read_text(errors="replace")
    pytest.skip("needs cuda.h: pip install nvidia-cuda-runtime")


def test_cuda_s_names_are_those_of_its_header() -> None:
    header = _cuda_header()
    declared = set(re.findall(r"CUDAAPI (cu\w+)\(", header))
    newest = dict(re.findall(r"#define (cu\w+)\s+(?:__CUDA_API_PT[SD][SZ]?\()?(cu\w+_v\d+)\b", header))
    for function in CUDA.functions.values():
        plain = re.sub(r"_v\d+$", "", function.name)
        assert plain in declared
        if function.name != plain:
            assert newest[plain] == function.name
        count = re.search(rf"CUDAAPI {plain}\(([^)]*)\);", header)
        assert count is not None
        given = [] if count[1].strip() == "void" else count[1].split(",")
        assert len(given) == len(function.arguments), function.name


def test_codes_are_those_of_cuda_s_header() -> None:
    numbers = {int(code): name for name, code in re.findall(r"CUDA_ERROR_(\w+)\s*=\s*(\d+)", _cuda_header())}
    words = {
        "memory": "MEMORY",
        "registered": "REGISTERED",
        "not-registered": "NOT_REGISTERED",
        "not-ready": "NOT_READY",
    }
    for code, kind in KINDS.items():
        if code != 17:  # HIP's alone
            assert words.get(kind, "") in numbers[code]


def test_codes_and_flags_are_those_of_hip() -> None:
    hip = pytest.importorskip("rocm.bindings.hip", reason="needs rocm-bindings-hip")
    names = {1: "InvalidValue", 2: "OutOfMemory", 17: "InvalidDevicePointer", 100: "NoDevice", 101: "InvalidDevice"}
    names |= {600: "NotReady", 712: "HostMemoryAlreadyRegistered", 713: "HostMemoryNotRegistered", 719: "LaunchFailure"}
    assert {code: int(getattr(hip.hipError_t, f"hipError{name}")) for code, name in names.items()} == {
        c: c for c in names
    }
    assert set(names) <= set(KINDS)
    assert hip.hipHostRegisterPortable | hip.hipHostRegisterMapped == 3
    assert (int(hip.hipMemcpyKind.hipMemcpyHostToDevice), int(hip.hipMemcpyKind.hipMemcpyDeviceToHost)) == (1, 2)
    assert hip.hipStreamNonBlocking == 1
    assert all(hasattr(hip, function.name) for function in HIP.functions.values())

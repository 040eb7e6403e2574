"""A process is its vendor's alone, or the library, the module or the variable that says otherwise is named."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.errors import VendorCallError
from pytest_gpucoexist.host import local_host
from pytest_gpucoexist.host.base import Node
from pytest_gpucoexist.processes.isolation import (
    foreign_libraries,
    mapped_files,
    opened_devices,
    shadowed_modules,
    shifted_masks,
)
from pytest_gpucoexist.testing.builder import a_machine
from tests.machines import amd, dual, nvidia
from tests.processes import called

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from pytest_gpucoexist.processes.opening import OpenedProcess
    from tests.fakes.machine import FakeMachine


@pytest.fixture
def open_one(start: Any) -> Iterator[Callable[..., OpenedProcess]]:
    """Open processes of a vendor on a machine of two; they end with the test, which then leaves nothing behind."""
    from pytest_gpucoexist.processes.opening import open_process

    running: list[OpenedProcess] = []

    def opener(vendor: str, environ: Mapping[str, str] | None = None, **more: Any) -> OpenedProcess:
        gpu = {"nvidia": nvidia(1), "amd": amd(0)}[vendor]
        opened = open_process([gpu], dual(), vendor, host=local_host(), environ=environ, **more)  # type: ignore[arg-type]
        running.append(opened)
        return opened

    yield opener
    for opened in running:
        opened.close()


def library(folder: Path, name: str) -> str:
    """Build an empty library of that name."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc, for a library")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    source = folder / "empty.c"
    source.write_text("int empty_library;\n")
    subprocess.run(["gcc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", str(path), str(source)], check=True)
    return str(path)


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_a_process_that_was_left_alone_is_its_vendor_s(
    open_one: Callable[..., OpenedProcess], vendor: str, tmp_path: Path
) -> None:
    environ = {
        **local_host().environ,
        "ROCM_PATH": "/opt/rocm",
        "CUDA_HOME": "/usr/local/cuda",
        "CUDA_VISIBLE_DEVICES": "0",
        "LD_PRELOAD": "",
    }
    opened = open_one(vendor, environ)
    seen = opened.run(called.variables, "ROCM_PATH", "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
    assert (
        seen
        == {
            "nvidia": {
                "ROCM_PATH": None,
                "CUDA_HOME": "/usr/local/cuda",
                "CUDA_VISIBLE_DEVICES": "1",
                "HIP_VISIBLE_DEVICES": "-1",
            },
            "amd": {
                "ROCM_PATH": "/opt/rocm",
                "CUDA_HOME": None,
                "CUDA_VISIBLE_DEVICES": "-1",
                "HIP_VISIBLE_DEVICES": "0",
            },
        }[vendor]
    )
    assert opened.breaches() == ()
    assert {change.name for change in opened.scoped.changes} >= {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"}
    assert opened.devices == ({"nvidia": nvidia(1), "amd": amd(0)}[vendor].key,)


def test_a_library_that_is_loaded_later_is_named(open_one: Callable[..., OpenedProcess], tmp_path: Path) -> None:
    path = library(tmp_path, "libamdhip64.so.6")
    opened = open_one("nvidia")
    assert opened.breaches() == ()
    opened.run(called.load_library, path)
    (breach,) = opened.breaches()
    assert (breach.kind, breach.vendor, breach.subject) == ("library", "amd", path)
    assert breach.sentence == f"the process of nvidia has a library of amd mapped: {path}"
    own = open_one("amd")
    own.run(called.load_library, path)
    assert own.breaches() == ()


def test_a_library_that_was_preloaded_is_taken_out_or_named(
    open_one: Callable[..., OpenedProcess], start: Any, tmp_path: Path
) -> None:
    path = library(tmp_path, "libcuda.so.1")
    environ = {**local_host().environ, "LD_PRELOAD": path}
    assert open_one("amd", environ).breaches() == ()
    # Of a process that got the variable all the same: a preloaded library is there before any code runs.
    process = start(environment=environ)
    (breach,) = foreign_libraries(mapped_files(local_host(), process.pid), "amd")
    assert breach.subject == path


def test_a_library_whose_file_was_deleted_is_still_named(
    open_one: Callable[..., OpenedProcess], tmp_path: Path
) -> None:
    path = library(tmp_path / "with a space", "libhsa-runtime64.so.1")
    opened = open_one("nvidia")
    opened.run(called.load_library, path)
    os.unlink(path)
    assert [breach.subject for breach in opened.breaches()] == [path]


def test_the_loader_s_path_is_the_process_s_own(open_one: Callable[..., OpenedProcess], tmp_path: Path) -> None:
    """The dynamic loader reads its path once, when the process begins."""
    library(tmp_path, "libonlyhere.so.3")
    environ = {**local_host().environ, "LD_LIBRARY_PATH": f"{tmp_path}:/opt/rocm/lib"}
    opened = open_one("nvidia", environ)
    opened.run(called.load_library, "libonlyhere.so.3")
    assert str(tmp_path / "libonlyhere.so.3") in mapped_files(local_host(), opened.process.pid)
    assert opened.run(called.variables, "LD_LIBRARY_PATH") == {"LD_LIBRARY_PATH": str(tmp_path)}


@pytest.mark.parametrize(
    ("vendor", "own", "other"),
    [("nvidia", "libcuda.so.1", "libamdhip64.so.7"), ("amd", "libamdhip64.so.7", "libcuda.so.1")],
)
def test_of_two_drivers_on_one_machine_a_process_finds_its_own(
    open_one: Callable[..., OpenedProcess], fake_gpus: FakeMachine, vendor: str, own: str, other: str
) -> None:
    if not {"fake_cuda", "fake_hip"} <= set(_drivers(fake_gpus)):
        pytest.skip("needs the fake drivers of both vendors")
    opened = open_one(vendor, {**local_host().environ, **fake_gpus.environ})
    opened.run(called.load_library, own)
    with pytest.raises(VendorCallError, match=f"{other}: cannot open shared object file"):
        opened.run(called.load_library, other)
    assert opened.breaches() == ()


def _drivers(machine: FakeMachine) -> list[str]:
    names = {"libcuda.so.1": "fake_cuda", "libamdhip64.so.7": "fake_hip"}
    folders = machine.environ.get("LD_LIBRARY_PATH", "").split(":")
    return [names[file] for folder in folders if os.path.isdir(folder) for file in os.listdir(folder) if file in names]


@pytest.mark.parametrize("setter", [called.set_variable, called.set_by_libc], ids=["by Python", "by libc"])
def test_a_mask_that_the_process_changed_is_named(open_one: Callable[..., OpenedProcess], setter: Any) -> None:
    opened = open_one("amd")
    opened.run(setter, "CUDA_VISIBLE_DEVICES", "0")
    opened.run(setter, "ONEAPI_DEVICE_SELECTOR", "*:gpu")
    assert [(breach.kind, breach.sentence) for breach in opened.breaches()] == [
        ("variable", "CUDA_VISIBLE_DEVICES is '0' in the process and should be '-1'"),
        ("variable", "ONEAPI_DEVICE_SELECTOR is '*:gpu' in the process and should be unset"),
    ]


def test_an_inherited_mask_is_named(open_one: Callable[..., OpenedProcess], start: Any) -> None:
    opened = open_one("amd")
    unscoped = start(environment={**local_host().environ, "HIP_VISIBLE_DEVICES": "3"})
    inside = unscoped.inspect(["HIP_VISIBLE_DEVICES"], [], "x")
    (breach,) = shifted_masks(inside.variables, opened.scoped.environment, ["HIP_VISIBLE_DEVICES"])
    assert breach.sentence == "HIP_VISIBLE_DEVICES is '3' in the process and should be '0'"


def install(site: Path, name: str, files: Mapping[str, str], *, overwrite: bool = True) -> None:
    """Install a distribution as pip does: files, and a record with their hashes."""
    info = site / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = []
    for file, text in files.items():
        path = site / file
        path.parent.mkdir(parents=True, exist_ok=True)
        if overwrite or not path.exists():
            path.write_text(text)
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        lines.append(f"{file},sha256={digest},{len(text)}\n")
    (info / "RECORD").write_text("".join([*lines, f"{info.name}/RECORD,,\n"]))


CUDA_BINDINGS = {"cuda/__init__.py": "", "cuda/bindings/__init__.py": "", "cuda/bindings/driver.py": "REAL = 1\n"}


def test_an_interop_package_that_overwrote_the_bindings_is_named(
    open_one: Callable[..., OpenedProcess], tmp_path: Path
) -> None:
    install(tmp_path, "cuda-bindings", CUDA_BINDINGS)
    install(tmp_path, "hip-python-interop", {"cuda/bindings/driver.py": "REAL = 0\n", "pynvml/__init__.py": "x = 1\n"})
    opened = open_one("nvidia", {**local_host().environ, "PYTHONPATH": str(tmp_path)})
    assert opened.breaches() == ()
    file = opened.run(called.import_module, "cuda.bindings.driver")
    assert file == str(tmp_path / "cuda/bindings/driver.py")
    (breach,) = opened.breaches()
    assert (breach.kind, breach.vendor, breach.subject) == ("import", "amd", file)
    assert breach.sentence == (
        "the process of nvidia imported cuda.bindings.driver of hip-python-interop, which overwrote files of "
        f"cuda-bindings: {file}"
    )
    opened.run(called.import_module, "pynvml")
    (breach,) = opened.breaches()
    assert "imported cuda.bindings.driver, pynvml of hip-python-interop" in breach.sentence


def test_the_right_bindings_are_no_breach(open_one: Callable[..., OpenedProcess], tmp_path: Path) -> None:
    install(tmp_path, "hip-python-interop", {"cuda/bindings/driver.py": "REAL = 0\n"})
    install(tmp_path, "cuda-bindings", CUDA_BINDINGS)  # the last one wins
    environ = {**local_host().environ, "PYTHONPATH": str(tmp_path)}
    opened = open_one("nvidia", environ)
    opened.run(called.import_module, "cuda.bindings.driver")
    assert opened.breaches() == ()
    other = open_one("amd", environ)
    other.run(called.import_module, "cuda.bindings.driver")
    (breach,) = other.breaches()
    assert breach.vendor == "nvidia"
    assert "imported cuda, cuda.bindings, cuda.bindings.driver of cuda-bindings, which overwrote" in breach.sentence


def test_a_file_that_two_claim_without_hashes_is_nobody_s_breach() -> None:
    module: dict[str, Any] = {
        "name": "pynvml",
        "file": "/x/pynvml.py",
        "claims": {"nvidia-ml-py": None, "hip-python-interop": None},
    }
    assert shadowed_modules([module], "nvidia") == ()
    assert shadowed_modules([{**module, "claims": {"hip-python-interop": None}}], "nvidia") != ()
    assert shadowed_modules([{**module, "claims": {}}], "nvidia") == ()


def test_many_modules_of_one_distribution_are_one_breach() -> None:
    modules = [
        {"name": f"rocm.m{at}", "file": f"/x/m{at}.so", "claims": {"rocm-bindings-hip": True}} for at in range(9)
    ]
    (breach,) = shadowed_modules(modules, "nvidia")
    assert "imported rocm.m0, rocm.m1, rocm.m2, rocm.m3 and 5 more of rocm-bindings-hip: /x/m0.so" in breach.sentence
    assert shadowed_modules(modules, "amd") == ()


def test_what_cannot_be_read_is_no_clean_bill(open_one: Callable[..., OpenedProcess]) -> None:
    opened = open_one("nvidia")
    opened.close()
    assert [breach.kind for breach in opened.breaches()] == ["unreadable", "unreadable"]


def test_a_context_of_this_process_shows_by_the_device_that_is_open() -> None:
    tree = (
        a_machine()
        .with_link("/proc/self/fd/0", "/dev/null")
        .with_link("/proc/self/fd/7", "/dev/nvidia0")
        .with_link("/proc/self/fd/8", "/dev/nvidiactl")
        .with_link("/proc/self/fd/9", "/dev/kfd")
        .with_node("/dev/null", Node(kind="chardev", major=1, minor=3))
        .host()
    )
    found = opened_devices(tree)
    assert [(breach.vendor, breach.subject) for breach in found] == [("nvidia", "/dev/nvidia0"), ("amd", "/dev/kfd")]
    assert "has made a context on a device of nvidia" in found[0].sentence
    assert opened_devices(local_host()) == ()
    assert [breach.kind for breach in opened_devices(a_machine().host())] == ["unreadable"]


def test_it_is_bound_to_the_cpus_and_the_memory_of_a_node(open_one: Callable[..., OpenedProcess]) -> None:
    from pytest_gpucoexist.model.machine import NumaNode

    cpu = min(os.sched_getaffinity(0))
    opened = open_one("nvidia", node=NumaNode(id=0, cpulist=f"{cpu}-{cpu},100000"))
    assert opened.process.cpus == (cpu,)
    if any("memory not bound" in note for note in opened.notes):
        pytest.skip(f"needs a kernel with memory policies: {opened.notes}")
    assert opened.run(called.bound) == ([cpu], 2, [0])
    assert opened.notes == ()


def test_what_cannot_be_bound_is_said(open_one: Callable[..., OpenedProcess]) -> None:
    from pytest_gpucoexist.model.machine import NumaNode

    opened = open_one("nvidia", node=NumaNode(id=900, cpulist="100000-100001"))
    assert set(opened.process.cpus) == os.sched_getaffinity(0)
    assert "no CPU of node 900 (100000-100001) is the caller's" in opened.notes[0]
    assert opened.notes[1].startswith("memory not bound: ")
    odd = open_one("nvidia", node=NumaNode(id=0, cpulist="0-x"))
    assert "are not understood" in odd.notes[0]
    assert opened.run(called.where)["executable"] == sys.executable

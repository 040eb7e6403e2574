"""ELF files: whole, cut short, overwritten."""

from __future__ import annotations

import io
import shutil
import subprocess

import pytest
from hypothesis import given, settings, strategies as st

from pytest_gpucoexist.gates.libraries.maps import parse_maps
from pytest_gpucoexist.gates.symbols.elf import Elf, prefix_of, read_elf
from pytest_gpucoexist.host import local_host
from pytest_gpucoexist.probes.reader import Bad
from tests.gates.symbols.build import library


def small() -> bytes:
    return library(
        "libamdhip64.so.6",
        "hipInit",
        "__hipRegisterFatBinary",
        "hsa_init",
        "other",
        needed=("libhsa-runtime64.so.1", "libamd_comgr.so.2"),
        runpath="$ORIGIN:$ORIGIN/../lib64",
    )


def read(data: bytes) -> Elf | Bad:
    return read_elf(io.BytesIO(data), exports=True)


def test_a_library_says_what_it_is_needs_and_exports() -> None:
    elf = read(small())
    assert isinstance(elf, Elf)
    assert elf.soname == "libamdhip64.so.6"
    assert elf.needed == ("libhsa-runtime64.so.1", "libamd_comgr.so.2")
    assert elf.runpath == ("$ORIGIN", "$ORIGIN/../lib64")
    assert elf.rpath == ()
    assert elf.exports == {"hipInit", "__hipRegisterFatBinary", "hsa_init"}
    assert elf.bits == 64
    assert elf.build_id is not None
    assert len(elf.build_id) == 40
    old = read(library("libx.so", rpath="/opt/rocm/lib"))
    assert isinstance(old, Elf)
    assert (old.rpath, old.runpath, old.exports) == (("/opt/rocm/lib",), (), frozenset())


def test_names_that_a_library_only_uses_are_not_its_own() -> None:
    elf = read(library("libuser.so", "hipOwn"))
    assert isinstance(elf, Elf)
    assert elf.exports == {"hipOwn"}


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"#!/bin/sh\n", b"/* GNU ld script */\nINPUT(libhip.so.6)\n", None])
def test_what_is_no_library_is_told(data: bytes | None) -> None:
    assert isinstance(read(small()[:-1] if data is None else data), Bad)


def test_programs_are_no_libraries() -> None:
    program = bytearray(small())
    program[16:18] = (2).to_bytes(2, "little")  # e_type: ET_EXEC
    found = read(bytes(program))
    assert isinstance(found, Bad)
    assert found.detail == "it is no shared library but ET_EXEC"


@given(st.integers(0, 1 << 20))
@settings(max_examples=100, deadline=None)
def test_a_file_cut_short_anywhere_is_no_traceback(length: int) -> None:
    elf = read(small()[: length % len(small())])
    assert isinstance(elf, Bad)
    assert elf.detail


@given(st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=20))
@settings(max_examples=100, deadline=None)
def test_bytes_overwritten_anywhere_are_no_traceback(changes: list[tuple[int, int]]) -> None:
    data = bytearray(small())
    for place, value in changes:
        data[place % len(data)] = value
    assert isinstance(read(bytes(data)), (Elf, Bad))


@given(st.binary(max_size=400))
@settings(max_examples=50, deadline=None)
def test_garbage_behind_the_right_beginning_is_no_traceback(data: bytes) -> None:
    assert isinstance(read(b"\x7fELF\x02\x01\x01" + data), Bad)


def test_a_real_library_of_this_system_agrees_with_readelf() -> None:
    maps = local_host().read_text("/proc/self/maps", 1 << 24)
    path = next((each.path for each in parse_maps(maps).libraries if "/libc.so" in each.path), None)
    if path is None or shutil.which("readelf") is None:
        pytest.skip("needs readelf and glibc")
    with open(path, "rb") as file:
        elf = read_elf(file, exports=True)
    assert isinstance(elf, Elf)
    shown = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout
    assert f"[{elf.soname}]" in shown
    assert all(f"[{name}]" in shown for name in elf.needed)
    assert elf.versioned


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("ncclAllReduce", "nccl*"),
        ("_ZN4llvm3FooE", "LLVM*"),
        ("__hipPushCallConfiguration", "hip*"),
        ("cudaMalloc", None),
    ],
)
def test_names_belong_to_a_runtime(name: str, group: str | None) -> None:
    assert prefix_of(name) == group

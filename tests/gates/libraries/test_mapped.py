"""Two copies of a runtime in one process, from maps files as kernels print them."""

from __future__ import annotations

import errno
import mmap
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings, strategies as st

from pytest_gpucoexist.gates.catalogue import all_gates
from pytest_gpucoexist.gates.libraries.families import family_of
from pytest_gpucoexist.gates.libraries.maps import parse_maps
from pytest_gpucoexist.gates.runner import judge
from pytest_gpucoexist.gates.subject import Subject
from pytest_gpucoexist.host import local_host
from pytest_gpucoexist.host.recording import RecordingHost
from pytest_gpucoexist.host.replay import ReplayHost
from pytest_gpucoexist.probes import discover
from pytest_gpucoexist.testing.builder import MachineBuilder, a_machine
from tests.gates.judging import SAID, judged, verdict, verdicts

if TYPE_CHECKING:
    from pathlib import Path

HEAP = "55d0c9a4f000-55d0c9a70000 rw-p 00000000 00:00 0                          [heap]\n"
VDSO = "7ffd1b5e6000-7ffd1b5e8000 r-xp 00000000 00:00 0                          [vdso]\n"
LIBC = "7f2a1c000000-7f2a1c026000 r--p 00000000 fe:01 1573245                    /usr/lib/x86_64-linux-gnu/libc.so.6\n"
SYSTEM_HIP = "/opt/rocm-6.4.1/lib/libamdhip64.so.6.4.60401"
TORCH_HIP = "/opt/venv/lib/python3.12/site-packages/torch/lib/libamdhip64.so"


def lines(path: str, inode: int, device: str = "fe:01", *, deleted: bool = False) -> str:
    """The five mappings of one library, in the kernel's format (seq_put_hex_ll, fs/proc/task_mmu.c)."""
    start = 0x7F2A00000000 + inode * 0x10000000
    out = ""
    for number, rights in enumerate(("r--p", "r-xp", "r--p", "r--p", "rw-p")):
        low = start + number * 0x100000
        head = f"{low:x}-{low + 0x100000:x} {rights} {number * 0x100000:08x} {device} {inode} "
        out += f"{head:<73}{path}{' (deleted)' if deleted else ''}\n"
    return out


def amd_with(*libraries: str) -> MachineBuilder:
    text = HEAP + LIBC + "".join(libraries) + VDSO
    return a_machine().with_gpu("rx7900xtx").with_file("/proc/self/maps", text)


@pytest.mark.proves("lib.amd.duplicate_hip", "FAIL", on="tree")
def test_two_hip_runtimes_in_one_process_make_the_amd_gpus_unfit() -> None:
    # ROCm/mori PR#402 and pytorch#152941: the system's HIP was loaded first, then torch brought its own.
    machine = amd_with(lines(SYSTEM_HIP, 4101), lines(TORCH_HIP, 9911)).with_gpu("rtx4090")
    judgement = judged(machine, "lib.amd.duplicate_hip")
    (said,) = judgement.verdicts
    assert said.status == "FAIL"
    assert said.reason == f"two HIP runtimes are mapped in this process: {SYSTEM_HIP}, {TORCH_HIP}"
    assert said.evidence[1].found == f"{TORCH_HIP} (device fe:01, inode 9911)"
    assert "RTLD_NOLOAD" in said.action
    assert judgement.fit is False
    assert list(judgement.unfit) == ["0000:03:00.0"]


def test_hsa_counts_apart_from_hip() -> None:
    hsa = [
        "/opt/rocm/lib/libhsa-runtime64.so.1.15.0",
        "/opt/venv/lib/python3.12/site-packages/torch/lib/libhsa-runtime64.so",
    ]
    said = verdict(amd_with(lines(TORCH_HIP, 1), lines(hsa[0], 2), lines(hsa[1], 3)), "lib.amd.duplicate_hip")
    assert said.status == "FAIL"
    assert said.reason.startswith("two HSA runtimes")


@pytest.mark.proves("lib.amd.duplicate_hip", "PASS", on="tree")
@pytest.mark.parametrize("libraries", [(), (lines(TORCH_HIP, 1),), (lines(TORCH_HIP, 1), lines(TORCH_HIP, 1))])
def test_one_hip_runtime_is_healthy(libraries: tuple[str, ...]) -> None:
    assert verdict(amd_with(*libraries), "lib.amd.duplicate_hip").status == "PASS"


def test_files_of_the_same_content_are_no_conflict() -> None:
    body = b"\x7fELF\x02\x01\x01" + bytes(range(256)) * 40
    machine = amd_with(lines(SYSTEM_HIP, 1), lines(TORCH_HIP, 2)).with_file(SYSTEM_HIP, body)
    same = verdict(machine.with_file(TORCH_HIP, body), "lib.amd.duplicate_hip")
    assert same.status == "PASS"
    assert same.reason.endswith("(several files of the same content)")
    assert verdict(machine.with_file(TORCH_HIP, body[:-1] + b"!"), "lib.amd.duplicate_hip").status == "FAIL"


def test_a_library_that_was_replaced_and_loaded_again_is_there_twice() -> None:
    machine = amd_with(lines(SYSTEM_HIP, 1, deleted=True), lines(SYSTEM_HIP, 2))
    assert verdict(machine, "lib.amd.duplicate_hip").status == "FAIL"


@pytest.mark.parametrize(
    "gate", ["lib.amd.duplicate_hip", "lib.amd.duplicate_smi", "lib.mixed.nccl", "lib.resolution_report"]
)
def test_maps_that_cannot_be_read_or_understood_are_unknown(gate: str) -> None:
    machine = amd_with()
    assert "Permission denied" in verdict(machine.with_error("/proc/self/maps", errno.EACCES), gate).reason
    for text in ("", "\x00\x00", "no maps\n" * 3):
        said = verdict(machine.with_file("/proc/self/maps", text), gate)
        assert said.status == "UNKNOWN"
        assert "/proc/self/maps" in said.reason


SMI = (
    "/opt/venv/lib/python3.12/site-packages/amdsmi/libamd_smi.so",
    "/opt/rocm/lib/libamd_smi.so.26.2.0",
    "/opt/rocm/lib/librocm_smi64.so.7.8",
)


@pytest.mark.proves("lib.amd.duplicate_smi", "WARN", on="tree")
@pytest.mark.parametrize("pair", [(SMI[0], SMI[1]), (SMI[0], SMI[2])])
def test_two_smi_libraries_are_told(pair: tuple[str, str]) -> None:
    # pytorch#186516: libamd_smi.so and .so.26 in one process count no device; rocm-systems#8768: a preloaded
    # librocm_smi64 blinds amd-smi.
    said = verdict(amd_with(lines(pair[0], 1), lines(pair[1], 2)), "lib.amd.duplicate_smi")
    assert said.status == "WARN"
    assert all(path in said.reason for path in pair)


@pytest.mark.proves("lib.amd.duplicate_smi", "PASS", on="tree")
def test_one_smi_library_is_healthy() -> None:
    assert verdict(amd_with(lines(SMI[0], 1)), "lib.amd.duplicate_smi").status == "PASS"


NCCL = "/opt/venv/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2"
RCCL = "/opt/rocm/lib/librccl.so.1.0.60401"


@pytest.mark.proves("lib.mixed.nccl", "WARN", on="tree")
def test_nccl_and_rccl_in_one_process_are_told() -> None:
    said = verdict(amd_with(lines(NCCL, 1), lines(RCCL, 2)), "lib.mixed.nccl")
    assert said.status == "WARN"
    assert said.reason == f"NCCL and RCCL are both mapped in this process: {NCCL}, {RCCL}"


@pytest.mark.proves("lib.mixed.nccl", "PASS", on="tree")
def test_nccl_alone_is_healthy() -> None:
    assert verdict(amd_with(lines(NCCL, 1)), "lib.mixed.nccl").status == "PASS"


@pytest.mark.proves("lib.resolution_report", "WARN", on="tree")
def test_a_second_copy_and_a_replaced_library_are_told() -> None:
    other = "/usr/local/cuda-12.4/lib64/libcudart.so.12.4.127"
    wheel = "/opt/venv/lib/python3.12/site-packages/nvidia/cuda_runtime/lib/libcudart.so.12"
    driver = "/usr/lib/x86_64-linux-gnu/libcuda.so.550.54.14"
    machine = amd_with(lines(other, 1), lines(wheel, 2), lines(driver, 3, deleted=True))
    said = verdicts(machine, "lib.resolution_report")
    assert [each.status for each in said] == ["WARN", "WARN"]
    assert said[0].reason.startswith("two copies of CUDA runtime in this process keep two sets of streams")
    assert "replaced or removed on disk" in said[1].reason
    assert said[1].action.startswith("Start the run again")


@pytest.mark.proves("lib.resolution_report", "PASS", on="tree")
def test_the_record_names_every_library_of_a_gpu_runtime_with_its_inode() -> None:
    said = verdict(amd_with(lines(TORCH_HIP, 7)), "lib.resolution_report")
    assert said.reason == f"1 mapped: {TORCH_HIP}"
    assert said.evidence[0].found == f"{TORCH_HIP} (device fe:01, inode 7)"


@pytest.mark.proves("lib.resolution_report", "PASS", on="host")
def test_this_process_is_read() -> None:
    text = local_host().read_text("/proc/self/maps", 1 << 24)
    libraries = parse_maps(text).libraries
    assert any("libc.so" in each.path for each in libraries)
    machine = a_machine().with_gpu("rx7900xtx").with_file("/proc/self/maps", text)
    assert verdict(machine, "lib.resolution_report").status == "PASS"


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("libamdhip64.so", "HIP"),
        ("libamdhip64-1a2b3c4d.so.6", "HIP"),
        ("libamdhip64.so.6.4.60401", "HIP"),
        ("libLLVM-15.so.1", "LLVM"),
        ("libLLVM.so.19.1", "LLVM"),
        ("libnvidia-ml.so.550.54.14", "NVML"),
        ("libhsa-runtime64.so.1", "HSA"),
        ("libcudart-9335f6a2.so.12", "CUDA runtime"),
        ("libtriton.so", "Triton"),
        ("libggml-base.so", "ggml"),
        ("libcudadebugger.so.1", None),
        ("libhsa-runtime64-aqlprofile.so", None),
        ("libnccl-net.so", None),
        ("libOpenCL.so.1.backup", "OpenCL loader"),
        ("amdhip64.so", None),
    ],
)
def test_a_family_is_told_by_the_name_of_the_file(name: str, family: str | None) -> None:
    found = family_of(f"/somewhere/{name}")
    assert (found.name if found else None) == family


@given(st.text(max_size=300) | st.binary(max_size=300).map(lambda data: data.decode("latin-1")))
@settings(max_examples=100, deadline=None)
def test_garbage_is_no_list_of_libraries(text: str) -> None:
    maps = parse_maps(text)
    assert maps.problem is not None or maps.libraries == ()


@pytest.mark.proves("lib.amd.duplicate_hip", "FAIL", on="host")
def test_two_files_that_this_process_really_maps_are_found(tmp_path: Path) -> None:
    paths = [tmp_path / name / "libamdhip64.so.6" for name in ("rocm", "torch")]
    machine = discover(a_machine().with_gpu("rx7900xtx").host())
    with ExitStack() as stack:
        for path in paths:
            path.parent.mkdir()
            path.write_bytes(b"\x7fELF" + path.parent.name.encode() * 2000)
            file = stack.enter_context(path.open("rb"))
            stack.enter_context(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
        gate = next(each for each in all_gates() if each.id == "lib.amd.duplicate_hip")
        (said,) = judge(Subject(host=local_host(), machine=machine), gates=[gate]).verdicts
        SAID.append(said)
    assert said.status == "FAIL"
    assert all(str(path) in said.reason for path in paths)


def test_a_record_tells_copies_by_their_size() -> None:
    machine = amd_with(lines(SYSTEM_HIP, 1), lines(TORCH_HIP, 2)).with_file(SYSTEM_HIP, b"\x7fELF" * 500)
    for other, status in ((b"\x7fELF" * 500, "PASS"), (b"\x7fELF" * 501, "FAIL")):
        host = RecordingHost(machine.with_file(TORCH_HIP, other).host())
        assert verdict(host, "lib.amd.duplicate_hip").status == status
        assert verdict(ReplayHost(*host.recorded(), name="record"), "lib.amd.duplicate_hip").status == status

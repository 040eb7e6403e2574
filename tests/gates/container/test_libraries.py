"""Libraries of the host at the container's start, a kernel module of today."""

from __future__ import annotations

import pytest

from pytest_gpucoexist.testing.builder import MachineBuilder, a_machine
from tests.gates.judging import judged, verdict

FOLDER = "/usr/lib/x86_64-linux-gnu"
DOCKER = a_machine().with_gpu("rtx4090").with_nvidia_driver("570.133.07").with_file("/.dockerenv", "")


def with_libraries(machine: MachineBuilder, version: str) -> MachineBuilder:
    for stem in ("libcuda", "libnvidia-ml"):
        machine = machine.with_file(f"{FOLDER}/{stem}.so.{version}", b"\x7fELF").with_link(
            f"{FOLDER}/{stem}.so.1", f"{stem}.so.{version}"
        )
    return machine


@pytest.mark.proves("ctr.lib_match", "PASS", on="tree")
def test_libraries_of_the_driver() -> None:
    said = verdict(with_libraries(DOCKER, "570.133.07"), "ctr.lib_match")
    assert said.reason == "libraries and kernel module are 570.133.07"
    assert [each.source for each in said.evidence[1:]] == [
        f"{FOLDER}/{n}.so.570.133.07" for n in ("libcuda", "libnvidia-ml")
    ]


@pytest.mark.proves("ctr.lib_match", "FAIL", on="tree")
def test_the_host_was_updated_under_the_container() -> None:
    # tinygrad/open-gpu-kernel-modules#47: "Failed to initialize NVML: Driver/library version mismatch"
    judgement = judged(with_libraries(DOCKER, "565.57.01"), "ctr.lib_match")
    (said,) = judgement.verdicts
    assert said.reason == (
        "this container has libcuda 565.57.01 and libnvidia-ml 565.57.01, and the host's kernel module is 570.133.07"
    )
    assert judgement.unfit.keys() == {"0000:01:00.0"}


@pytest.mark.proves("ctr.lib_match", "PASS", on="tree")
def test_forward_compatibility_may_be_newer() -> None:
    # NVIDIA's CUDA images carry /usr/local/cuda/compat/libcuda.so.* and put it first.
    machine = with_libraries(DOCKER, "570.133.07")
    machine = machine.with_file("/usr/local/cuda/compat/libcuda.so.580.65.06", b"\x7fELF")
    machine = machine.with_environ(LD_LIBRARY_PATH="/usr/local/cuda/compat")
    assert verdict(machine, "ctr.lib_match").status == "PASS"


@pytest.mark.proves("ctr.lib_match", "PASS", on="tree")
def test_an_older_library_in_the_image_is_not_the_one_that_is_loaded() -> None:
    # The toolkit's hook runs ldconfig: the soname leads to the mounted file.
    for older in ("535.261.03", "580.65.06"):
        machine = DOCKER.with_file(f"{FOLDER}/libcuda.so.{older}", b"\x7fELF")
        assert verdict(with_libraries(machine, "570.133.07"), "ctr.lib_match").status == "PASS"


@pytest.mark.parametrize("version", ["", "NVRM version: garbage", "\0\0", "NVRM version: NVIDIA UNIX"])
def test_a_kernel_module_without_a_version_is_unknown(version: str) -> None:
    machine = with_libraries(DOCKER, "570.133.07").with_file("/proc/driver/nvidia/version", version)
    assert verdict(machine, "ctr.lib_match").status == "UNKNOWN"


def test_no_library_and_no_container() -> None:
    assert verdict(DOCKER, "ctr.lib_match").status == "UNKNOWN"
    assert verdict(a_machine().with_gpu("rtx4090"), "ctr.lib_match").status == "SKIP"

"""Variables of tools, of copies, of collectives and of graphics; and when a mask was set."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from pytest_gpucoexist.gates.environment.order import runtimes_in_maps
from pytest_gpucoexist.gates.environment.variables import DEBUG_NVIDIA, VARIABLES
from pytest_gpucoexist.host.caller import recorded_variables
from pytest_gpucoexist.testing.builder import a_machine
from tests.gates.judging import judged, verdict

BOTH = a_machine().with_gpu("rtx4090").with_gpu("mi210").with_environ(HOME="/home/u")
MAPS = """\
55d0c8a4a000-55d0c8a4b000 r--p 00000000 08:02 393401                     /usr/bin/python3.12
7f6e1c000000-7f6e1d021000 r-xp 00000000 08:02 396000                     /usr/lib/x86_64-linux-gnu/{}
"""


def test_a_record_holds_every_variable_that_gates_look_at() -> None:
    assert set(recorded_variables(dict.fromkeys(VARIABLES, "1"))) == set(VARIABLES)


@pytest.mark.proves("env.dcgm_bad", "PASS", on="tree")
@pytest.mark.proves("env.amd_tools", "PASS", on="tree")
@pytest.mark.proves("env.blocking", "PASS", on="tree")
def test_no_tool_is_set() -> None:
    quiet = BOTH.with_environ(AMD_LOG_LEVEL="1", HIP_LAUNCH_BLOCKING="0", CUDA_LAUNCH_BLOCKING="0")
    assert {each.status for each in judged(quiet, "env.dcgm_bad", "env.amd_tools", "env.blocking").verdicts} == {"PASS"}


@pytest.mark.proves("env.dcgm_bad", "WARN", on="tree")
@pytest.mark.parametrize("name", DEBUG_NVIDIA)
def test_what_nvidias_own_diagnostics_refuse(name: str) -> None:
    said = verdict(BOTH.with_environ({name: "1"}), "env.dcgm_bad")
    assert (said.reason, said.fix[0].lines) == (f"{name} is set", (f"unset {name}",))


@pytest.mark.proves("env.amd_tools", "WARN", on="tree")
@pytest.mark.parametrize(
    ("name", "value"), [("HSA_TOOLS_LIB", "librocprofiler64.so"), ("AMD_LOG_LEVEL", "4"), ("AMD_SERIALIZE_COPY", "3")]
)
def test_tracers_and_serialisers(name: str, value: str) -> None:
    assert verdict(BOTH.with_environ({name: value}), "env.amd_tools").reason == f"{name} is set"


@pytest.mark.proves("env.blocking", "WARN", on="tree")
def test_launches_that_wait() -> None:
    assert verdict(BOTH.with_environ(CUDA_LAUNCH_BLOCKING="1"), "env.blocking").status == "WARN"


@pytest.mark.proves("env.sdma", "PASS", on="tree")
@pytest.mark.proves("env.sdma", "WARN", on="tree")
def test_switches_of_copies() -> None:
    said = verdict(BOTH.with_environ(GPU_MAX_HW_QUEUES="4"), "env.sdma")
    assert (said.status, said.reason) == ("PASS", "recorded: GPU_MAX_HW_QUEUES=4")
    said = verdict(BOTH.with_environ(HSA_ENABLE_SDMA="0"), "env.sdma")
    assert said.reason == "HSA_ENABLE_SDMA=0: copies run in kernels, not on the copy engines"
    said = verdict(BOTH.with_environ(HSA_OVERRIDE_GFX_VERSION="gfx1030"), "env.sdma")
    assert said.reason == "HSA_OVERRIDE_GFX_VERSION=gfx1030 is not major.minor.step"
    two = BOTH.with_gpu("rx7900xtx").with_environ(HSA_OVERRIDE_GFX_VERSION="11.0.0")
    assert verdict(two, "env.sdma").reason == "HSA_OVERRIDE_GFX_VERSION=11.0.0 holds for gfx1100 and gfx90a alike"
    assert verdict(BOTH.with_environ(HSA_OVERRIDE_GFX_VERSION="9.0.10"), "env.sdma").status == "PASS"


@pytest.mark.proves("env.p2p_switches", "PASS", on="tree")
@pytest.mark.proves("env.p2p_switches", "WARN", on="tree")
@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"NCCL_P2P_LEVEL": "SYS", "NCCL_PROTO": "Simple"}, None),
        ({"NCCL_P2P_LEVEL": "FAR"}, "is not a level that NCCL knows"),
        ({"NCCL_P2P_LEVEL": "PHB", "NCCL_P2P_DISABLE": "1"}, "switches peer access off"),
        ({"NCCL_SHM_DISABLE": "1", "NCCL_P2P_DISABLE": "1"}, "only the network is left"),
    ],
)
def test_switches_of_collectives(variables: dict[str, str], words: str | None) -> None:
    said = verdict(BOTH.with_environ(variables), "env.p2p_switches")
    assert said.status == ("PASS" if words is None else "WARN")
    assert words is None or words in said.reason
    other = verdict(BOTH.with_environ(NCCL_P2P_LEVEL="FAR" if words is None else "5"), "env.p2p_switches")
    assert other.status == ("WARN" if words is None else "PASS")


@pytest.mark.proves("env.offload", "PASS", on="tree")
@pytest.mark.proves("env.offload", "WARN", on="tree")
def test_graphics_goes_to_a_gpu_that_is_here() -> None:
    assert verdict(BOTH, "env.offload").reason == "no variable chooses the GPU of graphics"
    assert verdict(BOTH.with_environ(DRI_PRIME="pci-0000_01_00_0!"), "env.offload").status == "PASS"
    said = verdict(BOTH.with_environ(DRI_PRIME="pci-0000_0a_00_0"), "env.offload")
    assert said.reason == "DRI_PRIME names 0000:0a:00.0, and no GPU is there"
    amd = a_machine().with_gpu("mi210").with_environ(__GLX_VENDOR_LIBRARY_NAME="nvidia")
    assert "no GPU here has that library's driver" in verdict(amd, "env.offload").reason
    amd = a_machine().with_gpu("mi210").with_environ(__NV_PRIME_RENDER_OFFLOAD="1")
    assert verdict(amd, "env.offload").status == "WARN"


@pytest.mark.proves("env.import_order", "PASS", on="tree")
@pytest.mark.proves("env.import_order", "WARN", on="tree")
def test_a_mask_that_was_set_after_the_import() -> None:
    # MoonshotAI/checkpoint-engine PR#98: devices were looked at during collection, before the mask was set.
    machine = BOTH.with_environ(CUDA_VISIBLE_DEVICES="0")
    machine = machine.with_file("/proc/self/environ", "HOME=/home/u\0").with_file(
        "/proc/self/maps", MAPS.format("libcuda.so.570.133.07")
    )
    said = verdict(machine, "env.import_order", since_s=1.0)
    assert said.reason == (
        "CUDA_VISIBLE_DEVICES changed in this process, in which libcuda.so.570.133.07 is loaded: "
        "it may have read the old value"
    )
    right = machine.with_file("/proc/self/environ", "HOME=/home/u\0CUDA_VISIBLE_DEVICES=0\0")
    assert verdict(right, "env.import_order", since_s=1.0).status == "PASS"
    bare = machine.with_file("/proc/self/maps", MAPS.format("libc.so.6"))
    assert verdict(bare, "env.import_order", since_s=1.0).reason == "no GPU runtime is loaded in this process"
    assert verdict(machine, "env.import_order").status == "SKIP"
    assert verdict(BOTH, "env.import_order", since_s=1.0).status == "UNKNOWN"


@given(st.text(max_size=200))
@settings(max_examples=60)
def test_maps_are_read_whatever_is_in_them(text: str) -> None:
    assert all(name.startswith("lib") for name in runtimes_in_maps(text))

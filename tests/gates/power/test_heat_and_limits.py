"""Temperatures, throttling and power limits: on captures, on recorded trees, and by value."""

from __future__ import annotations

import json
import lzma
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings, strategies as st

from pytest_gpucoexist.host import open_recording
from pytest_gpucoexist.testing.builder import MachineBuilder, a_machine
from tests.gates.boards import DEADLINE_S, FIRST, asked_here, files_of, with_files
from tests.gates.judging import judged, verdict, verdicts
from tests.gates.nvidia_smi import machine_of, sections_of
from tests.vendor.machines import MI210, RTX_4090, W7900

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.machine import FakeMachine

proves = pytest.mark.proves
NVIDIA = a_machine().with_gpu("rtx4090")
AMD = a_machine().with_gpu("rx7900xtx")
OLD = {"status": "unsupported", "detail": "NVML: Not Supported"}


@pytest.mark.parametrize(
    ("keys", "status", "words"),
    [
        pytest.param({"temperature": 45}, "PASS", "cool enough", marks=proves("pwr.nv.temp", "PASS", on="fake")),
        pytest.param(
            {"temperature": 90}, "WARN", "90 C, less than 10 C below its slowdown at 97 C",
            marks=proves("pwr.nv.temp", "WARN", on="fake"),
        ),
        ({"temperature": 60, "clocks_event_reasons": 0x40}, "WARN", "hardware thermal slowdown in force"),
        ({"temperature": 60, "field.82": 96}, "WARN", "its memory has 96 C"),
        ({"temperature": 78, "clocks_event_reasons": 0x1}, "WARN", "78 C although it is idle"),
        ({"temperature": 78, "clocks_event_reasons": 0x4}, "PASS", "cool enough"),
        ({}, "SKIP", "does not have it"),
        ({"temperature": 4000}, "UNKNOWN", "makes no sense"),
    ],
)  # fmt: skip
def test_nvidia_temperatures(machine: FakeMachine, keys: dict[str, object], status: str, words: str) -> None:
    machine.nvidia(RTX_4090)
    machine.put({f"nvidia.0.{name}": value for name, value in {"threshold.1": 97, **keys}.items()})
    files = a_machine().with_gpu("rtx4090", address=FIRST)
    said = verdict(asked_here(files), "pwr.nv.temp", deadline_s=DEADLINE_S)
    assert (said.status, words in said.reason, said.blocks) == (status, True, False), said


def test_a_board_that_tells_its_margin_alone() -> None:
    """Since Ada boards tell the distance to the slowdown ("GPU T.Limit Temp") and no thresholds."""
    machine = NVIDIA.with_health("nvidia0", temperature=76, temperature_margin=8, thresholds={"slowdown": OLD})
    said = verdict(machine, "pwr.nv.temp")
    assert (said.status, said.reason) == ("WARN", "8 C below its slowdown")
    machine = NVIDIA.with_health("nvidia0", temperature=30, temperature_margin=57, thresholds={"slowdown": OLD})
    assert verdict(machine, "pwr.nv.temp").status == "PASS"


CAPTURES = (
    "gpud-nvidia-smi-query.535.161.08.out.0.valid.txt",
    "gpud-nvidia-smi-query.535.183.01.out.0.valid.txt",
    "gpud-nvidia-smi-query.535.154.05.out.0.valid.txt",
    "gls-A40x10_smi-q.txt",
    "gls-RTX6000Ada_x8_smi-q.txt",
)


@proves("pwr.nv.temp", "PASS", on="recording")
@proves("pwr.nv.temp", "WARN", on="recording")
@proves("pwr.nv.limits", "PASS", on="recording")
def test_captures_of_clusters(shared: Path) -> None:
    """Eight boards with `HW Slowdown: Active`, one with `SW Thermal Slowdown: Active`; the others are well."""
    found = {}
    for name in CAPTURES:
        text = (shared / "machines/nvidia-smi/text" / name).read_text()
        said = judged(machine_of(text), "pwr.nv.temp", "pwr.nv.limits").verdicts
        assert not [each for each in said if each.status in {"FAIL", "ERROR"}]
        found[name] = {each.reason: len(each.devices) for each in said if each.status == "WARN"}
    assert found == {
        CAPTURES[0]: {"hardware slowdown in force now": 8},
        CAPTURES[1]: {"software thermal slowdown in force now": 1},
        CAPTURES[2]: {},
        CAPTURES[3]: {},
        CAPTURES[4]: {},
    }


def test_a_board_under_load_is_no_fault(shared: Path) -> None:
    for path in sorted((shared / "machines/nvidia-smi/captures").glob("*.xz")):
        sections = sections_of(lzma.decompress(path.read_bytes()).decode())
        assert set(sections) == {"idle", "load"}
        for text in sections.values():
            said = judged(machine_of(text), "pwr.nv.*", "ras.nv.*", "drv.nv.*").verdicts
            assert not [each for each in said if each.status in {"FAIL", "ERROR"}], path.name


@pytest.mark.parametrize(
    "name", ["a100-sxm4-v12", "a10g", "quadro-p400", "rtx-3090-v12", "rtx-4000-sff-ada-v13", "tesla-t4"]
)
def test_what_telegraf_recorded_is_healthy(shared: Path, name: str) -> None:
    machine = machine_of((shared / f"machines/nvidia-smi/xml/telegraf-{name}.xml").read_text())
    said = judged(machine, "pwr.nv.*", "ras.nv.*", "drv.nv.*").verdicts
    assert not [each for each in said if each.status in {"FAIL", "ERROR"}]


# ---- AMD ----

HWMON = {
    "hwmon/hwmon3/name": "amdgpu",
    "hwmon/hwmon3/temp1_label": "edge",
    "hwmon/hwmon3/temp1_input": "41000",
    "hwmon/hwmon3/temp1_crit": "100000",
    "hwmon/hwmon3/temp2_label": "junction",
    "hwmon/hwmon3/temp2_input": "48000",
    "hwmon/hwmon3/temp2_crit": "110000",
    "hwmon/hwmon3/power1_cap": "303000000",
    "hwmon/hwmon3/power1_cap_default": "303000000",
    "power_dpm_force_performance_level": "auto",
}


def with_hwmon(**changes: str) -> MachineBuilder:
    names = {name.rpartition("/")[2]: name for name in HWMON}
    return with_files(AMD, "amd0", {**HWMON, **{names[name]: text for name, text in changes.items()}})


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        pytest.param({}, "PASS", "cool enough", marks=proves("pwr.amd.temp", "PASS", on="tree")),
        pytest.param(
            {"temp2_input": "104000"}, "WARN", "junction 104 C", marks=proves("pwr.amd.temp", "WARN", on="tree")
        ),
        ({"temp1_input": "hot", "temp2_input": ""}, "UNKNOWN", "could not be read"),
        ({"temp1_input": "-274000", "temp2_input": "999999"}, "UNKNOWN", "could not be read"),
    ],
)
def test_amd_temperatures(changes: dict[str, str], status: str, words: str) -> None:
    said = verdict(with_hwmon(**changes), "pwr.amd.temp")
    assert (said.status, words in said.reason) == (status, True), said


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        pytest.param({}, "PASS", "default ones", marks=proves("pwr.amd.limits", "PASS", on="tree")),
        pytest.param(
            {"power1_cap": "200000000"}, "WARN", "limited to 200 W, of 303 W",
            marks=proves("pwr.amd.limits", "WARN", on="tree"),
        ),
        ({"power_dpm_force_performance_level": "low"}, "WARN", "set to low"),
        ({"power_dpm_force_performance_level": "?"}, "UNKNOWN", "makes no sense"),
    ],
)  # fmt: skip
def test_amd_limits(changes: dict[str, str], status: str, words: str) -> None:
    said = verdict(with_hwmon(**changes), "pwr.amd.limits")
    assert (said.status, words in said.reason) == (status, True), said


def test_a_gpu_that_sleeps_is_left_asleep() -> None:
    machine = with_hwmon(temp2_input="104000", power1_cap="1").sleep("amd0")
    for gate in ("pwr.amd.temp", "pwr.amd.limits"):
        assert verdict(machine, gate).reason == "asleep; it is left asleep"


@proves("pwr.amd.temp", "PASS", on="recording")
@proves("pwr.amd.limits", "WARN", on="recording")
def test_cards_that_lact_recorded(shared: Path) -> None:
    found = {}
    for name in ("rx7900xtx", "rx6600xt", "rx9070", "rx7600s"):
        said = judged(
            open_recording(str(shared / f"machines/lact/lact-amd-{name}.tar.xz")), "pwr.amd.temp", "pwr.amd.limits"
        )
        found[name] = sorted({each.status for each in said.verdicts})
        assert not {"FAIL", "ERROR"} & set(found[name])
    assert found["rx9070"] == ["PASS", "WARN"]  # its performance level is manual


@pytest.mark.parametrize(
    ("health", "status", "words"),
    [
        pytest.param({}, "PASS", "nothing holds it back", marks=proves("pwr.amd.throttle", "PASS", on="tree")),
        pytest.param(
            {"throttle_status": 1 << 16}, "WARN", "held back now by current",
            marks=proves("pwr.amd.throttle", "WARN", on="tree"),
        ),
        ({"throttle_status": 1 << 36}, "PASS", "nothing"),  # flightlessmango/MangoHud#1690
        (
            {
                "throttle_status": 1 << 36,
                "temperatures": {"hotspot": {"now": 104, "critical": 110}},
            },
            "WARN",
            "temperature",
        ),
        ({"throttle_status": "hot"}, "UNKNOWN", "makes no sense"),
        ({"violations": {"power": True, "socket": False}}, "WARN", "held back now by power"),
        ({"throttle_status": None}, "SKIP", "does not have it"),
    ],
)  # fmt: skip
def test_amd_throttling(health: dict[str, Any], status: str, words: str) -> None:
    said = verdict(AMD.with_health("amd0", **health), "pwr.amd.throttle")
    assert (said.status, words in said.reason) == (status, True), said


@proves("pwr.amd.throttle", "WARN", on="fake")
def test_a_violation_that_amdsmi_tells(machine: FakeMachine) -> None:
    machine.amd(W7900, MI210)
    machine.put({"amd.1.violation_power": 1, "amd.1.violation_socket": 0})
    said = verdicts(asked_here(files_of(nvidia=False, amd=True)), "pwr.amd.throttle", deadline_s=DEADLINE_S)
    (held,) = [each for each in said if each.status == "WARN"]
    assert (held.reason, held.devices) == ("held back now by power", (MI210.pci_address,))


# ---- Intel ----


@proves("pwr.intel.throttle", "PASS", on="recording")
def test_cards_of_intel_that_lact_recorded(shared: Path) -> None:
    for name in ("a380-i915", "b580", "b580-6.16"):
        said = verdict(open_recording(str(shared / f"machines/lact/lact-intel-{name}.tar.xz")), "pwr.intel.throttle")
        assert said.status == "PASS", (name, said)


INTEL = a_machine().with_gpu("arc-b580")


@pytest.mark.parametrize(
    ("reasons", "status", "words"),
    [
        ({"reason_pl1": "0"}, "PASS", "nothing holds it back"),
        ({"reason_pl1": "1"}, "PASS", "normal power limit"),
        pytest.param(
            {"reason_pl1": "0", "reason_thermal": "1"}, "WARN", "thermal",
            marks=proves("pwr.intel.throttle", "WARN", on="tree"),
        ),
        ({"reason_pl1": "2"}, "UNKNOWN", "could not be read"),
    ],
)  # fmt: skip
def test_intel_throttling(reasons: dict[str, str], status: str, words: str) -> None:
    files = {f"tile0/gt0/freq0/throttle/{name}": text for name, text in reasons.items()}
    said = verdict(with_files(INTEL, "intel0", files), "pwr.intel.throttle")
    assert (said.status, words in said.reason) == (status, True), said


# ---- NVIDIA's limits ----


def power(limit: int, default: int) -> dict[str, Any]:
    return {
        name: {"value": value}
        for name, value in {"limit_mw": limit, "enforced_mw": limit, "default_mw": default}.items()
    }


@pytest.mark.parametrize(
    ("health", "status", "words"),
    [
        pytest.param({}, "PASS", "default ones", marks=proves("pwr.nv.limits", "PASS", on="tree")),
        pytest.param(
            {"power": power(300_000, 450_000)}, "WARN", "limited to 300 W, of 450 W",
            marks=proves("pwr.nv.limits", "WARN", on="tree"),
        ),
        ({"power": {"limit_mw": OLD, "default_mw": OLD}}, "SKIP", "does not have it"),  # a notebook
        (
            {"clocks": {"applications_mhz": {"value": 900}, "default_applications_mhz": {"value": 1410}}},
            "WARN",
            "application clock is set to 900 MHz",
        ),
        ({"power": {"limit_mw": {"value": "max"}}}, "UNKNOWN", "makes no sense"),
    ],
)  # fmt: skip
def test_nvidia_limits(health: dict[str, Any], status: str, words: str) -> None:
    said = verdict(NVIDIA.with_health("nvidia0", **health), "pwr.nv.limits")
    assert (said.status, words in said.reason) == (status, True), said


@given(
    st.dictionaries(
        st.sampled_from(["temperature", "thresholds", "power", "clocks", "clocks_event_reasons", "memory_temperature"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats(),
            lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=9), inner, max_size=2),
            max_leaves=4,
        ),
    )
)
@settings(max_examples=80)
def test_garbage_of_nvml_breaks_no_gate(health: dict[str, Any]) -> None:
    said = judged(NVIDIA.with_health("nvidia0", **health), "pwr.nv.temp", "pwr.nv.limits").verdicts
    assert not {each.status for each in said} & {"ERROR", "FAIL"}


@proves("pwr.amd.temp", "PASS", on="recording")
@proves("pwr.amd.limits", "PASS", on="recording")
@proves("proc.amd.vram_used", "PASS", on="recording")
def test_what_rocm_smi_printed_is_healthy(shared: Path) -> None:
    """The values of rocm-smi are those of the same files in sysfs."""
    sensors = {"edge": 1, "junction": 2, "memory": 3}
    paths = sorted((shared / "machines/rocm-smi").glob("telegraf-*.json"))
    assert paths
    for path in paths:
        card = json.loads(path.read_text())["card0"]
        files = {"hwmon/hwmon3/name": "amdgpu", "power_dpm_force_performance_level": card["Performance Level"]}
        for name, number in sensors.items():
            now = card.get(f"Temperature (Sensor {name}) (C)")
            if now is not None:
                files[f"hwmon/hwmon3/temp{number}_label"] = name
                files[f"hwmon/hwmon3/temp{number}_input"] = str(round(float(now) * 1000))
        files |= {f"hwmon/hwmon3/temp{number}_crit": "100000" for number in (1, 2)}  # rocm-smi prints no limits
        if "VRAM Total Memory (B)" in card:
            files["mem_info_vram_total"] = card["VRAM Total Memory (B)"]
            files["mem_info_vram_used"] = card["VRAM Total Used Memory (B)"]
            files["gpu_busy_percent"] = card["GPU use (%)"]
        said = judged(with_files(AMD, "amd0", files), "pwr.amd.temp", "pwr.amd.limits", "proc.amd.vram_used").verdicts
        assert {each.status for each in said} <= {"PASS", "WARN"}, path.name
        assert next(each for each in said if each.id == "pwr.amd.temp").status == "PASS", path.name

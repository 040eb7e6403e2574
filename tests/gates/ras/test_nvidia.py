"""Errors of memory on NVIDIA's boards: by nvidia-ml-py on a fake driver, as nvidia-smi printed them, and by value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.host.base import HelperReply
from pytest_gpucoexist.testing.builder import a_machine
from tests.gates.boards import DEADLINE_S, SECOND, asked_here
from tests.gates.judging import judged, verdict, verdicts
from tests.gates.nvidia_smi import machine_of
from tests.vendor.machines import A100, RTX_4090

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.machine import FakeMachine

proves = pytest.mark.proves

CLEAN = {"corrected_volatile": 0, "uncorrected_volatile": 0, "corrected_aggregate": 0, "uncorrected_aggregate": 0}
ROWS = {"correctable": 0, "uncorrectable": 0, "pending": False, "failure": False}
SRAM = {"threshold_exceeded": False, "uncorrectable_aggregate": 0, "uncorrectable_volatile": 0, "correctable": 0}
PAGES = {"retired_pages": {"single_bit": 0, "double_bit": 0}, "retired_pending": False}
BANKS = {"max": 2560, "high": 0, "partial": 0, "low": 0, "none": 0}
LINK = {"link": 0, "crc": {"value": 0}, "replay": {"value": 12}, "recovery": {"value": 0}}

# gate, keys of the second board (an A100) for the fake driver, status, words of the verdict
FAKE: list[tuple[str, dict[str, object], str, str]] = [
    ("ras.nv.unc_volatile", {"ecc_uncorrected_volatile": 0}, "PASS", "no uncorrectable"),
    ("ras.nv.unc_volatile", {"ecc_uncorrected_volatile": 3}, "FAIL", "3 uncorrectable memory errors"),
    (
        "ras.nv.unc_volatile",
        {"ecc_uncorrected_volatile": 1, "rows_correctable": 0, "rows_uncorrectable": 1},
        "WARN",
        "a row remap took the cells out of use",
    ),
    (
        "ras.nv.unc_volatile",
        {"ecc_uncorrected_volatile": 1, "rows_correctable": 0, "rows_uncorrectable": 1, "rows_pending": 1},
        "FAIL",
        "1 uncorrectable memory error since",
    ),
    ("ras.nv.corr_volatile", {"ecc_corrected_volatile": 12}, "PASS", "few or no"),
    ("ras.nv.corr_volatile", {"ecc_corrected_volatile": 50_000_000}, "WARN", "very many"),
    ("ras.nv.ecc_mode", {"ecc": 1}, "PASS", "ECC is on"),
    ("ras.nv.ecc_mode", {"ecc": 0, "ecc_pending": 1}, "WARN", "ECC is off, and will be on after a reset"),
    ("ras.nv.sram", {"sram_threshold_exceeded": 0}, "PASS", "below the threshold"),
    ("ras.nv.sram", {"sram_threshold_exceeded": 1}, "FAIL", "exceed the threshold"),
    ("ras.nv.sram", {"sram_threshold_exceeded": 0, "sram_uncorrectable_aggregate": 5}, "WARN", "5 uncorrectable SRAM"),
    ("ras.nv.row_remap", {"rows_correctable": 2, "rows_uncorrectable": 1}, "PASS", "none failed"),
    ("ras.nv.row_remap", {"rows_correctable": 0, "rows_failure": 1}, "FAIL", "no spare row was left"),
    ("ras.nv.row_remap", {"rows_correctable": 0, "rows_uncorrectable": 512}, "FAIL", "512 rows"),
    ("ras.nv.row_histogram", {"banks_max": 640}, "PASS", "every bank"),
    ("ras.nv.row_histogram", {"banks_max": 638, "banks_none": 2}, "WARN", "2 banks of memory have no spare row"),
    ("ras.nv.retired_pages", {"pages_single_bit": 1, "pages_double_bit": 0}, "PASS", "none waits"),
    ("ras.nv.retired_pages", {"pages_single_bit": 60, "pages_double_bit": 5}, "FAIL", "65 pages"),
    ("ras.nv.retired_pages", {"pages_single_bit": 12, "pages_double_bit": 3}, "WARN", "15 pages"),
    ("ras.nv.mem_unrepairable", {"unrepairable_memory": 0}, "PASS", "no unrepairable memory"),
    ("ras.nv.mem_unrepairable", {"unrepairable_memory": 1}, "FAIL", "cannot be repaired"),
    ("ras.nv.nvlink_err", {"nvlink.0.up": 1, "nvlink.0.replay": 7}, "PASS", "no recovery on 1 NVLink"),
    ("ras.nv.nvlink_err", {"nvlink.0.up": 1, "nvlink.1.up": 1, "nvlink.1.recovery": 2}, "WARN", "NVLink 1 recovered"),
]


@pytest.mark.parametrize(
    ("gate", "keys", "status", "words"),
    [pytest.param(*case, marks=proves(case[0], case[2], on="fake")) for case in FAKE],
)
def test_what_nvml_tells(machine: FakeMachine, gate: str, keys: dict[str, object], status: str, words: str) -> None:
    machine.nvidia(RTX_4090, A100)
    machine.put({f"nvidia.1.{name}": value for name, value in keys.items()})
    said = verdicts(asked_here(), gate, deadline_s=DEADLINE_S)
    (about,) = [each for each in said if SECOND in each.devices]
    assert (about.status, words in about.reason) == (status, True), about
    assert about.devices == (SECOND,)
    assert about.evidence[0].source.startswith("NVML: ")
    others = [each.status for each in said if each is not about]
    assert others == ["SKIP"]  # a GeForce has none of these


# gate, health of an A100, status, words
VALUES: list[tuple[str, dict[str, Any], str, str]] = [
    ("ras.nv.unc_volatile", {"ecc_errors": None}, "SKIP", "does not have it"),
    ("ras.nv.unc_volatile", {"ecc_errors": {**CLEAN, "uncorrected_volatile": -1}}, "UNKNOWN", "makes no sense"),
    ("ras.nv.unc_volatile", {"ecc_errors": {"status": "denied", "detail": "NVML: No"}}, "UNKNOWN", "(denied)"),
    ("ras.nv.unc_volatile", {"ecc_errors": [1]}, "UNKNOWN", "makes no sense"),
    ("ras.nv.corr_volatile", {"sram": {**SRAM, "correctable": 10_000}}, "WARN", "very many"),
    ("ras.nv.sram", {"sram": {**SRAM, "threshold_exceeded": "maybe"}}, "UNKNOWN", "makes no sense"),
    ("ras.nv.row_remap", {"remapped_rows": {**ROWS, "pending": 2}}, "UNKNOWN", "makes no sense"),
    ("ras.nv.row_histogram", {"row_histogram": {**BANKS, "none": None}}, "UNKNOWN", "makes no sense"),
    ("ras.nv.retired_pages", {**PAGES, "retired_pending": None}, "PASS", "none waits"),
    ("ras.nv.retired_pages", {**PAGES, "retired_pending": True}, "FAIL", "waits for a reboot"),
    (
        "ras.nv.mem_unrepairable",
        {"repair": {"channel_pending": False, "tpc_pending": True}},
        "WARN",
        "waits for a reset: tpc",
    ),
    (
        "ras.nv.mem_unrepairable",
        {"repair": {"channel_pending": False, "tpc_pending": False}},
        "PASS",
        "no repair waits",
    ),
    ("ras.nv.nvlink_err", {"nvlinks": []}, "SKIP", "no NVLink of this board is up"),
    ("ras.nv.nvlink_err", {"nvlinks": [LINK]}, "PASS", "1 NVLink"),
    ("ras.nv.nvlink_err", {"nvlinks": [{**LINK, "recovery": {"status": "broken"}}]}, "UNKNOWN", "could not be read"),
]


@pytest.mark.parametrize(("gate", "health", "status", "words"), VALUES)
def test_values(gate: str, health: dict[str, Any], status: str, words: str) -> None:
    said = verdict(a_machine().with_gpu("a100").with_health("nvidia0", **health), gate)
    assert (said.status, words in said.reason) == (status, True), said


@proves("ras.nv.row_remap", "FAIL", on="recording")
def test_an_a10_with_a_row_remap_that_waits_for_a_reset(shared: Path) -> None:
    """The capture of leptonai/gpud: 4 uncorrectable rows, Pending: Yes."""
    name = "gpud-nvidia-smi-query.535.129.03.out.0.valid.a10.txt"
    machine = machine_of((shared / "machines/nvidia-smi/text" / name).read_text())
    said = verdict(machine, "ras.nv.row_remap")
    assert said.status == "FAIL"
    assert said.blocks
    assert said.reason == "a row remap waits for a reset of the GPU: cells that failed are still in use"
    assert said.action == (
        f"Reset the GPU when nothing uses it: nvidia-smi --gpu-reset -i {said.devices[0]}; or reboot"
    )
    assert said.evidence[0].found == "4 uncorrectable, 0 correctable, pending True, failure False"
    assert judged(machine, "ras.nv.row_remap").unfit == {said.devices[0]: f"ras.nv.row_remap: {said.reason}"}


@proves("ras.nv.retired_pages", "FAIL", on="recording")
def test_boards_of_a_cluster_with_retired_pages(shared: Path) -> None:
    """The capture of Azure/azurehpc-health-checks: 65 pages, or a page that waits, on five of eight boards."""
    machine = machine_of((shared / "machines/nvidia-smi/text/azhc-bad_nvsmi8_output.txt").read_text())
    said = {each.reason: each for each in verdicts(machine, "ras.nv.retired_pages")}
    assert {reason: (each.status, len(each.devices)) for reason, each in said.items()} == {
        "65 pages of memory are retired": ("FAIL", 1),
        "a page of memory waits for a reboot to be retired": ("FAIL", 4),
        "few or no retired pages, and none waits": ("PASS", 3),
    }
    assert not any(each.blocking for each in said.values())


@proves("ras.nv.unc_volatile", "PASS", on="recording")
@proves("ras.nv.row_remap", "PASS", on="recording")
@proves("ras.nv.ecc_mode", "PASS", on="recording")
@proves("ras.nv.row_histogram", "PASS", on="recording")
@proves("ras.nv.sram", "PASS", on="recording")
def test_healthy_boards_of_a_cluster(shared: Path) -> None:
    machine = machine_of((shared / "machines/nvidia-smi/text/gls-H100SXMx8_smi-q.txt").read_text())
    judgement = judged(machine, "ras.nv.*")
    assert judgement.fit is True
    assert {each.status for each in judgement.verdicts} == {"PASS", "SKIP"}
    assert all(len(each.devices) == 8 for each in judgement.verdicts)


def test_what_was_recorded_without_health_is_unknown() -> None:
    machine = a_machine().with_gpu("a100")
    reply = machine.host().ask("nvml")
    for device in reply.data["devices"]:
        del device["health"]
    said = verdict(machine.with_reply("nvml", reply), "ras.nv.row_remap")
    assert (said.status, "NVML was recorded without its health" in said.reason) == ("UNKNOWN", True)


def test_a_library_that_is_not_installed_tells_nothing() -> None:
    missing = HelperReply(status="absent", data={"cause": "no-library"}, detail="NVML is not installed: no such file")
    said = verdict(a_machine().with_gpu("a100").with_reply("nvml", missing), "ras.nv.row_remap")
    assert (said.status, said.reason) == ("SKIP", "NVML is not installed")
    client = HelperReply(status="absent", data={"cause": "no-client"}, detail="nvidia-ml-py is not installed")
    said = verdict(a_machine().with_gpu("a100").with_reply("nvml", client), "ras.nv.row_remap")
    assert (said.status, "nvidia-ml-py is not installed" in said.reason) == ("UNKNOWN", True)

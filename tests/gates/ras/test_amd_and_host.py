"""Counters of amdgpu, EDAC, rasdaemon and Sysman, in the words of the kernel and of their tools."""

from __future__ import annotations

import errno
import sqlite3
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings, strategies as st

from pytest_gpucoexist.host.base import HelperReply
from pytest_gpucoexist.testing.builder import MachineBuilder, a_machine
from tests.gates.boards import DEADLINE_S, asked_here, files_of, folder_of, with_files
from tests.gates.judging import judged, verdict, verdicts
from tests.vendor.machines import MI210, W7900

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucoexist.model.verdicts import Verdict
    from tests.fakes.machine import FakeMachine

proves = pytest.mark.proves

# kernel amdgpu_ras.c, amdgpu_ras_sysfs_read: "%s: %lu\n" for ue and ce, since 6.8 for de too.
CLEAN = "ue: 0\nce: 0\n"
# kernel amdgpu_ras.c, amdgpu_ras_sysfs_badpages_read: "0x%08x : 0x%08x : %1s\n".
RETIRED = "0x00000001 : 0x00001000 : R\n"


MI = a_machine().with_gpu("mi210")


def with_ras(files: dict[str, str]) -> MachineBuilder:
    return with_files(MI, "amd0", {f"ras/{name}": text for name, text in files.items()})


@pytest.mark.parametrize(
    ("files", "status", "words"),
    [
        pytest.param(
            {"umc_err_count": CLEAN, "gfx_err_count": CLEAN},
            "PASS",
            "no memory error since the driver loaded",
            marks=proves("ras.amd.counts", "PASS", on="tree"),
        ),
        pytest.param(
            {"umc_err_count": "ue: 1\nce: 4\n", "gfx_err_count": CLEAN},
            "FAIL",
            "1 uncorrectable memory error since the driver loaded",
            marks=proves("ras.amd.counts", "FAIL", on="tree"),
        ),
        pytest.param(
            {"umc_err_count": "ue: 0\nce: 0\nde: 2\n"},
            "FAIL",
            "2 deferred memory errors since the driver loaded",
            marks=proves("ras.amd.counts", "FAIL", on="tree"),
        ),
        pytest.param(
            {"umc_err_count": "ue: 0\nce: 3\n"},
            "WARN",
            "3 corrected memory errors since the driver loaded",
            marks=proves("ras.amd.counts", "WARN", on="tree"),
        ),
        ({"umc_err_count": "Query currently inaccessible\n", "gfx_err_count": CLEAN}, "UNKNOWN", "inaccessible"),
        ({"umc_err_count": "Query currently inaccessible\n", "gfx_err_count": "ue: 9\nce: 0\n"}, "FAIL", "9 uncorr"),
        ({"umc_err_count": ""}, "UNKNOWN", "could not be read"),
        ({"umc_err_count": "ue: -1\nce: 0\n"}, "UNKNOWN", "could not be read"),
    ],
)
def test_counts(files: dict[str, str], status: str, words: str) -> None:
    said = verdict(with_ras(files), "ras.amd.counts")
    assert (said.status, words in said.reason) == (status, True), said
    assert len(said.devices) == 1
    assert said.blocks is (status == "FAIL")


def test_a_counter_that_gives_an_error() -> None:
    machine = with_ras({"umc_err_count": CLEAN})
    path = f"{folder_of(machine, 'amd0')}/ras/umc_err_count"
    said = verdict(machine.with_error(path, errno.EINVAL), "ras.amd.counts")
    assert (said.status, "umc: Invalid argument" in said.reason) == ("UNKNOWN", True)


def test_a_gpu_that_sleeps_is_left_asleep() -> None:
    machine = with_ras({"umc_err_count": "ue: 1\nce: 0\n", "gpu_vram_bad_pages": RETIRED}).sleep("amd0")
    for gate in ("ras.amd.counts", "ras.amd.bad_pages", "ras.amd.features"):
        said = verdict(machine, gate, level="quick")
        assert (said.status, said.reason) == ("SKIP", "asleep; a quick gate does not wake it")


def test_a_radeon_has_no_counters() -> None:
    said = verdict(a_machine().with_gpu("rx7900xtx"), "ras.amd.counts")
    assert (said.status, said.reason) == ("SKIP", "this board or driver has no RAS counters")


@pytest.mark.parametrize(
    ("table", "status", "words"),
    [
        pytest.param("", "PASS", "no bad page waits", marks=proves("ras.amd.bad_pages", "PASS", on="tree")),
        pytest.param(RETIRED * 3, "PASS", "no bad page", marks=proves("ras.amd.bad_pages", "PASS", on="tree")),
        pytest.param(
            "0x0000000a : 0x00001000 : P\n",
            "WARN",
            "1 bad page waits for a reset",
            marks=proves("ras.amd.bad_pages", "WARN", on="tree"),
        ),
        pytest.param(
            RETIRED + "0x0000000a : 0x00001000 : F\n",
            "FAIL",
            "1 bad page of memory could not be retired",
            marks=proves("ras.amd.bad_pages", "FAIL", on="tree"),
        ),
        pytest.param(RETIRED * 128, "FAIL", "128 bad pages", marks=proves("ras.amd.bad_pages", "FAIL", on="tree")),
        ("0x0000000a : 0x00001000 : X\n", "UNKNOWN", "makes no sense"),
    ],
)
def test_bad_pages(table: str, status: str, words: str) -> None:
    said = verdict(with_ras({"gpu_vram_bad_pages": table}), "ras.amd.bad_pages")
    assert (said.status, words in said.reason, said.blocking) == (status, True, False), said


def test_a_limit_of_the_suite() -> None:
    machine = with_ras({"gpu_vram_bad_pages": RETIRED * 5})
    said = verdict(machine, "ras.amd.bad_pages", limits={"ras.amd.bad_pages": {"pages": 5}})
    assert (said.status, said.reason) == ("FAIL", "5 bad pages of memory")


@pytest.mark.parametrize(
    ("text", "status", "words"),
    [
        pytest.param("feature mask: 0x3fff", "PASS", "RAS is on", marks=proves("ras.amd.features", "PASS", on="tree")),
        pytest.param(
            "feature mask: 0x0", "WARN", "has RAS, and it is off", marks=proves("ras.amd.features", "WARN", on="tree")
        ),
        ("mask", "UNKNOWN", "make no sense"),
    ],
)
def test_features(text: str, status: str, words: str) -> None:
    said = verdict(with_ras({"features": text}), "ras.amd.features")
    assert (said.status, words in said.reason) == (status, True), said


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        pytest.param(0, "PASS", "no XGMI error", marks=proves("ras.amd.xgmi", "PASS", on="fake")),
        pytest.param(1, "WARN", "one error on its XGMI links", marks=proves("ras.amd.xgmi", "WARN", on="fake")),
        pytest.param(2, "WARN", "several errors", marks=proves("ras.amd.xgmi", "WARN", on="fake")),
    ],
)
def test_xgmi(machine: FakeMachine, error: int, status: str, words: str) -> None:
    machine.amd(W7900, MI210)
    machine.put({"amd.1.xgmi_error": error})
    host = asked_here(files_of(nvidia=False, amd=True))
    said: dict[str, Verdict] = {each.status: each for each in verdicts(host, "ras.amd.xgmi", deadline_s=DEADLINE_S)}
    assert (words in said[status].reason, said[status].devices) == (True, (MI210.pci_address,))
    assert said["SKIP"].devices == (W7900.pci_address,)


# ---- the host ----


def with_edac(ue: str, ce: str) -> MachineBuilder:
    folder = "/sys/devices/system/edac/mc/mc0"
    return a_machine().with_gpu("rtx4090").with_file(f"{folder}/ue_count", ue).with_file(f"{folder}/ce_count", ce)


@pytest.mark.parametrize(
    ("ue", "ce", "status", "words"),
    [
        pytest.param("0", "0", "PASS", "no errors of host memory", marks=proves("ras.host.edac", "PASS", on="tree")),
        ("0", "7", "PASS", "7 corrected and no uncorrectable errors"),
        pytest.param("0", "70", "WARN", "70 corrected errors", marks=proves("ras.host.edac", "WARN", on="tree")),
        pytest.param("2", "0", "FAIL", "2 uncorrectable errors", marks=proves("ras.host.edac", "FAIL", on="tree")),
        ("many", "0", "UNKNOWN", "could not be read"),
        ("", "0", "UNKNOWN", "could not be read"),
    ],
)
def test_edac(ue: str, ce: str, status: str, words: str) -> None:
    said = verdict(with_edac(ue, ce), "ras.host.edac")
    assert (said.status, words in said.reason, said.blocking) == (status, True, False), said


@given(st.text(max_size=30), st.text(max_size=30))
@settings(max_examples=60)
def test_no_garbage_of_edac_passes(ue: str, ce: str) -> None:
    said = verdict(with_edac(ue, ce), "ras.host.edac")
    assert said.status != "ERROR"
    if said.status == "PASS":
        assert int(ue) == int(ce) == 0


@given(st.text(alphabet="uecd: 0123456789\n", max_size=40))
@settings(max_examples=60)
def test_no_garbage_of_amdgpu_passes(text: str) -> None:
    said = judged(with_ras({"umc_err_count": text, "gpu_vram_bad_pages": text}), "ras.amd.counts", "ras.amd.bad_pages")
    by_gate = {each.id: each for each in said.verdicts}
    assert "ERROR" not in {each.status for each in said.verdicts}
    if by_gate["ras.amd.counts"].status == "PASS":
        assert {"ue: 0", "ce: 0"} <= {line.strip() for line in text.splitlines()} or "0" in text
    if text.strip():
        assert by_gate["ras.amd.bad_pages"].status == "UNKNOWN"


# rasdaemon's ras-record.c makes these tables.
SCHEMA = """
CREATE TABLE mc_event (id INTEGER PRIMARY KEY, timestamp TEXT, err_count INTEGER, err_type TEXT, err_msg TEXT);
CREATE TABLE aer_event (id INTEGER PRIMARY KEY, timestamp TEXT, dev_name TEXT, err_type TEXT, err_msg TEXT);
CREATE TABLE mce_record (id INTEGER PRIMARY KEY, timestamp TEXT, error_msg TEXT);
"""
BTIME = 1_700_000_000  # 2023-11-14 22:13:20 UTC


def with_events(folder: Path, *events: tuple[str, str, str]) -> MachineBuilder:
    path = folder / "ras-mc_event.db"
    with sqlite3.connect(path) as database:
        database.executescript(SCHEMA)
        for table, stamp, words in events:
            column = "error_msg" if table == "mce_record" else "err_type"
            database.execute(f"INSERT INTO {table} (timestamp, {column}) VALUES (?, ?)", (stamp, words))
    database.close()
    machine = a_machine().with_gpu("rtx4090").with_file("/proc/stat", f"cpu 1 2 3\nbtime {BTIME}\nprocesses 9\n")
    return machine.with_file("/var/lib/rasdaemon/ras-mc_event.db", path.read_bytes())


@proves("ras.host.rasdaemon", "PASS", on="tree")
def test_corrected_and_older_events_are_listed(tmp_path: Path) -> None:
    said = verdict(
        with_events(
            tmp_path,
            ("mc_event", "2023-11-15 01:00:00 +0000", "Corrected"),
            ("aer_event", "2023-11-15 02:00:00 +0000", "Corrected"),
            ("mc_event", "2023-11-14 21:00:00 +0000", "Uncorrected"),  # before the boot
        ),
        "ras.host.rasdaemon",
    )
    assert (said.status, said.evidence[0].found) == ("PASS", "aer_event corrected: 1, mc_event corrected: 1")


@proves("ras.host.rasdaemon", "WARN", on="tree")
def test_uncorrected_events_since_boot(tmp_path: Path) -> None:
    said = verdict(
        with_events(
            tmp_path,
            ("mc_event", "2023-11-14 23:15:00 +0100", "Uncorrected"),  # in another time zone, 100 s after the boot
            ("aer_event", "2023-11-15 02:00:00 +0000", "Uncorrected (Fatal)"),
            ("mce_record", "2023-11-15 02:00:00 +0000", "Corrected error, no action required."),
        ),
        "ras.host.rasdaemon",
    )
    assert (said.status, said.reason) == ("WARN", "rasdaemon recorded 2 uncorrected errors since boot")


@pytest.mark.parametrize("data", [b"", b"SQLite format 3\0" + b"\xff" * 200, b"no database"])
def test_a_database_that_is_none(data: bytes) -> None:
    machine = a_machine().with_gpu("rtx4090").with_file("/proc/stat", f"btime {BTIME}\n")
    said = verdict(machine.with_file("/var/lib/rasdaemon/ras-mc_event.db", data), "ras.host.rasdaemon")
    assert said.status == "UNKNOWN"


def test_no_rasdaemon() -> None:
    assert verdict(a_machine().with_gpu("rtx4090"), "ras.host.rasdaemon").status == "SKIP"


# ---- Intel ----


def with_memories(*health: Any) -> MachineBuilder:
    machine = a_machine().with_gpu("arc-b580")
    data = machine.host().ask("levelzero").data | {"memories": [[{"value": each} for each in health]]}
    return machine.with_reply("levelzero", HelperReply(status="ok", data=data))


@pytest.mark.parametrize(
    ("health", "status", "words"),
    [
        pytest.param((1, 1), "PASS", "2 memory modules", marks=proves("ras.intel.mem_health", "PASS", on="tree")),
        pytest.param((1, 2), "WARN", "degraded", marks=proves("ras.intel.mem_health", "WARN", on="tree")),
        pytest.param((3,), "FAIL", "critical", marks=proves("ras.intel.mem_health", "FAIL", on="tree")),
        pytest.param((1, 4), "FAIL", "to be replaced", marks=proves("ras.intel.mem_health", "FAIL", on="tree")),
        ((0,), "UNKNOWN", "does not tell"),
        (("?",), "UNKNOWN", "does not tell"),
        ((), "SKIP", "no memory of their own"),
    ],
)
def test_memory_of_intel(health: tuple[Any, ...], status: str, words: str) -> None:
    said = verdict(with_memories(*health), "ras.intel.mem_health")
    assert (said.status, words in said.reason, len(said.devices)) == (status, True, 1), said

"""Where a baseline is written and read, and what a damaged one is worth."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings, strategies as st

from pytest_gpucoexist.errors import DataError, UserError
from pytest_gpucoexist.gates.baseline import load, save
from pytest_gpucoexist.gates.baseline.record import from_text
from pytest_gpucoexist.gates.baseline.store import SYSTEM_FOLDER, folders, machine_id, read_baseline
from pytest_gpucoexist.host.saving import save_file
from pytest_gpucoexist.probes import discover
from tests.gates.baseline.machines import MACHINE, OWN_FOLDER, baseline_path, baseline_text, remembering

if TYPE_CHECKING:
    from pathlib import Path

WHOLE = baseline_text(MACHINE)


def test_the_machine_id_is_not_given_away() -> None:
    raw = "0123456789abcdef0123456789abcdef"
    found = machine_id(MACHINE.host())
    assert len(found) == 32
    assert raw not in WHOLE
    assert found != machine_id(MACHINE.with_file("/etc/machine-id", "f" * 32).host())


def test_without_a_machine_id_the_name_of_the_host_counts() -> None:
    for machine in (MACHINE.without("/etc/machine-id"), MACHINE.with_file("/etc/machine-id", "uninitialized\n")):
        assert machine_id(machine.host()) != machine_id(MACHINE.host())
    nameless = MACHINE.without("/etc/machine-id").with_file("/var/lib/dbus/machine-id", "0123456789abcdef" * 2)
    assert machine_id(nameless.host()) == machine_id(MACHINE.host())


def test_folders() -> None:
    assert folders(MACHINE.host()) == (SYSTEM_FOLDER, OWN_FOLDER)
    elsewhere = MACHINE.with_environ(XDG_STATE_HOME="/data/state/")
    assert folders(elsewhere.host()) == (SYSTEM_FOLDER, "/data/state/gpucoexist")
    relative = MACHINE.with_environ(XDG_STATE_HOME="state", HOME="")
    assert folders(relative.host()) == (SYSTEM_FOLDER,)


@pytest.mark.parametrize("folder", [SYSTEM_FOLDER, OWN_FOLDER])
def test_both_places_are_read(folder: str) -> None:
    found = load(remembering(MACHINE, MACHINE, folder).host())
    assert found.path == baseline_path(MACHINE, folder)
    assert found.baseline is not None
    assert found.baseline.bios_version == "F13"
    assert [gpu.key for gpu in found.baseline.gpus if gpu.compute] == ["0000:01:00.0", "0000:83:00.0"]
    assert found.searched == (baseline_path(MACHINE), baseline_path(MACHINE, OWN_FOLDER))


def test_the_newer_one_counts() -> None:
    older = json.loads(WHOLE)
    from pytest_gpucoexist.gates.baseline.record import Baseline, to_text
    from pytest_gpucoexist.model.codec import decode

    baseline = decode(Baseline, {**older, "saved_at": older["saved_at"] + 60, "bios_version": "F14"})
    newer = to_text(dataclasses.replace(baseline, digest=baseline.computed_digest))
    for folder, other in ((SYSTEM_FOLDER, OWN_FOLDER), (OWN_FOLDER, SYSTEM_FOLDER)):
        machine = remembering(MACHINE, MACHINE, other).with_file(baseline_path(MACHINE, folder), newer)
        found = load(machine.host())
        assert found.path == baseline_path(MACHINE, folder)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no JSON"),
        ("{", "no JSON"),
        ("[" * 100000, "no JSON"),
        ("[]", "no baseline"),
        ('{"format": "something else"}', "no baseline"),
        ('{"format": "pytest-gpucoexist baseline", "version": 99}', "version 99"),
        ('{"format": "pytest-gpucoexist baseline", "version": 1}', "needs 'machine_id'"),
        (WHOLE.replace("F13", "F99"), "digest"),
        (WHOLE[:-40], "no JSON"),
    ],
)
def test_damaged_files_are_named(text: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        from_text(text)
    found = load(MACHINE.with_file(baseline_path(MACHINE), text).host())
    assert found.baseline is None
    assert found.damaged[0][0] == baseline_path(MACHINE)
    assert words in found.damaged[0][1]


def test_another_machines_file_does_not_count() -> None:
    other = MACHINE.with_file("/etc/machine-id", "f" * 32)
    found = load(MACHINE.with_file(baseline_path(MACHINE), baseline_text(other)).host())
    assert (found.baseline, found.damaged[0][1]) == (None, "it is another machine's")


def test_a_file_that_others_may_not_read_says_what_to_do() -> None:
    machine = remembering(MACHINE, MACHINE).with_error(baseline_path(MACHINE), 13)
    assert "chmod 644" in load(machine.host()).damaged[0][1]


@settings(max_examples=100)
@given(st.text(max_size=40), st.integers(0, 4000), st.binary(max_size=6))
def test_any_text(text: str, at: int, data: bytes) -> None:
    for each in (text, WHOLE[:at] + data.decode("latin-1") + WHOLE[at + len(data) :]):
        try:
            found = from_text(each)
        except DataError:
            continue
        assert found == from_text(WHOLE)


def test_saving_replaces_the_file_in_one_step(tmp_path: Path) -> None:
    target = tmp_path / "state" / "baseline.json"
    machine = discover(MACHINE.host())
    old = os.umask(0o077)
    try:
        assert save(MACHINE.host(), machine, str(target)) == str(target)
        save(MACHINE.host(), machine, str(target))
    finally:
        os.umask(old)
    assert stat.S_IMODE(target.stat().st_mode) == 0o644, "readable by others, whatever the umask"
    assert stat.S_IMODE(target.parent.stat().st_mode) == 0o755
    assert os.listdir(target.parent) == ["baseline.json"], "nothing is left beside it"
    assert read_baseline(str(target)).bios_version == "F13"


def test_what_libraries_tell_is_kept_beside_what_files_tell(tmp_path: Path) -> None:
    host = MACHINE.host()
    path = save(host, discover(host, ask=("amd", "nvidia")), str(tmp_path / "b.json"))
    first = read_baseline(path).gpus[0]
    assert first.seen["driver_version"]["files"] == "570.133.07"
    assert "nvml" in first.seen["memory_total_bytes"]


def test_a_recorded_machine_has_no_place_of_its_own() -> None:
    with pytest.raises(UserError, match="needs a name"):
        save(MACHINE.host(), discover(MACHINE.host()))


def test_a_user_saves_in_the_state_folder(tmp_path: Path) -> None:
    host = MACHINE.with_environ(XDG_STATE_HOME=str(tmp_path)).host()
    machine = dataclasses.replace(discover(host), simulated=False)
    assert host.identity().uid != 0
    assert save(host, machine) == f"{tmp_path}/gpucoexist/baseline-{machine_id(host)}.json"
    homeless = MACHINE.with_environ(HOME="").host()
    with pytest.raises(UserError, match="neither XDG_STATE_HOME nor HOME is set"):
        save(homeless, machine)


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x", encoding="utf-8")
    with pytest.raises(UserError, match="give another file"):
        save(MACHINE.host(), discover(MACHINE.host()), str(file / "baseline.json"))
    with pytest.raises(UserError, match="cannot read the baseline"):
        read_baseline(str(tmp_path / "none.json"))


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "target"
    folder.mkdir()
    with pytest.raises(OSError):  # noqa: PT011  the target is a folder
        save_file(str(folder), "text")
    assert os.listdir(tmp_path) == ["target"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux: the host is this machine")
def test_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_gpucoexist.gates.baseline import store
    from pytest_gpucoexist.host import local_host

    monkeypatch.setattr(store, "SYSTEM_FOLDER", str(tmp_path / "system"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "own"))
    host = local_host()
    machine = discover(host)
    assert load(host).baseline is None
    path = save(host, machine)
    folder = "system/" if host.identity().uid == 0 else "own/gpucoexist/"
    assert path == f"{tmp_path}/{folder}baseline-{machine_id(host)}.json"
    found = load(host)
    assert (found.path, found.damaged) == (path, ())

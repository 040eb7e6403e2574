"""What others can read of leases, and what is not believed."""

from __future__ import annotations

import fcntl
import json
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.host import local_host
from pytest_gpucoexist.leases import places
from pytest_gpucoexist.leases.machine import Identity, MachineLeaser
from pytest_gpucoexist.leases.ofd import lock
from pytest_gpucoexist.leases.places import Place
from pytest_gpucoexist.leases.reading import holders_of, records, sweep
from pytest_gpucoexist.leases.view import all_records, locked_unrecorded
from pytest_gpucoexist.model.groups import Group
from pytest_gpucoexist.model.requirement import Requirement
from tests.leases.processes import folder_place, need
from tests.machines import machine, nvidia

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucoexist.model.machine import Machine
    from tests.leases.conftest import Start

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="locks on ranges are Linux's")

N0, N1, A0 = "0000:41:00.0", "0000:42:00.0", "0000:c1:00.0"


def test_a_record_says_who_holds_and_who_waits(start: Start, folder: Path, box: Machine) -> None:
    holder, waiter = start(session="run 1").ready(), start(session="run 2").ready()
    number = holder.ask("acquire", 'test_"a"[é\n]', [need([N0], 1, 2048), need([A0])])[0]
    waiter.tell("acquire", "test_b", [need([N0, A0], 2)])
    waiter.waits()
    holders, waits = [], []
    for seen in records(str(folder)):
        assert (seen.live, seen.uid, seen.machine) == (True, os.geteuid(), box.name)
        holders += list(seen.holders())
        waits += [(seen.session, each.owner, each.devices) for each in seen.waits]
    assert [(each.key, each.pid, each.session, each.test, each.memory_bytes) for each in holders] == [
        (N0, holder.pid, "run 1", 'test_"a"[é\\n]', 2 << 30),
        (A0, holder.pid, "run 1", 'test_"a"[é\\n]', None),
    ]
    assert waits == [("run 2", "test_b", (N0, A0))]
    assert list(holders_of(records(str(folder)))) == []  # of this machine, nobody holds anything
    holder.ask("release", number)
    assert waiter.answer()[0] == "ok"
    assert [each.test for each in holders_of(records(str(folder)), box.name)] == ["test_b", "test_b"]
    # What a process has had may still be in its cache.
    covers = {seen.session: seen.covers for seen in records(str(folder))}
    assert covers["run 1"] == {N0: 2 << 30, A0: None}


def test_the_record_of_the_dead_is_left_and_swept(start: Start, folder: Path) -> None:
    process = start().ready()
    process.ask("acquire", "test_a", [need([N0])])
    process.kill()
    assert [(seen.live, seen.leases[0].owner) for seen in records(str(folder))] == [(False, "test_a")]
    sweep(str(folder), lambda name: name == f"testbox:{N0}")
    assert len(list(records(str(folder)))) == 1
    sweep(str(folder), lambda name: False)
    assert list(records(str(folder))) == []


def test_a_record_whose_process_died_before_it_wrote_is_swept(folder: Path) -> None:
    empty, kept = write(folder, "1-a.json", ""), write(folder, "2-b.json", "")
    fd = os.open(kept, os.O_RDWR)
    assert lock(fd, 0, 1)
    sweep(str(folder), lambda name: False)
    assert not empty.exists()
    assert kept.exists(), "its process lives, and is about to write"
    os.close(fd)


GOOD: dict[str, Any] = {
    "pid": 1,
    "group": 1,
    "session_id": 1,
    "started": None,
    "namespace": None,
    "session": "s",
    "worker": None,
    "program": "pytest",
    "machine": "",
    "nonce": "0" * 16,
    "leases": [{"number": 1, "owner": "test", "since": 1.5, "devices": [["k", None], ["j", 5]]}],
    "waits": [],
    "had": [],
}


def write(folder: Path, name: str, content: str | bytes, uid: int | None = None) -> Path:
    own = folder / str(os.geteuid() if uid is None else uid)
    own.mkdir(exist_ok=True)
    path = own / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_a_record_as_it_should_be(folder: Path) -> None:
    write(folder, "1-a.json", json.dumps(GOOD) + "\n    ")
    (seen,) = records(str(folder))
    assert (seen.live, seen.leases[0].devices) == (False, {"k": None, "j": 5})


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        b"\xff\xfe",
        "[" * 100_000,
        json.dumps({**GOOD, "pid": "1"}),
        json.dumps({**GOOD, "pid": True}),
        json.dumps({**GOOD, "leases": [1]}),
        json.dumps({**GOOD, "leases": [{**GOOD["leases"][0], "devices": [["k", "all"]]}]}),
        json.dumps({**GOOD, "waits": None}),
        json.dumps({key: value for key, value in GOOD.items() if key != "nonce"}),
        json.dumps({**GOOD, "session": "x" * 300_000}),
        json.dumps({**GOOD, "pid": -1}),
        json.dumps({**GOOD, "leases": [{**GOOD["leases"][0], "since": float("-inf")}]}),
        json.dumps({**GOOD, "leases": [{**GOOD["leases"][0], "since": float("nan")}]}),
        json.dumps({**GOOD, "leases": [{**GOOD["leases"][0], "devices": [["k", 10**400]]}]}),
    ],
)
def test_what_is_no_record_is_left_out(folder: Path, content: str | bytes) -> None:
    write(folder, "1-a.json", content)
    write(folder, "2-b.txt", json.dumps(GOOD))
    assert list(records(str(folder))) == []


def test_what_a_record_says_cannot_command_a_terminal(folder: Path) -> None:
    lease = {**GOOD["leases"][0], "owner": "\x1b]0;title\x07\n\ud800 größer"}
    write(folder, "1-a.json", json.dumps({**GOOD, "leases": [lease]}))
    (seen,) = records(str(folder))
    assert seen.leases[0].owner.isprintable()
    assert seen.leases[0].owner.startswith(r"\x1b]0;title")
    lease["owner"] = "test_größer[a b]"
    write(folder, "1-a.json", json.dumps({**GOOD, "leases": [lease]}))
    (seen,) = records(str(folder))
    assert seen.leases[0].owner == "test_größer[a b]"


def test_records_of_others_names_and_links_are_left_out(root: None, folder: Path, tmp_path: Path) -> None:
    """A record counts where its owner's number is the folder's name: nobody speaks for another user."""
    write(folder, "1-a.json", json.dumps(GOOD), uid=12345)
    (folder / "root").mkdir()
    (folder / "root" / "1-a.json").write_text(json.dumps(GOOD))
    target = tmp_path / "elsewhere.json"
    target.write_text(json.dumps(GOOD))
    link = folder / str(os.geteuid()) / "1-link.json"
    link.parent.mkdir()
    link.symlink_to(target)
    os.mkfifo(link.parent / "2-pipe.json")
    assert list(records(str(folder))) == []


def test_a_folder_of_another_owner_gets_no_record(root: None, folder: Path, box: Machine) -> None:
    own = folder / str(os.geteuid())
    own.mkdir()
    os.chown(own, 12345, 12345)
    leaser = MachineLeaser(lambda: box, folder_place(folder), Identity("s"))
    lease = leaser.acquire([Group(requirement=Requirement(), candidates=(N0,))], "test_a")
    assert list(own.iterdir()) == []
    assert leaser.token(lease) is None
    leaser.close()


def test_a_record_that_was_removed_is_written_again(folder: Path, box: Machine) -> None:
    leaser = MachineLeaser(lambda: box, folder_place(folder), Identity("s"))
    groups = [Group(requirement=Requirement(), candidates=(N0,))]
    leaser.release(leaser.acquire(groups, "test_a"))
    (seen,) = records(str(folder))
    os.unlink(seen.path)
    leaser.acquire(groups, "test_b")
    (seen,) = records(str(folder))
    assert (seen.live, seen.leases[0].owner) == (True, "test_b")
    leaser.close()


def test_what_is_locked_without_a_record_is_seen(start: Start, folder: Path, box: Machine) -> None:
    process = start().ready()
    process.ask("acquire", "test_a", [need([N0], 1, 1)])
    place = folder_place(folder)
    named = {holder.key for holder in holders_of(all_records(place), box.name)}
    assert named == {N0}
    assert locked_unrecorded(place, box, named) == []
    for path in folder.glob("*/*.json"):
        path.unlink()
    assert [(each.key, each.kind, each.pid) for each in locked_unrecorded(place, box, set())] == [(N0, "unknown", None)]
    # Looking takes nothing.
    assert start().ready().ask("acquire", "test_b", [need([N1])], 0)[1] == [[N1]]


def test_who_locks_a_function_without_this_package_is_named(functions: list[str]) -> None:
    address = functions[-1]
    here = machine(nvidia(0, pci_address=address))
    place = Place(kind="process", folder=None, functions=places.FUNCTIONS, locks="process")
    with open(f"{places.FUNCTIONS}/{address}/vendor") as attribute:
        fcntl.flock(attribute, fcntl.LOCK_SH)
        (found,) = locked_unrecorded(place, here, set(), local_host())
    assert (found.key, found.kind, found.pid) == (address, "unknown", os.getpid())
    assert locked_unrecorded(place, here, set(), local_host()) == []


def test_records_of_users_own_folders_are_seen_where_functions_are_locked(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "_roots", lambda: (str(tmp_path),))
    own = tmp_path / f"gpucoexist-{os.geteuid()}"
    own.mkdir()
    (tmp_path / "gpucoexist-12345").mkdir()
    write(own, "1-a.json", json.dumps(GOOD))
    write(tmp_path / "gpucoexist-12345", "2-a.json", json.dumps({**GOOD, "pid": 2}))
    assert list(all_records(folder_place(folder))) == []
    assert [seen.pid for seen in all_records(folder_place(folder, functions=places.FUNCTIONS))] == [1]

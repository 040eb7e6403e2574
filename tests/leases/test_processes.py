"""Leases between processes that die, stop, fork and are interrupted."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.leases.processes import PATIENCE_S, Process, Referee, folder_place, need
from tests.machines import machine, nvidia

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucoexist.model.machine import Machine
    from tests.leases.conftest import Start

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="locks on ranges are Linux's")

N0, N1, A0, A1 = "0000:41:00.0", "0000:42:00.0", "0000:c1:00.0", "0000:c2:00.0"
GIB_MIB = 1024


def waiting(process: Process, owner: str, keys: list[str], count: int = 1, memory_mib: int | None = None) -> str:
    """Have a process wait for devices; return how many are before it once it does."""
    process.tell("acquire", owner, [need(keys, count, memory_mib)])
    return process.waits()


def test_who_is_killed_holds_nothing(start: Start) -> None:
    holder, waiter = start(), start()
    holder.ready().ask("acquire", "test_a", [need([N0])])
    waiting(waiter.ready(), "test_b", [N0])
    assert not waiter.has_answered()
    holder.kill()
    assert waiter.answer()[1][1] == [[N0]]


def test_who_is_stopped_keeps_what_it_holds(start: Start) -> None:
    holder, other = start().ready(), start().ready()
    lease = holder.ask("acquire", "test_a", [need([N0])])
    holder.signal(signal.SIGSTOP)
    assert "is held by test_a" in other.refusal("acquire", "test_b", [need([N0])], 0.3)[1]
    holder.signal(signal.SIGCONT)
    holder.ask("release", lease[0])
    assert other.ask("acquire", "test_b", [need([N0])])[1] == [[N0]]


def test_first_come_first_served(start: Start) -> None:
    holder, *others = (start(silent_s=PATIENCE_S) for _ in range(4))
    lease = holder.ready().ask("acquire", "test_a", [need([N0])])
    assert [waiting(each.ready(), "test", [N0]) for each in others] == ["0", "1", "2"]
    served = []
    holder.ask("release", lease[0])
    for each in others:
        number = each.answer()[1][0]
        served.append([other.has_answered() for other in others])
        each.ask("release", number)
    assert served == [[False, False, False]] * 3


def test_a_big_request_is_not_starved_by_small_ones(start: Start) -> None:
    small = [start().ready() for _ in range(2)]
    big, late = start().ready(), start(silent_s=PATIENCE_S).ready()
    leases = [each.ask("acquire", "small", [need([N0, N1], 1, GIB_MIB)])[0] for each in small]
    waiting(big, "big", [N0, N1], 2)
    # There is room beside the small ones, but the big one came first; what it cannot use is nobody's business.
    assert waiting(late, "late", [N0, N1], 1, GIB_MIB) == "1"
    assert start().ready().ask("acquire", "elsewhere", [need([A0])])[1] == [[A0]]
    for each, number in zip(small, leases, strict=True):
        each.ask("release", number)
    number = big.answer()[1][0]
    assert not late.has_answered()
    big.ask("release", number)
    assert late.answer()[1][1] in ([[N0]], [[N1]])


def test_a_waiter_that_is_stopped_or_killed_is_passed(start: Start) -> None:
    holder, stopped, killed, last = (start().ready() for _ in range(4))
    lease = holder.ask("acquire", "test_a", [need([N0])])
    waiting(stopped, "stopped", [N0])
    waiting(killed, "killed", [N0])
    assert waiting(last, "last", [N0]) == "2"
    stopped.signal(signal.SIGSTOP)
    killed.kill()
    holder.ask("release", lease[0])
    number = last.answer()[1][0]
    stopped.signal(signal.SIGCONT)
    last.ask("release", number)
    assert stopped.answer()[1][1] == [[N0]]


def test_who_was_seen_stopped_holds_up_nobody_again(start: Start) -> None:
    holder, stopped, other = (start().ready() for _ in range(3))
    lease = holder.ask("acquire", "test_a", [need([N0])])
    waiting(stopped, "stopped", [N0])
    stopped.signal(signal.SIGSTOP)
    holder.ask("release", lease[0])
    first = other.ask("acquire", "first", [need([N0])])
    other.ask("release", first[0])
    # At once: it is known by now.
    again = other.ask("acquire", "again", [need([N0])], 0)
    other.ask("release", again[0])
    stopped.signal(signal.SIGCONT)
    assert stopped.answer()[1][1] == [[N0]]


def test_an_interrupted_wait_leaves_no_place_in_the_queue(start: Start) -> None:
    holder, waiter, other = (start().ready() for _ in range(3))
    lease = holder.ask("acquire", "test_a", [need([N0])])
    before = waiter.ask("descriptors")
    waiting(waiter, "test_b", [N0])
    waiter.signal(signal.SIGINT)
    assert waiter.answer()[:2] == ["error", "KeyboardInterrupt"]
    holder.ask("release", lease[0])
    assert other.ask("acquire", "test_c", [need([N0])], 0)[1] == [[N0]]
    # One more: the record, which is made at the first wait.
    assert waiter.ask("descriptors") == before + 1


def test_a_signal_that_is_handled_does_not_end_a_wait(start: Start) -> None:
    holder, waiter = start().ready(), start().ready()
    lease = holder.ask("acquire", "test_a", [need([N0])])
    waiting(waiter, "test_b", [N0])
    for _ in range(20):
        waiter.signal(signal.SIGCHLD)
    holder.ask("release", lease[0])
    assert waiter.answer()[1][1] == [[N0]]


def test_forked_children_hold_nothing_and_give_nothing_back(start: Start) -> None:
    holder, other = start().ready(), start().ready()
    number = holder.ask("acquire", "test_a", [need([N0])])[0]
    child, believes = holder.ask("fork", 30)
    assert believes == {}
    assert other.refusal("acquire", "test_b", [need([N0])], 0)[0] == "DeviceBusyError"
    holder.ask("release", number)
    assert other.ask("acquire", "test_b", [need([N0])], 0)[1] == [[N0]]
    os.kill(child, signal.SIGKILL)


def test_a_child_that_outlives_its_parent_keeps_no_lock(start: Start) -> None:
    holder, other = start().ready(), start().ready()
    holder.ask("acquire", "test_a", [need([N0])])
    child, _ = holder.ask("fork", 30)
    holder.kill()
    try:
        assert other.ask("acquire", "test_b", [need([N0])])[1] == [[N0]]
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_removed_table_gives_no_second_holder(start: Start, folder: Path) -> None:
    maker, holder, other, third = (start().ready() for _ in range(4))
    maker.ask("release", maker.ask("acquire", "made", [need([N0])])[0])
    maker.end()
    number = holder.ask("acquire", "test_a", [need([N0])])[0]
    (folder / "table").unlink()
    # Not the device that is held, and no other one either: a new table has to wait for the holders of the old one.
    assert other.refusal("acquire", "test_b", [need([N0])], 0.1)[0] == "DeviceBusyError"
    assert other.refusal("acquire", "test_b", [need([N1])], 0.1)[0] == "DeviceBusyError"
    other.tell("acquire", "test_b", [need([N0])])
    other.waits()
    holder.ask("release", number)
    assert other.answer()[1][1] == [[N0]]
    assert third.refusal("acquire", "test_c", [need([N0])], 0)[0] == "DeviceBusyError"


def test_waiters_follow_to_the_new_table(start: Start, folder: Path) -> None:
    holder, *waiters = (start().ready() for _ in range(3))
    number = holder.ask("acquire", "test_a", [need([N0])])[0]
    for each in waiters:
        waiting(each, "test", [N0])
    (folder / "table").unlink()
    holder.ask("release", number)
    while not any(each.has_answered() for each in waiters):
        time.sleep(0.01)
    first = next(each for each in waiters if each.has_answered())
    last = next(each for each in waiters if each is not first)
    number = first.answer()[1][0]
    assert start().ready().refusal("acquire", "test_c", [need([N0])], 0)[0] == "DeviceBusyError"
    assert not last.has_answered()
    first.ask("release", number)
    assert last.answer()[1][1] == [[N0]]


def test_two_users_share_a_folder(start: Start, everybodys: Path) -> None:
    folder = everybodys
    one, two = (start(place=folder_place(folder), uid=uid).ready() for uid in (54321, 12345))
    lease = one.ask("acquire", "test_a", [need([N0])])
    assert (folder / "table").stat().st_uid == 54321
    name, words = two.refusal("acquire", "test_b", [need([N0])], 0)
    assert name == "DeviceBusyError"
    assert "is held by test_a in process" in words
    assert "of user 54321" in words
    waiting(two, "test_b", [N0])
    one.ask("release", lease[0])
    number = two.answer()[1][0]
    two.ask("release", number)
    assert sorted(path.name for path in folder.iterdir()) == ["12345", "54321", "table"]


def test_two_mount_namespaces_share_a_folder(root: None, start: Start, folder: Path) -> None:
    import subprocess

    under = ("unshare", "--mount")
    tried = subprocess.run([*under, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"needs mount namespaces: {tried.stderr.strip()}")
    one, two = start(under=under).ready(), start(under=under).ready()
    one.ask("acquire", "test_a", [need([N0])])
    assert two.refusal("acquire", "test_b", [need([N0])], 0)[0] == "DeviceBusyError"


@pytest.mark.parametrize("killed", [False, True], ids=["all live", "some die"])
def test_capacity_is_never_exceeded(start: Start, tmp_path: Path, *, killed: bool) -> None:
    """Processes lease at random; each tells a referee what it holds, and some are killed while they do."""
    cards = machine(
        nvidia(0, memory_total_bytes=2 << 30), nvidia(1, memory_total_bytes=3 << 30), nvidia(2), simulated=True
    )
    sizes = {gpu.key: (gpu.memory_total_bytes or 0) >> 20 for gpu in cards.gpus}
    referee = Referee(tmp_path / "referee", sizes)
    try:
        processes = [start(cards, referee=referee.path) for _ in range(5)]
        for number, each in enumerate(processes):
            each.ready().tell("random", number, 40)
        if killed:
            for each in processes[:2]:
                while referee.grants < 60:
                    time.sleep(0.005)
                each.kill()
            processes = processes[2:]
        assert [each.answer() for each in processes] == [["ok", 40]] * len(processes)
        assert referee.violations == []
        assert referee.grants >= 60
        # Nothing is left: everything can be had at once.
        assert start(cards).ready().ask("acquire", "all", [need(list(sizes), 3)], 0)
    finally:
        referee.finish()


@pytest.fixture
def real(functions: list[str]) -> Machine:
    """A machine whose cards have the addresses of PCI functions of this machine. Name it before `start`."""
    if len(functions) < 2:
        pytest.skip("needs two PCI functions in /sys/bus/pci/devices")
    return machine(
        *(
            nvidia(number, pci_address=address, memory_total_bytes=2 << 30)
            for number, address in enumerate(functions[-2:])
        )
    )


def test_sessions_of_different_folders_meet_at_the_pci_function(real: Machine, start: Start, tmp_path: Path) -> None:
    one, two = (gpu.key for gpu in real.gpus)
    places = []
    for name in ("mine", "yours"):
        (tmp_path / name).mkdir()
        places.append(folder_place(tmp_path / name, kind="user", functions="/sys/bus/pci/devices"))
    mine, yours = (start(real, place).ready() for place in places)
    lease = mine.ask("acquire", "test_a", [need([one])])
    assert yours.refusal("acquire", "test_b", [need([one])], 0)[0] == "DeviceBusyError"
    assert yours.refusal("acquire", "test_b", [need([one], 1, 1)], 0)[0] == "DeviceBusyError"
    assert yours.ask("acquire", "test_b", [need([one, two], 1, 1536)], 0)[1] == [[two]]
    mine.ask("release", lease[0])
    assert mine.refusal("acquire", "test_a", [need([two], 1, 1024)], 0)[0] == "DeviceBusyError"
    assert mine.ask("acquire", "test_a", [need([two], 1, 512)], 0)[2] == [[two, 512]]
    assert waiting(start(real, places[0]).ready(), "test_c", [two]) == "0"
    # First come, first served, across the folders: a share that would fit comes after the one that waits.
    assert waiting(start(real, places[1]).ready(), "test_d", [one, two], 2) == "1"


def test_capacity_holds_across_folders(real: Machine, start: Start, tmp_path: Path) -> None:
    sizes = {gpu.key: (gpu.memory_total_bytes or 0) >> 20 for gpu in real.gpus}
    referee = Referee(tmp_path / "referee", sizes)
    try:
        processes = []
        for number in range(4):
            (tmp_path / str(number)).mkdir()
            place = folder_place(tmp_path / str(number), kind="user", functions="/sys/bus/pci/devices")
            processes.append(start(real, place, referee=referee.path))
        for number, each in enumerate(processes):
            each.ready().tell("random", number, 40)
        assert [each.answer() for each in processes] == [["ok", 40]] * 4
        assert referee.violations == []
        assert referee.grants >= 160
    finally:
        referee.finish()


def test_a_shell_can_hold_a_pci_function(real: Machine, start: Start, tmp_path: Path) -> None:
    import fcntl

    key = real.gpus[0].key
    (tmp_path / "mine").mkdir()
    place = folder_place(tmp_path / "mine", kind="user", functions="/sys/bus/pci/devices")
    process = start(real, place).ready()
    with open(f"/sys/bus/pci/devices/{key}/vendor") as attribute:
        fcntl.flock(attribute, fcntl.LOCK_EX)
        assert process.refusal("acquire", "test_a", [need([key])], 0)[0] == "DeviceBusyError"
    assert process.ask("acquire", "test_a", [need([key])], 0)[1] == [[key]]


def test_a_file_that_is_laid_in_place_of_the_table_gives_no_second_holder(start: Start, folder: Path) -> None:
    maker, holder, other = (start().ready() for _ in range(3))
    maker.ask("release", maker.ask("acquire", "made", [need([N0])])[0])
    number = holder.ask("acquire", "test_a", [need([N0])])[0]
    (folder / "table").unlink()
    (folder / "table").touch()
    maker.end()
    name, words = other.refusal("acquire", "test_b", [need([N0])], 0.1)
    assert name == "DeviceBusyError"
    assert "its table is gone or just being made; others still use it" in words
    other.tell("acquire", "test_b", [need([N0])])
    holder.ask("release", number)
    assert other.answer()[1][1] == [[N0]]


def test_an_empty_table_of_an_administrator_is_taken(start: Start, folder: Path) -> None:
    (folder / "table").touch()
    assert start().ready().ask("acquire", "test_a", [need([N0])])[1] == [[N0]]


def test_a_users_folder_that_is_removed_is_made_again(start: Start, folder: Path) -> None:
    import shutil

    process = start(place=folder_place(folder, kind="user")).ready()
    process.ask("release", process.ask("acquire", "test_a", [need([N0])])[0])
    shutil.rmtree(folder)
    process.ask("release", process.ask("acquire", "test_b", [need([N0])])[0])
    assert sorted(path.name for path in folder.iterdir()) == [str(os.geteuid()), "table"]
    shutil.rmtree(folder)
    everybodys = start(place=folder_place(folder)).ready()
    name, words = everybodys.refusal("acquire", "test_c", [need([N0])])
    assert name == "GpuCoexistError"
    assert "leases cannot be kept in" in words


def test_a_folder_that_only_its_table_can_be_written_in_does_without_records(start: Start, everybodys: Path) -> None:
    maker = start(place=folder_place(everybodys)).ready()
    maker.ask("release", maker.ask("acquire", "made", [need([N0])])[0])
    everybodys.chmod(0o755)
    one, two = (start(place=folder_place(everybodys), uid=uid).ready() for uid in (54321, 12345))
    lease = one.ask("acquire", "test_a", [need([N0])])
    assert one.ask("token", lease[0]) is None
    two.tell("acquire", "test_b", [need([N0])], 0.2)
    two.waits()
    status, name, words = two.answer()
    assert (status, name) == ("error", "DeviceBusyError")
    assert f"{N0} is locked by a process that left no record that can be read" in words
    one.ask("release", lease[0])
    assert two.ask("acquire", "test_b", [need([N0])])[1] == [[N0]]
    assert [path.name for path in everybodys.iterdir() if path.is_dir()] == [str(os.geteuid())]


def test_a_network_namespace_has_a_sysfs_of_its_own_and_needs_the_folder(
    root: None, real: Machine, start: Start, tmp_path: Path, folder: Path
) -> None:
    """The limit that every place names: a container like this is held back by the folder alone."""
    import subprocess

    inside = ("unshare", "--net", "--mount", "sh", "-c", 'mount -t sysfs none /sys && exec "$@"', "sh")
    tried = subprocess.run([*inside, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"needs network and mount namespaces: {tried.stderr.strip()}")
    key = real.gpus[0].key
    (tmp_path / "other").mkdir()
    places = [folder_place(path, functions="/sys/bus/pci/devices") for path in (folder, folder, tmp_path / "other")]
    outside, sharing, alone = (
        start(real, place, under=under).ready() for place, under in zip(places, ((), inside, inside), strict=True)
    )
    outside.ask("acquire", "test_a", [need([key])])
    assert sharing.refusal("acquire", "test_b", [need([key])], 0)[0] == "DeviceBusyError"
    assert alone.ask("acquire", "test_c", [need([key])], 0)[1] == [[key]]

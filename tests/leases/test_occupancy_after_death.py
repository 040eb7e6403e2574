"""What a holder that died leaves on its device, by trees of `/proc` as kernels print them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.leases.kin import Dead, keepers
from pytest_gpucoexist.leases.occupancy import Occupancy
from pytest_gpucoexist.probes import discover
from tests.leases.machines import AMD, GIB, MIB, NVIDIA, User, board, told, with_clients, with_process, workstation

if TYPE_CHECKING:
    from pytest_gpucoexist.leases.lease import Holder
    from pytest_gpucoexist.testing.builder import MachineBuilder

DEAD = Dead(pid=600, group=590, session_id=200, started=5000, token="5f1c9a7e", session="s1", test="test_a.py::test_x")


def left(machine: MachineBuilder, boards: dict[str, Any], ours: tuple[int, ...] = ()) -> tuple[Holder, ...]:
    host = told(machine, boards)
    found = discover(host)
    return (
        Occupancy(host, lambda: found, lambda: ours).busy([NVIDIA], fresh=True, dead={NVIDIA: [DEAD]}).get(NVIDIA, ())
    )


def test_nothing() -> None:
    assert left(workstation(), board(NVIDIA)) == ()
    assert left(workstation(), board(NVIDIA, used=200 * MIB)) == ()  # what an idle board has in use


def test_what_an_older_driver_keeps_for_itself_is_nobodys() -> None:
    boards = {**board(NVIDIA, used=700 * MIB, reserved=0), "reserved": {"status": "unsupported", "detail": "no v2"}}
    assert left(workstation(), boards) == ()
    assert len(left(workstation(), {**boards, "reserved": {"value": 0}})) == 1


def test_memory_that_no_process_accounts_for() -> None:
    (holder,) = left(workstation(), board(NVIDIA, used=3 * GIB))
    assert (holder.kind, holder.pid, holder.memory_bytes) == ("leftover", 600, 3 * GIB)
    assert (holder.session, holder.test) == ("s1", "test_a.py::test_x")


def test_memory_that_others_hold_is_not_the_dead_ones() -> None:
    machine = with_process(with_process(workstation(), 310, "pytest", parent=200), 900, "Xorg")
    users = (User(310, 8 * GIB), User(900, 400 * MIB, "graphics"))
    assert left(machine, board(NVIDIA, *users), ours=(310,)) == ()
    (holder,) = left(machine, board(NVIDIA, *users, used=12 * GIB), ours=(310,))
    assert holder.memory_bytes == 12 * GIB - 8 * GIB - 400 * MIB


def test_a_lease_of_others_does_not_cover_what_their_processes_do_not_hold() -> None:
    machine = with_process(workstation(), 310, "pytest", parent=200)
    host = told(machine, board(NVIDIA, User(310, GIB), used=5 * GIB))
    found = discover(host)
    known = Occupancy(host, lambda: found, lambda: (310,))
    (holder,) = known.busy([NVIDIA], fresh=True, dead={NVIDIA: [DEAD]}, declared={NVIDIA: 24 * GIB})[NVIDIA]
    assert (holder.kind, holder.memory_bytes) == ("leftover", 4 * GIB)


def test_the_dead_process_itself_while_the_driver_tears_down() -> None:
    machine = with_process(workstation(), 600, "pytest", parent=590, group=590, session=200, started=5000)
    (holder,) = left(machine, board(NVIDIA, User(600, 4 * GIB)))
    assert (holder.kind, holder.pid, holder.program) == ("leftover", 600, "pytest")


def test_another_process_that_has_its_number_by_now_is_a_stranger() -> None:
    machine = with_process(workstation(), 600, "vllm", started=9000)
    (holder,) = left(machine, board(NVIDIA, User(600, 4 * GIB)))
    assert (holder.kind, holder.program) == ("elsewhere", "vllm")


@pytest.mark.parametrize(
    ("group", "session", "started", "kind"),
    [
        (590, 200, 5100, "leftover"),  # a forked child
        (610, 200, 5100, "leftover"),  # a server with a group of its own
        (610, 610, 5100, "elsewhere"),  # a daemon: nothing tells where it comes from
        (590, 200, 4000, "elsewhere"),  # it ran before the holder did
    ],
)
def test_an_orphan(group: int, session: int, started: int, kind: str) -> None:
    machine = with_process(workstation(), 610, "server", group=group, session=session, started=started)
    (holder,) = left(machine, board(NVIDIA, User(610, 4 * GIB)))
    assert (holder.kind, holder.pid, holder.program) == (kind, 610, "server")


def test_a_daemon_that_kept_the_token_is_known_by_it() -> None:
    machine = with_process(workstation(), 610, "server", group=610, session=610, started=5100)
    for token, kind in (
        ("1:3:5f1c9a7e:/run/g/0/600.json", "leftover"),
        ("1:3:77777777:/run/g/0/600.json", "elsewhere"),
    ):
        environ = f"HOME=/root\0PYTEST_GPU_LEASE_TOKEN={token}\0LANG=C\0"
        (holder,) = left(machine.with_file("/proc/610/environ", environ), board(NVIDIA, User(610, GIB)))
        assert holder.kind == kind


def test_the_child_of_another_worker_is_no_orphan() -> None:
    machine = with_process(workstation(), 605, "pytest", parent=590, group=590, session=200, started=6000)
    machine = with_process(machine, 606, "python3", parent=605, group=590, session=200, started=6100)
    assert left(machine, board(NVIDIA, User(605), User(606)), ours=(605,)) == ()


def test_an_orphan_that_keeps_nothing_but_a_small_context_is_named_too() -> None:
    machine = with_process(workstation(), 610, "Xvfb", group=590, session=200, started=5100)
    (holder,) = left(machine, board(NVIDIA, User(610, 4 * MIB, "graphics")))
    assert holder.kind == "leftover"


def test_in_a_container_what_living_leases_declare_is_not_the_dead_ones() -> None:
    host = told(workstation(namespace="pid:[4026532843]"), board(NVIDIA, used=9 * GIB, reserved=0))
    machine = discover(host)
    known = Occupancy(host, lambda: machine, lambda: (300,))
    assert known.busy([NVIDIA], fresh=True, dead={NVIDIA: [DEAD]}, declared={NVIDIA: 8 * GIB}) == {}
    (holder,) = known.busy([NVIDIA], fresh=True, dead={NVIDIA: [DEAD]}, declared={NVIDIA: 4 * GIB})[NVIDIA]
    assert (holder.kind, holder.memory_bytes) == ("leftover", 5 * GIB)


@pytest.mark.parametrize(("used", "rest"), [(30 * MIB, None), (5 * GIB, 5 * GIB)])
def test_an_amd_gpu_by_its_files(used: int, rest: int | None) -> None:
    host = told(workstation(used))
    machine = discover(host)
    found = Occupancy(host, lambda: machine, lambda: ()).busy([AMD], fresh=True, dead={AMD: [DEAD]}).get(AMD, ())
    assert [(holder.kind, holder.pid, holder.memory_bytes) for holder in found] == (
        [] if rest is None else [("leftover", 600, rest)]
    )


def test_an_orphan_on_an_amd_gpu_is_found_by_its_descriptors() -> None:
    machine = with_process(workstation(5 * GIB), 610, "server", group=590, session=200, started=5100)
    host = told(with_clients(machine, 610, AMD, 5 * GIB))
    found = discover(host)
    (holder,) = Occupancy(host, lambda: found, lambda: ()).busy([AMD], fresh=True, dead={AMD: [DEAD]})[AMD]
    assert (holder.kind, holder.pid, holder.program, holder.memory_bytes) == ("leftover", 610, "server", 5 * GIB)


def test_who_keeps_the_file_of_the_locks_open() -> None:
    machine = with_process(with_process(workstation(), 610, "server"), 611, "other")
    machine = machine.with_link("/proc/610/fd/7", "/run/gpucoexist/table (deleted)")
    machine = machine.with_link("/proc/611/fd/7", "/run/gpucoexist/table2")
    assert keepers(machine.host(), ["/run/gpucoexist/table"]) == {610: "server"}

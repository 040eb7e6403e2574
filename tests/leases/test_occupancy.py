"""Who makes a device busy and who does not, by what NVML, KFD and fdinfo tell of real desktops and servers."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.host.base import HelperReply
from pytest_gpucoexist.leases.occupancy import Occupancy
from pytest_gpucoexist.probes import discover
from pytest_gpucoexist.testing.demo import demo_host
from tests.leases.machines import (
    AMD,
    GIB,
    MIB,
    NVIDIA,
    User,
    board,
    told,
    with_clients,
    with_process,
    workstation,
)
from tests.vendor.hosts import answering

if TYPE_CHECKING:
    from collections.abc import Collection

    from pytest_gpucoexist.host import Host
    from pytest_gpucoexist.leases.lease import Holder
    from pytest_gpucoexist.testing.builder import MachineBuilder

OTHER_NAMESPACE = "pid:[4026532843]"
KFD = "/sys/devices/virtual/kfd/kfd/proc"


def occupancy(host: Host, ours: Collection[int] = (), **more: Any) -> Occupancy:
    machine = discover(host)
    return Occupancy(host, lambda: machine, lambda: ours, **more)


def busy(host: Host, key: str, *, ours: Collection[int] = (), **more: Any) -> tuple[Holder, ...]:
    return occupancy(host, ours).busy([key], **more).get(key, ())


def on_kfd(machine: MachineBuilder, pid: int, size: int) -> MachineBuilder:
    (gpu,) = (gpu for gpu in discover(machine.host()).gpus if gpu.key == AMD)
    assert gpu.kfd is not None
    return machine.with_file(f"{KFD}/{pid}/vram_{gpu.kfd.gpu_id}", f"{size}\n")


def test_a_training_run_makes_the_device_busy() -> None:
    machine = with_process(workstation(), 4242, "python3").with_file("/etc/passwd", "root:x:0:0:root:/root:/bin/bash\n")
    (holder,) = busy(told(machine, board(NVIDIA, User(4242, 6 * GIB))), NVIDIA)
    assert (holder.kind, holder.pid, holder.program) == ("elsewhere", 4242, "python3")
    assert (holder.uid, holder.user, holder.memory_bytes) == (0, "root", 6 * GIB)


@pytest.mark.parametrize("size", [None, 0, 120 * MIB])
def test_whoever_computes_does_even_with_little_memory(size: int | None) -> None:
    machine = with_process(workstation(), 4242, "ollama")
    (holder,) = busy(told(machine, board(NVIDIA, User(4242, size))), NVIDIA)
    assert (holder.program, holder.memory_bytes) == ("ollama", size)


# What nvidia-smi shows on three desktops: PID, name as `comm` cuts it, type, MiB.
DESKTOPS = [
    [(1893, "Xorg", "G", 412), (2101, "gnome-shell", "G", 118), (5521, "firefox", "G", 294), (5980, "code", "G", 91)],
    [(2044, "kwin_wayland", "G", 203), (2133, "Xwayland", "G", 12), (2190, "plasmashell", "G", 77)],
    [(1720, "gnome-shell", "C+G", 353), (3310, "chrome", "G", 488), (3999, "nvtop", "G", 4)],
]


def desktop(rows: list[tuple[int, str, str, int]], *more: User) -> Host:
    machine, users = workstation(), list(more)
    for pid, name, kinds, mib in rows:
        machine = with_process(machine, pid, name)
        kind_of = {"C": "compute", "G": "graphics"}
        users += [User(pid, mib * MIB, kind_of[kind]) for kind in kinds.split("+")]
    machine = with_process(machine, 4242, "blender")
    # A process of both kinds is listed twice with the same memory.
    used = sum({user.pid: user.memory or 0 for user in users}.values())
    return told(machine, board(NVIDIA, *users, used=used, display=True))


@pytest.mark.parametrize("rows", DESKTOPS, ids=["x11", "kde", "gnome"])
def test_a_desktop_is_not_busy(rows: list[tuple[int, str, str, int]]) -> None:
    assert busy(desktop(rows), NVIDIA) == ()


@pytest.mark.parametrize("kind", ["graphics", "compute"])
def test_a_program_beside_the_desktop_is(kind: str) -> None:
    (holder,) = busy(desktop(DESKTOPS[0], User(4242, 3 * GIB, kind)), NVIDIA)
    assert holder.program == "blender"


def test_a_desktop_that_has_grown_to_a_quarter_of_the_memory_is() -> None:
    (holder,) = busy(desktop([(1893, "Xorg", "G", 7000)]), NVIDIA)
    assert holder.program == "Xorg"


def test_our_own_workers_their_children_and_what_waits_for_us_are_not_foreign() -> None:
    machine = with_process(with_process(workstation(), 700, "pytest"), 701, "python3", parent=700)
    machine = with_process(with_process(machine, 301, "python3", parent=300), 999, "stranger", parent=200)
    users = [User(pid) for pid in (200, 300, 301, 700, 701)]
    assert busy(told(machine, board(NVIDIA, *users)), NVIDIA, ours=[700]) == ()
    # A child of the same shell is nobody of ours, nor is a worker whose record is gone.
    found = busy(told(machine, board(NVIDIA, *users, User(999))), NVIDIA)
    assert [holder.pid for holder in found] == [700, 701, 999]


def test_pytest_as_the_first_process_of_a_container_knows_its_children() -> None:
    machine = workstation().with_link("/proc/self", "1").with_link("/proc/1/ns/pid", OTHER_NAMESPACE)
    machine = with_process(machine, 12, "python3").with_link("/proc/12/fd/9", "/dev/nvidia0")
    assert busy(told(machine, board(NVIDIA, User(12, 4 * GIB))), NVIDIA) == ()


def test_a_worker_of_xdist_knows_the_others_before_they_have_a_record() -> None:
    machine = with_process(workstation(), 310, "python3", parent=200)
    host = told(machine, board(NVIDIA, User(310)))
    assert [holder.pid for holder in busy(host, NVIDIA)] == [310]
    worker = told(machine.with_environ({"PYTEST_XDIST_WORKER": "gw1"}), board(NVIDIA, User(310)))
    assert busy(worker, NVIDIA) == ()
    # What the test of a worker starts has the variable, too, and is none: its sisters are anybody's.
    started = machine.with_environ({"PYTEST_XDIST_WORKER": "gw1"}).with_file(
        "/proc/300/environ", "A=1\0PYTEST_XDIST_WORKER=gw1\0"
    )
    assert [holder.pid for holder in busy(told(started, board(NVIDIA, User(310))), NVIDIA)] == [310]


def test_a_process_that_ended_meanwhile_is_nobody() -> None:
    assert busy(told(workstation(), board(NVIDIA, User(4242))), NVIDIA) == ()


def test_a_process_that_proc_hides_is_somebody() -> None:
    hidden = workstation().without("/proc/1")
    (holder,) = busy(told(hidden, board(NVIDIA, User(4242))), NVIDIA)
    assert (holder.pid, holder.user, holder.program, holder.memory_bytes) == (4242, None, None, GIB)


class TestInAContainer:
    """NVML and KFD count PIDs as the host does; the number may mean another process here."""

    def test_a_number_that_means_another_process_here_names_nobody(self) -> None:
        machine = with_process(workstation(namespace=OTHER_NAMESPACE), 4242, "sshd")
        (holder,) = busy(told(machine, board(NVIDIA, User(4242, 6 * GIB))), NVIDIA)
        assert (holder.kind, holder.pid, holder.program, holder.memory_bytes) == ("elsewhere", None, None, 6 * GIB)

    def test_a_process_that_has_the_nodes_open_is_itself(self) -> None:
        machine = with_process(workstation(namespace=OTHER_NAMESPACE), 4242, "vllm")
        machine = machine.with_link("/proc/4242/fd/20", "/dev/nvidia0")
        (holder,) = busy(told(machine, board(NVIDIA, User(4242, 6 * GIB))), NVIDIA)
        assert (holder.pid, holder.program) == (4242, "vllm")

    @pytest.mark.parametrize(
        ("used", "declared", "workers", "rest"),
        [
            (GIB, 0, 0, None),  # below 5 % of 24 GiB
            (2 * GIB, 0, 0, 2 * GIB),
            (9 * GIB, 8 * GIB, 0, None),  # leases declare most of it
            (12 * GIB, 8 * GIB, 0, 4 * GIB),
            (3 * GIB, 0, 4, None),  # four workers may have contexts
            (24 * GIB, 24 * GIB, 1, None),  # held whole
        ],
    )
    def test_totals_decide(self, used: int, declared: int, workers: int, rest: int | None) -> None:
        machine = workstation(namespace=OTHER_NAMESPACE)
        # A driver that shows no process of other namespaces, and one that gives the host's PIDs.
        for users in ([], [User(91234, used)]):
            host = told(machine, board(NVIDIA, *users, used=used, reserved=0))
            found = busy(host, NVIDIA, ours=range(700, 700 + workers), declared={NVIDIA: declared})
            assert [holder.memory_bytes for holder in found] == ([] if rest is None else [rest])

    def test_without_totals_the_number_of_processes_decides(self) -> None:
        machine = workstation(namespace=OTHER_NAMESPACE)
        told_nothing = board(NVIDIA, User(91234, None), User(91235, None))
        told_nothing["memory"] = {"status": "unsupported", "detail": "Not Supported"}
        assert len(busy(told(machine, told_nothing), NVIDIA, ours=[300])) == 1
        assert busy(told(machine, told_nothing), NVIDIA, ours=[300, 301]) == ()


class TestAmd:
    """Files alone: memory in use, KFD's list, fdinfo."""

    def test_nobody(self) -> None:
        assert busy(told(workstation(30 * MIB)), AMD) == ()

    def test_a_rocm_process_of_any_user(self) -> None:
        machine = on_kfd(with_process(workstation(5 * GIB), 4242, "python3"), 4242, 4 * GIB)
        # Another user's descriptors cannot be read; KFD's list can.
        machine = machine.with_error("/proc/4242/fdinfo", errno.EACCES)
        (holder,) = busy(told(machine), AMD)
        assert (holder.pid, holder.program, holder.memory_bytes) == (4242, "python3", 4 * GIB)

    def test_a_desktop_and_a_game(self) -> None:
        machine = with_process(with_process(workstation(700 * MIB), 900, "gnome-shell"), 901, "firefox")
        machine = with_clients(with_clients(machine, 900, AMD, 200 * MIB, 90 * MIB), 901, AMD, 310 * MIB)
        assert busy(told(machine), AMD) == ()
        machine = with_process(with_clients(machine, 902, AMD, 3 * GIB), 902, "game.x86_64")
        (holder,) = busy(told(machine), AMD)
        assert (holder.program, holder.memory_bytes) == ("game.x86_64", 3 * GIB)

    def test_memory_of_processes_that_cannot_be_looked_into(self) -> None:
        machine = with_process(workstation(6 * GIB), 4242, "llama-server")
        machine = machine.with_error("/proc/4242/fdinfo", errno.EACCES)
        (holder,) = busy(told(machine), AMD)
        assert (holder.pid, holder.memory_bytes) == (None, 6 * GIB)
        small = with_process(workstation(900 * MIB), 4242, "gnome-shell")
        assert busy(told(small.with_error("/proc/4242/fdinfo", errno.EACCES)), AMD) == ()

    def test_memory_that_kfd_explains_needs_no_walk(self) -> None:
        machine = on_kfd(with_process(workstation(4 * GIB), 4242, "python3"), 4242, 4 * GIB)
        machine = machine.with_error("/proc/1/fdinfo", errno.EIO)
        host = told(machine)
        read: list[str] = []
        listed = host.list_dir
        host.list_dir = lambda path: read.append(path) or listed(path)  # type: ignore[method-assign,func-returns-value]
        assert len(busy(host, AMD)) == 1
        assert not [path for path in read if path.endswith("/fdinfo")]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Library:
    """Counts how often it is asked."""

    def __init__(self, reply: HelperReply) -> None:
        self.reply = reply
        self.asked = 0

    def __call__(self) -> HelperReply:
        self.asked += 1
        return self.reply


OK = HelperReply(status="ok", data={"devices": [board(NVIDIA, User(4242))]})


def test_an_answer_counts_for_a_while() -> None:
    clock, library = Clock(), Library(OK)
    known = occupancy(told(with_process(workstation(), 4242, "vllm")), clock=clock, ask=library, ttl_s=10)
    for _ in range(3):
        assert NVIDIA in known.busy([NVIDIA])
    assert library.asked == 1
    clock.now += 2  # what is busy is looked at more often: somebody waits
    assert NVIDIA in known.busy([NVIDIA])
    assert library.asked == 2
    library.reply = HelperReply(status="ok", data={"devices": [board(NVIDIA)]})
    assert NVIDIA in known.busy([NVIDIA])
    assert known.busy([NVIDIA], fresh=True) == {}
    assert library.asked == 3
    library.reply = OK
    clock.now += 9.9
    assert known.knows([NVIDIA])
    assert known.busy([NVIDIA]) == {}
    clock.now += 0.1
    assert not known.knows([NVIDIA])
    assert NVIDIA in known.busy([NVIDIA])
    assert library.asked == 4


def test_files_are_enough_where_no_nvidia_card_is_asked_about() -> None:
    library = Library(OK)
    assert occupancy(told(workstation()), ask=library).busy([AMD]) == {}
    assert library.asked == 0


def test_a_library_that_hangs_is_not_asked_again_for_a_while() -> None:
    clock = Clock()
    library = Library(HelperReply(status="broken", detail="no answer within 5 s"))
    known = occupancy(told(workstation()), clock=clock, ask=library)
    for _ in range(5):
        assert known.busy([NVIDIA, AMD], fresh=True) == {}
    assert library.asked == 1
    assert "no answer within 5 s" in known.problems()[NVIDIA]
    assert AMD not in known.problems()
    clock.now += 600
    known.busy([NVIDIA])
    assert library.asked == 2


@pytest.mark.parametrize(
    "data",
    [
        None,
        {"devices": [{"index": 0, "fault": {"status": "broken", "detail": "GPU is lost"}}]},
        {"devices": [{**board(NVIDIA), "processes": {"value": [{"pid": "many", "kind": 1}]}}]},
        {"devices": [{**board(NVIDIA), "memory": {"value": {"total": "?", "used": None}}}]},
        {"devices": [{"parts": [3], "pci": {"value": 7}}, {}]},
    ],
)
def test_an_answer_that_tells_nothing_is_a_problem_not_a_user(data: object) -> None:
    host = answering(workstation().host(), nvml_users=HelperReply(status="ok", data=data))
    known = occupancy(host)
    assert known.busy([NVIDIA]) == {}
    assert "NVML" in known.problems()[NVIDIA]


def test_a_driver_that_is_not_loaded_is_not_asked() -> None:
    machine = workstation()
    asked: list[str] = []
    host = told(machine)
    host.exists = lambda path: asked.append(path) or False  # type: ignore[method-assign,func-returns-value]
    known = occupancy(host, ask=Library(OK))
    assert known.busy([NVIDIA]) == {}
    assert known.problems() == {NVIDIA: "driver nvidia does not tell its processes"}


def test_a_mig_instance_has_users_of_its_own_and_the_board_those_of_all() -> None:
    machine = with_process(with_process(workstation(), 4242, "vllm"), 4343, "triton")
    part = {
        "uuid": {"value": "MIG-1"},
        "gi": {"value": 2},
        "ci": {"value": 0},
        "memory": {"value": {"total": 10 * GIB, "used": GIB, "free": 9 * GIB}},
        "processes": {"value": [{"pid": 4343, "memory": GIB, "kind": "compute"}]},
    }
    host = told(machine, {**board(NVIDIA, User(4242)), "parts": [part]})
    found = discover(host)
    whole = next(gpu for gpu in found.gpus if gpu.key == NVIDIA)
    instance = replace(whole, partition="mig2.0", uuid="MIG-1")
    found = replace(found, gpus=(*found.gpus, instance))
    busy = Occupancy(host, lambda: found, lambda: ()).busy([NVIDIA, instance.key])
    assert [holder.pid for holder in busy[NVIDIA]] == [4242, 4343]
    assert [holder.pid for holder in busy[instance.key]] == [4343]


@pytest.mark.parametrize(("driver", "count"), [("nvidia", 1), ("dxgkrnl", 0), ("nvgpu", 0)])
def test_memory_that_a_whole_system_shares_is_nobodys(driver: str, count: int) -> None:
    boards = {**board(NVIDIA, used=5 * GIB), "processes": {"status": "unsupported", "detail": "Not Supported"}}
    host = told(workstation(), boards)
    found = discover(host)
    found = replace(found, gpus=tuple(replace(gpu, driver=driver) for gpu in found.gpus if gpu.key == NVIDIA))
    assert len(Occupancy(host, lambda: found, lambda: ()).busy([NVIDIA])) == count


def test_a_replayed_machine_has_no_users() -> None:
    host = demo_host()
    machine = discover(host)
    assert Occupancy(host, lambda: machine, lambda: ()).busy([gpu.key for gpu in machine.gpus], fresh=True) == {}
    assert Occupancy(None, lambda: machine, lambda: ()).busy([gpu.key for gpu in machine.gpus]) == {}


def test_devices_that_are_not_there_are_not_busy() -> None:
    assert occupancy(told(workstation())).busy(["0000:ff:00.0"]) == {}

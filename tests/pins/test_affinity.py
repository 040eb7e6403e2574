"""Binding to a NUMA node, on this machine's real CPUs, nodes and system calls."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
import threading
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from pytest_gpucoexist.model.machine import Gpu, Machine, NumaNode
from pytest_gpucoexist.model.readings import Fact
from pytest_gpucoexist.session.pins import mempolicy
from pytest_gpucoexist.session.pins.affinity import Binding, bound_to_node, format_cpulist, parse_cpulist
from pytest_gpucoexist.session.pins.mempolicy import BIND, DEFAULT, MemoryPolicy

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: CPU affinity and memory policy")

GPU = Gpu(id="nvidia0", pci_address="0000:41:00.0", vendor="nvidia", numa_node=0)
CPUS = frozenset(os.sched_getaffinity(0))


def machine(cpulist: str | None = None, *, node: int = 0, simulated: bool = False) -> Machine:
    cpus = format_cpulist(CPUS) if cpulist is None else cpulist
    return Machine(name="here", simulated=simulated, numa_nodes=(NumaNode(id=node, cpulist=cpus),))


@pytest.fixture
def policy() -> MemoryPolicy:
    """The policy of this thread; skips where the kernel or a container's seccomp profile forbids the calls."""
    try:
        before = mempolicy.get_policy()
        mempolicy.set_policy(before)
    except OSError as error:
        pytest.skip(f"needs get_mempolicy and set_mempolicy: {error}")
    return before


def state() -> tuple[set[int], MemoryPolicy]:
    return os.sched_getaffinity(0), mempolicy.get_policy()


def test_bound_to_node_and_back(policy: MemoryPolicy) -> None:
    one = min(CPUS)
    before = state()
    with bound_to_node(GPU, machine(str(one))) as binding:
        assert state() == ({one}, MemoryPolicy(mode=BIND, nodes=frozenset({0})))
        assert binding == Binding(node=0, cpus=frozenset({one}), memory=True)
        assert binding.describe() == f"node 0: bound CPUs {one} and memory"
    assert state() == before


def test_memory_of_the_test_comes_from_the_node(policy: MemoryPolicy) -> None:
    size = 1 << 20
    with bound_to_node(GPU, machine()):
        buffer = ctypes.create_string_buffer(size)
        ctypes.memset(buffer, 1, size)
        node = ctypes.c_int(-1)
        # MPOL_F_NODE | MPOL_F_ADDR: the node of the page at an address.
        flags = ctypes.c_ulong(3)
        address = ctypes.c_void_p(ctypes.addressof(buffer) + size // 2)
        mempolicy._call(0, ctypes.byref(node), None, ctypes.c_ulong(0), address, flags)
    assert node.value == 0


def test_restored_after_a_failure_and_after_changes(policy: MemoryPolicy) -> None:
    before = state()

    def failing_test() -> None:
        with bound_to_node(GPU, machine(str(min(CPUS)))):
            os.sched_setaffinity(0, {max(CPUS)})
            mempolicy.set_policy(MemoryPolicy(mode=DEFAULT))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing_test()
    assert state() == before


def test_policy_of_the_caller_comes_back(policy: MemoryPolicy) -> None:
    caller = MemoryPolicy(mode=mempolicy.INTERLEAVE, nodes=frozenset({0}))
    mempolicy.set_policy(caller)
    try:
        with bound_to_node(GPU, machine()):
            assert mempolicy.get_policy().mode == BIND
        assert mempolicy.get_policy() == caller
    finally:
        mempolicy.set_policy(policy)


def test_within_what_the_caller_had(policy: MemoryPolicy) -> None:
    if len(CPUS) < 2:
        pytest.skip("needs two CPUs: this process may use one")
    low, high = min(CPUS), max(CPUS)
    os.sched_setaffinity(0, {low})
    try:
        with bound_to_node(GPU, machine()) as binding:
            assert binding.cpus == frozenset({low})
            assert os.sched_getaffinity(0) == {low}
        with bound_to_node(GPU, machine(str(high))) as binding:
            assert os.sched_getaffinity(0) == {low}
        assert binding.cpus is None
        assert binding.memory
        assert binding.reasons == (f"none of the node's CPUs {high} is among the caller's {low}",)
        assert os.sched_getaffinity(0) == {low}
    finally:
        os.sched_setaffinity(0, CPUS)


@pytest.mark.filterwarnings(
    "ignore:This process:DeprecationWarning"
)  # xdist's workers have threads; the child only looks
def test_forked_child_inherits_and_the_parent_comes_back(policy: MemoryPolicy) -> None:
    before = state()
    one = min(CPUS)
    with bound_to_node(GPU, machine(str(one))):
        child = os.fork()
        if child == 0:
            inherited = os.sched_getaffinity(0) == {one} and mempolicy.get_policy().mode == BIND
            os._exit(0 if inherited else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert state() == before


def test_older_threads_stay_where_they_are(policy: MemoryPolicy) -> None:
    if len(CPUS) < 2:
        pytest.skip("needs two CPUs: this process may use one")
    look, done = threading.Event(), threading.Event()
    seen: list[set[int]] = []

    def older() -> None:
        look.wait(30)
        seen.append(os.sched_getaffinity(0))
        done.set()

    thread = threading.Thread(target=older)
    thread.start()
    with bound_to_node(GPU, machine(str(min(CPUS)))):
        look.set()
        done.wait(30)
        younger = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))
        younger.start()
        younger.join()
    thread.join()
    assert seen == [CPUS, {min(CPUS)}]


@pytest.mark.parametrize(
    ("gpu", "on", "node", "reason"),
    [
        (
            replace(GPU, numa_node=-1, facts={"numa_node": Fact(source="sysfs", detail="the firmware says -1")}),
            machine(),
            None,
            "the machine does not say the NUMA node of 0000:41:00.0 (the firmware says -1)",
        ),
        (replace(GPU, numa_node=None), machine(), None, "the machine does not say the NUMA node of 0000:41:00.0"),
        (replace(GPU, numa_node=1), machine(), 1, "NUMA node 1 is not on this host"),
        (GPU, machine(simulated=True), 0, "here is simulated: its nodes are not those of this host"),
    ],
)
def test_nothing_is_bound_and_the_reason_kept(gpu: Gpu, on: Machine, node: int | None, reason: str) -> None:
    before = os.sched_getaffinity(0)
    with bound_to_node(gpu, on) as binding:
        assert os.sched_getaffinity(0) == before
    assert binding == Binding(node=node, reasons=(reason,))
    assert binding.describe() == f"nothing bound; {reason}"


@pytest.mark.parametrize(
    ("cpulist", "reason"),
    [
        ("", "the node has no CPUs"),
        ("0-x", "the CPUs of the node are not known: '0-x'"),
    ],
)
def test_memory_only_and_unreadable_nodes(policy: MemoryPolicy, cpulist: str, reason: str) -> None:
    with bound_to_node(GPU, machine(cpulist)) as binding:
        assert os.sched_getaffinity(0) == CPUS
    assert (binding.cpus, binding.memory, binding.reasons) == (None, True, (reason,))
    assert binding.describe() == f"node 0: bound memory; {reason}"


def test_cpus_that_are_not_known(policy: MemoryPolicy) -> None:
    unknown = Machine(name="here", numa_nodes=(NumaNode(id=0, cpulist=None),))
    with bound_to_node(GPU, unknown) as binding:
        pass
    assert binding.reasons == ("the CPUs of the node are not known",)


def test_absent_node_is_einval(policy: MemoryPolicy) -> None:
    absent = max(mempolicy.allowed_nodes()) + 1
    with pytest.raises(OSError, match=os.strerror(errno.EINVAL)) as caught:
        mempolicy.set_policy(MemoryPolicy(mode=BIND, nodes=frozenset({absent})))
    assert caught.value.errno == errno.EINVAL


def test_node_that_the_cpuset_does_not_allow(policy: MemoryPolicy) -> None:
    absent = max(mempolicy.allowed_nodes()) + 1
    with bound_to_node(replace(GPU, numa_node=absent), machine(node=absent)) as binding:
        assert mempolicy.get_policy() == policy
    allowed = format_cpulist(mempolicy.allowed_nodes())
    assert binding.reasons == (f"memory not bound: the cpuset allows nodes {allowed}",)


def test_memory_that_the_caller_bound_elsewhere(policy: MemoryPolicy) -> None:
    mempolicy.set_policy(MemoryPolicy(mode=BIND, nodes=frozenset({0})))
    try:
        with bound_to_node(replace(GPU, numa_node=1), machine(node=1)) as binding:
            assert mempolicy.get_policy() == MemoryPolicy(mode=BIND, nodes=frozenset({0}))
        assert binding.reasons == ("memory not bound: the caller bound it to nodes 0",)
    finally:
        mempolicy.set_policy(policy)


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EPERM])
def test_forbidden_calls_are_tolerated_and_told(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(mempolicy, "_call", refuse)
    with bound_to_node(GPU, machine()) as binding:
        assert os.sched_getaffinity(0) == CPUS
    assert binding.cpus == CPUS
    assert not binding.memory
    assert binding.reasons == (f"memory not bound: {os.strerror(code)}",)


def test_affinity_that_is_refused(policy: MemoryPolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    with bound_to_node(GPU, machine()) as binding:
        pass
    assert binding.reasons == ("CPU affinity not bound: Operation not permitted",)
    assert binding.memory


def test_kernel_that_narrows_is_read_back(policy: MemoryPolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    if len(CPUS) < 2:
        pytest.skip("needs two CPUs: this process may use one")
    real_set, real_policy = os.sched_setaffinity, mempolicy.set_policy
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cpus: real_set(pid, {min(cpus)}))
    monkeypatch.setattr(mempolicy, "set_policy", lambda _: real_policy(MemoryPolicy(mode=DEFAULT)))
    with bound_to_node(GPU, machine()) as binding:
        pass
    real_set(0, CPUS)
    assert binding.cpus == frozenset({min(CPUS)})
    assert not binding.memory
    assert binding.reasons == (
        f"asked for CPUs {format_cpulist(CPUS)}, the kernel gave {min(CPUS)}",
        "asked for memory of node 0, the kernel gave default none",
    )


def test_system_without_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_setaffinity")
    monkeypatch.setattr(sys, "platform", "darwin")
    with bound_to_node(GPU, machine()) as binding:
        pass
    assert binding.cpus is None
    assert not binding.memory
    assert binding.reasons[0] == "this system has no CPU affinity"
    assert binding.reasons[1].startswith("memory not bound: no memory policy on darwin")


def test_policy_names() -> None:
    assert MemoryPolicy(mode=BIND | 1 << 15).name == "bind"
    assert MemoryPolicy(mode=77).name == "mode 77"


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0-3,8,10-11", {0, 1, 2, 3, 8, 10, 11}),
        ("0-14:2/4", {0, 1, 4, 5, 8, 9, 12, 13}),
        ("5", {5}),
        ("", set()),
        (" 1,3\n", {1, 3}),
    ],
)
def test_kernel_lists(text: str, cpus: set[int]) -> None:
    assert parse_cpulist(text) == cpus


@given(st.sets(st.integers(0, 300)))
def test_lists_survive_writing_and_reading(cpus: set[int]) -> None:
    text = format_cpulist(cpus)
    assert (parse_cpulist(text) if cpus else text) == (cpus or "none")

"""Bind a test to the NUMA node of its device: the CPUs it runs on and where its memory comes from.

Both act on the calling thread and on threads and children that it starts later; threads that are older stay where they
are. Both are bound within what the caller had, and both are put back as they were, whatever the test did to them.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.model.machine import Gpu, Machine

__all__ = ["Binding", "bound_to_node", "parse_cpulist"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """What was bound. `reasons` say what was not, or only in part, and why."""

    node: int | None
    cpus: frozenset[int] | None = None
    memory: bool = False
    reasons: tuple[str, ...] = ()

    def describe(self) -> str:
        """One line for a report."""
        parts = []
        if self.cpus is not None:
            parts.append(f"CPUs {format_cpulist(self.cpus)}")
        if self.memory:
            parts.append("memory")
        bound = f"node {self.node}: bound {' and '.join(parts)}" if parts else "nothing bound"
        return "; ".join((bound, *self.reasons))


@contextlib.contextmanager
def bound_to_node(gpu: Gpu, machine: Machine) -> Iterator[Binding]:
    """Bind the calling thread to the node of `gpu` for the duration of the context.

    Where the node is unknown or absent here, nothing is bound and the binding says why.
    """
    node = gpu.numa_node if gpu.numa_node is not None and gpu.numa_node >= 0 else None
    if machine.simulated:
        yield Binding(node=node, reasons=(f"{machine.name} is simulated: its nodes are not those of this host",))
        return
    if node is None:
        fact = gpu.facts.get("numa_node")
        detail = f" ({fact.detail})" if fact is not None and fact.detail else ""
        yield Binding(node=None, reasons=(f"the machine does not say the NUMA node of {gpu.key}{detail}",))
        return
    described = next((each for each in machine.numa_nodes if each.id == node), None)
    if described is None:
        yield Binding(node=node, reasons=(f"NUMA node {node} is not on this host",))
        return
    reasons: list[str] = []
    with contextlib.ExitStack() as restore:
        cpus = _bind_cpus(described.cpulist, restore, reasons)
        memory = _bind_memory(node, restore, reasons)
        yield Binding(node=node, cpus=cpus, memory=memory, reasons=tuple(reasons))


def _bind_cpus(cpulist: str | None, restore: contextlib.ExitStack, reasons: list[str]) -> frozenset[int] | None:
    if not hasattr(os, "sched_setaffinity"):
        reasons.append("this system has no CPU affinity")
        return None
    if not cpulist:
        reasons.append("the node has no CPUs" if cpulist == "" else "the CPUs of the node are not known")
        return None
    before = os.sched_getaffinity(0)
    try:
        wanted = parse_cpulist(cpulist) & before
    except ValueError:
        reasons.append(f"the CPUs of the node are not known: {cpulist!r}")
        return None
    if not wanted:
        reasons.append(f"none of the node's CPUs {cpulist} is among the caller's {format_cpulist(before)}")
        return None
    try:
        os.sched_setaffinity(0, wanted)
    except OSError as error:
        reasons.append(f"CPU affinity not bound: {error.strerror}")
        return None
    restore.callback(os.sched_setaffinity, 0, before)
    got = os.sched_getaffinity(0)
    if got != wanted:
        # A cpuset that shrank since, or CPUs that went offline: the kernel narrows without an error.
        reasons.append(f"asked for CPUs {format_cpulist(wanted)}, the kernel gave {format_cpulist(got)}")
    return frozenset(got)


def _bind_memory(node: int, restore: contextlib.ExitStack, reasons: list[str]) -> bool:
    from pytest_gpucoexist.session.pins.mempolicy import BIND, MemoryPolicy, allowed_nodes, get_policy, set_policy

    wanted = MemoryPolicy(mode=BIND, nodes=frozenset({node}))
    try:
        before = get_policy()
        if before.name == "bind" and node not in before.nodes:
            reasons.append(f"memory not bound: the caller bound it to nodes {format_cpulist(before.nodes)}")
            return False
        allowed = allowed_nodes()
        if node not in allowed:
            reasons.append(f"memory not bound: the cpuset allows nodes {format_cpulist(allowed)}")
            return False
        set_policy(wanted)
        restore.callback(set_policy, before)
        got = get_policy()
    except OSError as error:
        # ENOSYS on other systems, EPERM where a container's seccomp profile forbids the calls.
        reasons.append(f"memory not bound: {error.strerror}")
        return False
    if got != wanted:
        reasons.append(f"asked for memory of node {node}, the kernel gave {got.name} {format_cpulist(got.nodes)}")
    return got.name == "bind"


def parse_cpulist(text: str) -> set[int]:
    """Read a list as the kernel writes it: `0-3,8,10-11`; `0-14:2/4` is the group form. Raises ValueError."""
    cpus: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        span, _, stride = part.partition(":")
        first, _, last = span.partition("-")
        block = range(int(first), int(last or first) + 1)
        if stride:
            used, _, group = stride.partition("/")
            cpus.update(cpu for cpu in block if (cpu - block.start) % int(group) < int(used))
        else:
            cpus.update(block)
    return cpus


def format_cpulist(cpus: set[int] | frozenset[int]) -> str:
    """Write a list as the kernel does; `none` when it is empty."""
    spans: list[list[int]] = []
    for cpu in sorted(cpus):
        if spans and cpu == spans[-1][1] + 1:
            spans[-1][1] = cpu
        else:
            spans.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans) or "none"

"""Demands take their place among the groups of a test."""

from __future__ import annotations

from dataclasses import replace

from pytest_gpucoexist.model.machine import Gpu, Machine
from pytest_gpucoexist.model.matching import Group, choose
from pytest_gpucoexist.model.requirement import Requirement
from pytest_gpucoexist.session.narrow import Demand, narrow, prefer_vendors

N0, N1, A0 = "0000:01:00.0", "0000:02:00.0", "0000:03:00.0"
MACHINE = Machine(
    name="three",
    gpus=(
        Gpu(id="nvidia0", pci_address=N0, vendor="nvidia"),
        Gpu(id="nvidia1", pci_address=N1, vendor="nvidia"),
        Gpu(id="amd0", pci_address=A0, vendor="amd"),
    ),
)


def group(*candidates: str, count: int = 1) -> Group:
    return Group(requirement=Requirement(count=count), candidates=candidates)


def demand(role: str, *keys: str) -> Demand:
    return Demand(role=role, keys=frozenset(keys))


def test_without_demands_nothing_changes() -> None:
    groups = (group(N0, N1, count=2), group(A0))
    narrowed = narrow(groups, [])
    assert narrowed.groups == groups
    assert narrowed.roles == {}


def test_single_device_is_narrowed_in_place() -> None:
    narrowed = narrow([group(A0), group(N0, N1)], [demand("module_gpu", N1)])
    assert narrowed.groups == (group(A0), group(N1))
    assert narrowed.roles == {"module_gpu": 1}


def test_several_devices_are_split() -> None:
    narrowed = narrow([group(N0, N1, count=2)], [demand("module_gpu", N1)])
    assert narrowed.roles == {"module_gpu": 0}
    assert choose(narrowed.groups, {N0, N1}, MACHINE) == ((N1,), (N0,))


def test_scopes_that_agree_share_a_device() -> None:
    narrowed = narrow([group(N0, N1)], [demand("module_gpu", N1), demand("class_gpu", N0, N1)])
    assert narrowed.groups == (group(N1),)
    assert narrowed.roles == {"module_gpu": 0, "class_gpu": 0}


def test_scopes_that_differ_hold_both() -> None:
    narrowed = narrow([group(N0, N1)], [demand("module_gpu", N1), demand("class_gpu", N0)])
    assert [each.candidates for each in narrowed.groups] == [(N1,), (N0,)]
    assert narrowed.roles == {"module_gpu": 0, "class_gpu": 1}


def test_device_of_no_group_comes_on_top() -> None:
    narrowed = narrow([group(N0, N1, count=2)], [demand("session_gpu", A0)])
    assert choose(narrowed.groups, {N0, N1, A0}, MACHINE) == ((N0, N1), (A0,))
    assert narrowed.roles == {"session_gpu": 1}


def test_vendor_of_a_framework_is_preferred_where_there_are_enough() -> None:
    either, two, amd = group(A0, N0, N1), group(N0, A0, count=2), group(A0)
    assert prefer_vendors([either, two, amd], {"nvidia"}, MACHINE) == (replace(either, candidates=(N0, N1)), two, amd)

"""Nothing is wrong with cards that nobody broke: what each gate says on a running kernel."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import pytest

from tests.vm.guest.drivers import load
from tests.vm.guest.judging import SAID, judged
from tests.vm.guest.system import RADEON0, RADEON1, RTX2

if TYPE_CHECKING:
    from pytest_gpucoexist.model.verdicts import Judgement, Verdict

BROKEN_ELSEWHERE = {RADEON0, RADEON1, RTX2}
"""Other tests inject errors there, let them fall off the bus, unplug them: the kernel counts and remembers."""

DECIDED = (
    "drv.bound_driver",
    "drv.inventory",
    "drv.nv.disk_vs_loaded",
    "drv.nv.flavor",
    "drv.nv.siblings",
    "kmod.amd.required",
    "kmod.nv.required",
    "kmod.taint",
    "dev.kmsg",
    "dev.nv.ctl",
    "dev.nv.minor",
    "dev.nv.uvm",
    "klog.nv.init",
    "klog.nv.nvlink",
    "klog.pci.bar",
    "klog.race.handover",
    "klog.race.late_registration",
    "klog.source_complete",
    "pcie.aspm",
    "pcie.config_space",
    "pcie.mps",
    "mem.bar_assigned",
    "mem.swiotlb_force",
    "numa.affinity",
    "numa.gpu_nodes",
    "numa.node_known",
    "numa.pair_distance",
    "pwr.power_state",
    "pwr.runtime_status_first",
    "proc.dstate",
)


@functools.cache
def everything() -> Judgement:
    """Judge once, with the usual drivers."""
    load()
    return judged("*")


def about_whole_cards(verdict: Verdict) -> bool:
    """Whether it is about the machine, or about a card that no test breaks."""
    return not verdict.devices or not set(verdict.devices) <= BROKEN_ELSEWHERE


@pytest.mark.parametrize(
    "gate", [pytest.param(each, marks=pytest.mark.proves(each, "PASS", on="vm")) for each in DECIDED]
)
def test_the_gate_passes(gate: str) -> None:
    said = [verdict for verdict in everything().verdicts if verdict.id == gate]
    SAID.extend(said)
    assert "PASS" in {verdict.status for verdict in said}, said
    assert {verdict.status for verdict in said if about_whole_cards(verdict)} <= {"PASS", "SKIP"}, said


def test_no_false_alarm() -> None:
    wrong = [each for each in everything().verdicts if each.status in {"FAIL", "ERROR"} and about_whole_cards(each)]
    assert wrong == []

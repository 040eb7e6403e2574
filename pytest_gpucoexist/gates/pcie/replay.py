"""Packets that an AMD GPU had to send again."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.findings import Finding, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.pcie.errors import uptime_minutes
from pytest_gpucoexist.gates.pcie.folders import ASLEEP, asleep, folder
from pytest_gpucoexist.gates.pcie.path import walk
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence
from pytest_gpucoexist.probes.parse import number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import Gpu

__all__ = ["replay_amd"]

# A bit error rate of 1e-12, which the standard allows, in errors a minute for each lane and GT/s (DCGM's formula).
_PER_GTPS_AND_LANE = 0.06
_FASTEST = (32.0, 16)


@gate(
    "pcie.replay.amd",
    group="pcie-link",
    title="Few packets are sent again",
    reads="pcie_replay_count of each AMD GPU; /proc/uptime",
    criterion="no more replays a minute since boot than a bit error rate of 1e-12 gives: GT/s x lanes x 0.06",
    why="Each replay is a packet that arrived damaged. They are repaired, and they come before errors that are not.",
    action="Reseat the card, replace the riser, or set the slot to a lower PCIe generation in the firmware.",
    source="ROCm/amdsmi, rocm_smi_device.cc; amd/node-scraper, amdsmi analyzer; rate: NVIDIA/DCGM, DcgmHealthWatch.cpp",
    vendors=("amd",),
    level="standard",
)
def replay_amd(subject: Subject) -> Iterator[Finding]:
    for gpu in subject.functions("amd"):
        yield _judge(subject, gpu)
    if not subject.functions("amd"):
        yield skipped("no GPU here has a PCI function")


def _judge(subject: Subject, gpu: Gpu) -> Finding:
    if asleep(subject, gpu):
        return skipped(ASLEEP, on=[gpu])
    text = subject.read(f"{folder(subject, gpu)}/pcie_replay_count")
    if text.text is None:
        if text.status in {"absent", "unsupported"}:
            return skipped("its driver counts no replays", on=[gpu])
        return unknown(f"{text.path} cannot be read: {text.detail}", on=[gpu])
    count, minutes = number(text.text), uptime_minutes(subject)
    if not isinstance(count, int):
        return unknown(f"the count of replays makes no sense: {count.detail}", on=[gpu])
    hop = walk(subject, gpu).card
    speed = (hop.max_speed_gtps if hop is not None else None) or _FASTEST[0]
    lanes = (hop.max_width if hop is not None else None) or _FASTEST[1]
    limit = math.ceil(speed * lanes * _PER_GTPS_AND_LANE)
    evidence = Evidence(source=text.path, found=str(count), expected=f"at most {limit} a minute")
    if not count:
        return passed("no packet was sent again", evidence, on=[gpu])
    if minutes is None:
        return unknown(f"{count} replays, but since when cannot be read (/proc/uptime)", evidence, on=[gpu])
    if count / minutes > limit:
        return warned(f"{count / minutes:.0f} packets a minute are sent again ({count} since boot)", evidence, on=[gpu])
    return passed(f"{count} packets were sent again since boot", evidence, on=[gpu])

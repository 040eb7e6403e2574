"""What the links did while devices copied: an idle link slows itself down, so only load tells."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.findings import Finding, failed, passed, unknown, warned
from pytest_gpucoexist.gates.pcie.path import walk
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.gates.transfer.looking import device_of, gpus_of, nothing
from pytest_gpucoexist.model.verdicts import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import Gpu
    from pytest_gpucoexist.model.trials import LinkReading


@gate(
    "pcie.speed_under_load",
    group="pcie-link",
    title="The link trains up under load",
    reads="current_link_speed of every hop while the GPU copies, against what both ends of the slowest can do",
    criterion="the expected speed is reached; less than half is a failure",
    why="An idle GPU slows its link down, so only load shows a link that cannot do better.",
    action="Firmware setting of the slot's generation; riser; another slot.",
    source="Syllo/nvtop#6; open-mpi/hwloc#653; NVIDIA/open-gpu-kernel-modules#1010",
    vendors=("nvidia", "amd"),
    level="transfer",
    severity="fail",
)
def speed_under_load(subject: Subject) -> Iterator[Finding]:
    seen = _readings(subject)
    for gpu, readings in seen:
        path = walk(subject, gpu)
        hops = [] if path.card is None else [*path.above, path.card]
        expected = min((hop.max_speed_gtps for hop in hops if hop.max_speed_gtps), default=None)
        fastest = max(readings, key=lambda each: each.speed_gts)
        if expected is None:
            yield unknown("what its link can do is not known", on=[gpu])
            continue
        evidence = Evidence(
            source=fastest.hop, found=f"{fastest.speed_gts:g} GT/s while copying", expected=f"{expected:g} GT/s"
        )
        if fastest.speed_gts >= expected:
            yield passed("the link trains up under load", evidence, on=[gpu])
        else:
            words = f"its link runs at {fastest.speed_gts:g} GT/s under load, of {expected:g}"
            yield (failed if 2 * fastest.speed_gts < expected else warned)(words, evidence, on=[gpu])
    if not seen:
        yield nothing(subject.trials)


@gate(
    "pcie.flap",
    group="pcie-link",
    title="The link does not retrain under load",
    reads="speed and width of the slowest hop, again and again while the GPU copies",
    criterion="no change once the link is up",
    why="Each renegotiation can end in a completion timeout.",
    action="nvidia-persistenced; pcie_aspm=off; newer VBIOS.",
    source="local-inference-lab/rtx6kpro PR#88; NVIDIA/open-gpu-kernel-modules#1229",
    vendors=("nvidia", "amd"),
    level="transfer",
)
def flap(subject: Subject) -> Iterator[Finding]:
    """Count changes that are no rise: a link that wakes up for the copies does what it should."""
    seen = _samples(subject)
    for gpu, readings in seen:
        states = [(each.bytes_per_s, f"{each.speed_gts:g} GT/s x{each.width}") for each in readings]
        falls = sum(after[0] < before[0] for before, after in pairwise(states))
        words = ", ".join(dict.fromkeys(text for _, text in states))
        evidence = Evidence(source=f"{len(states)} readings", found=words, expected="no change once the link is up")
        if falls:
            yield warned(f"its link slowed down {falls} times while it copied", evidence, on=[gpu])
        else:
            yield passed("the link stays as it is", evidence, on=[gpu])
    if not seen:
        yield nothing(subject.trials)


def _samples(subject: Subject) -> list[tuple[Gpu, list[LinkReading]]]:
    """Return each series of readings during copies of one device with the host."""
    trials = subject.trials
    found = []
    for each in trials.samples if trials is not None else ():
        during = [one for one in each.links if one.at >= 0]
        if each.kind in {"h2d", "d2h"} and during:
            found += [(gpu, during) for gpu in gpus_of(subject, device_of(each))]
    return found


def _readings(subject: Subject) -> list[tuple[Gpu, list[LinkReading]]]:
    """Return all readings of each device."""
    found: dict[str, tuple[Gpu, list[LinkReading]]] = {}
    for gpu, readings in _samples(subject):
        found.setdefault(gpu.key, (gpu, []))[1].extend(readings)
    return list(found.values())

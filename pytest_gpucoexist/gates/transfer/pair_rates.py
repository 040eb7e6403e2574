"""Whether copies between vendors overlap, and what devices lose to each other when all copy at once."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.findings import Finding, failed, passed, unknown, warned
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.gates.transfer.looking import (
    arrow,
    complete,
    gbps,
    gpus_of,
    is_noisy,
    nothing,
    rate,
    rate_evidence,
    samples_of,
    untried_of,
)
from pytest_gpucoexist.model.trials import SIMULATED
from pytest_gpucoexist.model.verdicts import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject

_timed = partial(gate, group="transfer-bandwidth", vendors=("nvidia", "amd"))


@_timed(
    "bw.staged.cross",
    title="Copies between vendors overlap",
    reads="staged copies between each ordered pair of vendors, against bw.d2h of the source and bw.h2d of the target",
    criterion="60 % of the slower side; below 35 % is a failure, unless the measurement is noisy",
    why="Without overlap the rate is that of both sides one after the other.",
    action="NUMA node of the buffer; a copy by the processor in the path; a busy processor.",
    source="dora-rs/dora PR#2619; tinygrad PR#1523",
    level="transfer",
    severity="fail",
    limits={"pass_percent": 60.0, "fail_percent": 35.0},
)
def staged_cross(subject: Subject) -> Iterator[Finding]:
    good = subject.limit("bw.staged.cross", "pass_percent", 60.0)
    bad = subject.limit("bw.staged.cross", "fail_percent", 35.0)
    back = {each.source: each for each in samples_of(subject, "d2h")}
    there = {each.target: each for each in samples_of(subject, "h2d")}
    samples = samples_of(subject, "staged", local=False)
    for each in samples:
        gpus = gpus_of(subject, each.source, each.target)
        one, two = back.get(each.source), there.get(each.target)
        if one is None or two is None:
            yield unknown("the rates of its two sides are not known", rate_evidence(each), on=gpus)
            continue
        slower = min(rate(one) or 0.0, rate(two) or 0.0)
        share = 100 * (rate(each) or 0.0) / slower
        evidence = rate_evidence(each, f"at least {gbps(slower * good / 100)}, {good:g} % of the slower side")
        words = f"{arrow(each.source, each.target)}: {gbps(rate(each) or 0.0)}, {share:.0f} % of the slower side"
        if share >= good:
            yield passed("copies between vendors overlap", evidence, on=gpus)
        elif is_noisy(subject, each, one, two):
            yield warned(f"{words}; noisy, so it decides nothing", evidence, on=gpus)
        else:
            yield (failed if share < bad else warned)(words, evidence, on=gpus)
    untried = list(untried_of(subject, ("bw.staged",)))
    yield from untried
    if not samples and not untried:
        yield nothing(subject.trials)


@_timed(
    "bw.staged.gain",
    title="The pipeline gains over one copy at a time",
    reads="bw.staged.cross against a serial copy, at level full",
    criterion="1.3 times, or all that the rates of the two sides allow where that is less",
    why="Copies that should run beside each other wait for each other.",
    action="Pageable buffers, one stream, one lock; a processor that is busy otherwise.",
    source="derived: 1 + min/max of the two sides is what overlap can gain",
    level="full",
    limits={"gain": 1.3},
)
def staged_gain(subject: Subject) -> Iterator[Finding]:
    least = subject.limit("bw.staged.gain", "gain", 1.3)
    back = {each.source: rate(each) or 0.0 for each in samples_of(subject, "d2h")}
    there = {each.target: rate(each) or 0.0 for each in samples_of(subject, "h2d")}
    serial = {(each.source, each.target): each for each in samples_of(subject, "serial", local=False)}
    pairs = [(each, serial.get((each.source, each.target))) for each in samples_of(subject, "staged", local=False)]
    some = False
    for each, slow in pairs:
        if slow is None:
            continue
        some = True
        sides = back.get(each.source), there.get(each.target)
        # Nothing can gain more than that; of it, 85 % is what the ring reaches.
        most = 0.85 * (1 + min(sides[0], sides[1]) / max(sides[0], sides[1])) if sides[0] and sides[1] else least
        wanted = min(least, most)
        gain = (rate(each) or 0.0) / (rate(slow) or 1.0)
        gpus = gpus_of(subject, each.source, each.target)
        evidence = rate_evidence(slow), rate_evidence(each, f"{wanted:.2f} times")
        if gain >= wanted or is_noisy(subject, each, slow):
            yield passed("the pipeline gains over one copy at a time", *evidence, on=gpus)
        else:
            words = f"{arrow(each.source, each.target)}: {gain:.2f} times as fast as one copy at a time"
            yield warned(words, *evidence, on=gpus)
    if not some:
        yield nothing(subject.trials)


@_timed(
    "bw.concurrent_all",
    title="All GPUs copy at once",
    reads="copies to all GPUs together, against bw.h2d of each alone",
    criterion="70 % of the sum, which shared uplinks and host memory can bound",
    why="GPUs behind one uplink share it.",
    action="Spread them over root ports.",
    source="NVIDIA/DCGM",
    level="transfer",
    severity="info",
    limits={"percent": 70.0},
)
def concurrent_all(subject: Subject) -> Iterator[Finding]:
    """Compare sums. Pieces are small here, since many follow each other: their rate is that of a long copy."""
    least = subject.limit("bw.concurrent_all", "percent", 70.0)
    alone = {each.target: rate(each) or 0.0 for each in samples_of(subject, "h2d")}
    trials = subject.trials
    found = (
        [each for each in trials.samples if each.kind == "together" and SIMULATED not in each.notes]
        if trials is not None
        else []
    )
    both = [each for each in found if complete(each) and each.target in alone]
    if len(both) < 2:
        untried = list(untried_of(subject, ("together",)))
        yield from untried or [nothing(trials)]
        return
    one, sum_alone = sum(rate(each) or 0.0 for each in both), sum(alone[each.target] for each in both)
    share = 100 * one / sum_alone
    evidence = Evidence(
        source=f"{len(both)} devices at once", found=gbps(one), expected=f"{least:g} % of {gbps(sum_alone)}"
    )
    gpus = gpus_of(subject, *(each.target for each in both))
    if share < least:
        yield warned(f"all together copy at {share:.0f} % of what each does alone", evidence, on=gpus)
    else:
        yield passed("all together are about as fast as each alone", evidence, on=gpus)

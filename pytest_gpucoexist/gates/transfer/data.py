"""Whether the measurements themselves are good for anything: made at all, steady, large, with the link at rest."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.findings import Finding, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.gates.transfer.looking import (
    LARGE_BYTES,
    arrow,
    complete,
    gpus_of,
    is_large,
    nothing,
    rate_evidence,
    samples_of,
    variation,
)
from pytest_gpucoexist.model.verdicts import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import Gpu
    from pytest_gpucoexist.model.trials import Trials, Untried

_about = partial(gate, group="transfer-bandwidth", level="transfer", vendors=("nvidia", "amd"))
_EXPECTED = ("h2d", "d2h")


@_about(
    "bw.missing_data",
    title="Every measurement was made",
    reads="which trials broke, and whether each device that can be tried has its rates and its round trip",
    criterion="none is absent, zero or no number",
    why="A missing number must not count as a good one: without it nobody knows whether the device is fit.",
    action="Read why the measurement broke; raise gpu_gate_budget where time ran out.",
    source="NVIDIA/cluster-readiness-engine PR#6; microsoft/superbenchmark PR#675",
    severity="fail",
)
def missing_data(subject: Subject) -> Iterator[Finding]:
    """Say ERROR, which is no verdict on the device, of what is missing without a good reason."""
    trials = subject.trials
    if trials is None:
        yield nothing(None)
        return
    some = False
    for each in trials.untried:
        if each.status != "SKIP":
            some = True
            yield _untried(subject, each)
    for sample in trials.samples:
        if not complete(sample):
            some = True
            way = f"{sample.kind}, {arrow(sample.source, sample.target)}"
            found = Evidence(source=way, found=f"{sample.seconds!r:.80}", expected="positive numbers of seconds")
            keys = tuple(gpu.key for gpu in gpus_of(subject, sample.source, sample.target))
            yield Finding(status="ERROR", reason=f"{way}: no rate", devices=keys, evidence=(found,))
    for gpu in subject.gpus("nvidia", "amd"):
        lacking = _lacking(trials, gpu)
        if gpu.visible and lacking:
            some = True
            yield Finding(status="ERROR", reason=f"not measured: {', '.join(lacking)}", devices=(gpu.key,))
    if not some:
        yield passed("every measurement was made")


@_about(
    "bw.stability",
    title="The measurement is steady",
    reads="the spread of the samples of each rate",
    criterion="a coefficient of variation of 5 %",
    why="A noisy number decides nothing: no rate that varies more is a failure.",
    action="Stop what else runs, and measure again.",
    source="nvbandwidth (median of 3); microsoft/superbenchmark",
    limits={"percent": 5.0},
)
def stability(subject: Subject) -> Iterator[Finding]:
    most = subject.limit("bw.stability", "percent", 5.0)
    samples = [each for kind in (*_EXPECTED, "staged") for each in samples_of(subject, kind, local=False)]
    for each in samples:
        gpus = gpus_of(subject, each.source, each.target)
        evidence = rate_evidence(each, f"varies by {most:g} % at most")
        if each.variation is None:
            yield unknown("too few repetitions to tell", evidence, on=gpus)
        elif 100 * variation(each) > most:
            words = f"{arrow(each.source, each.target)} varies by {100 * variation(each):.0f} %"
            yield warned(words, evidence, on=gpus)
        else:
            yield passed("the measurement is steady", evidence, on=gpus)
    if not samples:
        yield nothing(subject.trials)


@_about(
    "bw.not_on_tiny",
    title="Limits judge large copies alone",
    reads="the sizes of the copies that were timed",
    criterion="64 MiB or more, or 20 ms or longer",
    why="A probe of a few bytes says nothing about bandwidth: what is smaller is shown and not judged.",
    action="Raise gpu_gate_budget, if the device is so slow that time ran out.",
    source="scitix/sichek#52",
    severity="info",
)
def not_on_tiny(subject: Subject) -> Iterator[Finding]:
    samples = subject.trials.samples if subject.trials is not None else ()
    judged = [each for each in samples if each.kind in {*_EXPECTED, "staged", "serial"} and complete(each)]
    for each in judged:
        gpus = gpus_of(subject, each.source, each.target)
        if is_large(each):
            yield passed("the copies are large enough to judge", on=gpus)
        else:
            words = f"{arrow(each.source, each.target)}: {each.size_bytes / 2**20:g} MiB are too few to judge a rate by"
            yield warned(words, rate_evidence(each, f"{LARGE_BYTES >> 20} MiB"), on=gpus)
    if not judged:
        yield nothing(subject.trials)


@_about(
    "bw.link_consistent",
    title="The link is read while it is used",
    reads="the readings of speed and width around and during each rate",
    criterion="some were made during the copies, and the last ones are alike",
    why="A limit that is taken from an idle link is too low, and hides what it should show.",
    action="As pcie.flap.",
    source="local-inference-lab/rtx6kpro PR#88",
)
def link_consistent(subject: Subject) -> Iterator[Finding]:
    samples = [each for kind in _EXPECTED for each in samples_of(subject, kind, local=False)]
    for each in samples:
        gpus = gpus_of(subject, each.source, each.target)
        during = [one for one in each.links if one.at >= 0]
        if not during:
            yield unknown("its link was not read while it copied", on=gpus)
            continue
        states = list(dict.fromkeys(f"{one.speed_gts:g} GT/s x{one.width}" for one in during[1:] or during))
        evidence = Evidence(source=during[-1].hop, found=", then ".join(states), expected="one state")
        if len(states) > 1:
            yield warned("its link changed while it copied", evidence, on=gpus)
        else:
            yield passed("the link stayed as it was", evidence, on=gpus)
    if not samples:
        yield nothing(subject.trials)


def _untried(subject: Subject, one: Untried) -> Finding:
    gpus = gpus_of(subject, one.source, one.target)
    if one.reason.startswith("in use by"):  # somebody else's test: nothing broke
        return skipped(f"{one.kind}: {one.reason}", on=gpus)
    keys = tuple(gpu.key for gpu in gpus)
    return Finding(
        status="ERROR" if one.status == "ERROR" else "UNKNOWN", reason=f"{one.kind}: {one.reason}", devices=keys
    )


def _lacking(trials: Trials, gpu: Gpu) -> list[str]:
    """Return what there is no word of, good or bad. What could not be opened has been said already."""
    told = {each.kind for each in trials.untried if gpu.key in {each.source, each.target}}
    if told & {"open", "device"}:
        return []
    timed = {each.kind for each in trials.samples if gpu.key in {each.source, each.target}}
    verified = {each.kind for each in trials.integrity if gpu.key in {each.source, each.target}}
    return [kind for kind in (*_EXPECTED, "roundtrip") if kind not in timed | verified | told]

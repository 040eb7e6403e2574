"""Whether each device's copies are as fast as the slowest hop allowed while they ran."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.findings import Finding, failed, passed, unknown, warned
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.gates.transfer.looking import (
    device_of,
    gbps,
    gpus_of,
    is_noisy,
    nothing,
    rate,
    rate_evidence,
    samples_of,
    untried_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.trials import Sample

_timed = partial(gate, group="transfer-bandwidth", level="transfer", vendors=("nvidia", "amd"))
_GOOD, _BAD = 70.0, 50.0
_BANDS = {"pass_percent": _GOOD, "fail_percent": _BAD}
_SOURCES = "azurehpc-health-checks; stas00/ml-engineering (88 % on H200); NVlabs/cuda-oxide PR#976 (76 % on RTX 4090)"


@_timed(
    "bw.h2d",
    title="Host to GPU is as fast as its link",
    reads="pinned copies of 64 MiB near the GPU, the link read meanwhile; the median",
    criterion="70 % of the slowest hop; below 50 % is a failure, unless the measurement is noisy",
    why="Half a link is lost without any message.",
    action="Read the pcie gates; put the buffer on the GPU's node.",
    source=_SOURCES,
    severity="fail",
    limits=_BANDS,
)
def h2d(subject: Subject) -> Iterator[Finding]:
    yield from _against_link(subject, "bw.h2d", "h2d")


@_timed(
    "bw.d2h",
    title="GPU to host is as fast as its link",
    reads="the same in the other direction",
    criterion="as bw.h2d",
    why="The directions differ: read completions and posted writes have other limits.",
    action="As bw.h2d.",
    source=_SOURCES,
    severity="fail",
    limits=_BANDS,
)
def d2h(subject: Subject) -> Iterator[Finding]:
    yield from _against_link(subject, "bw.d2h", "d2h")


@_timed(
    "bw.asymmetry",
    title="The directions are alike",
    reads="the rates of bw.h2d and bw.d2h",
    criterion="within 25 % of the faster one",
    why="Payload size, read requests or memory channels limit one of them.",
    action="Look at pcie.mps and the memory population.",
    source="derived from measured pairs (55.4/55.1, 23.9/26.6 GB/s)",
    limits={"percent": 25.0},
)
def asymmetry(subject: Subject) -> Iterator[Finding]:
    most = subject.limit("bw.asymmetry", "percent", 25.0)
    back = {each.source: each for each in samples_of(subject, "d2h")}
    pairs = [(each, back[each.target]) for each in samples_of(subject, "h2d") if each.target in back]
    for there, other in pairs:
        one, two = rate(there) or 0.0, rate(other) or 0.0
        apart = 100 * abs(one - two) / max(one, two)
        evidence = rate_evidence(there), rate_evidence(other, f"within {most:g} %")
        gpus = gpus_of(subject, there.target)
        if apart > most and not is_noisy(subject, there, other):
            words = f"the directions differ by {apart:.0f} %: {gbps(one)} there, {gbps(two)} back"
            yield warned(words, *evidence, on=gpus)
        else:
            yield passed("the directions are alike", *evidence, on=gpus)
    if not pairs:
        yield nothing(subject.trials)


@_timed(
    "bw.siblings",
    title="Equal cards on equal links are equally fast",
    reads="bw.h2d of cards of one model whose links are the same, or not known, and which it does not blame",
    criterion="within 5 % of the fastest; more than 10 % is a failure",
    why="The odd one out has a fault that no absolute limit shows.",
    action="Swap the slots: does the fault go with the card?",
    source="microsoft/superbenchmark (5 % rule)",
    severity="fail",
    limits={"pass_percent": 5.0, "fail_percent": 10.0},
)
def siblings(subject: Subject) -> Iterator[Finding]:
    """Compare each with the fastest of its kind. What its own link already condemns is said once, by bw.h2d."""
    good = subject.limit("bw.siblings", "pass_percent", 5.0)
    bad = subject.limit("bw.siblings", "fail_percent", 10.0)
    groups = _alike(subject)
    for alike in groups:
        best = max(alike, key=lambda each: rate(each) or 0.0)
        top = rate(best) or 1.0
        for each in alike:
            less = 100 * (1 - (rate(each) or 0.0) / top)
            gpus = gpus_of(subject, each.target)
            evidence = rate_evidence(each, f"{gbps(top)}, as {best.target}")
            if less <= good or is_noisy(subject, each, best):
                yield passed("as fast as its siblings", evidence, on=gpus)
                continue
            words = f"{less:.0f} % slower than {best.target}, the same model on the same link"
            yield (failed if less > bad else warned)(words, evidence, on=gpus)
    if not groups:
        yield nothing(subject.trials)


def _alike(subject: Subject) -> list[list[Sample]]:
    least = subject.limit("bw.h2d", "pass_percent", _GOOD)
    groups: dict[object, list[Sample]] = {}
    for each in samples_of(subject, "h2d"):
        allowed = each.allowed_bytes_per_s
        for gpu in gpus_of(subject, each.target):
            if not allowed or 100 * (rate(each) or 0.0) / allowed >= least:
                groups.setdefault((gpu.vendor, gpu.vendor_id, gpu.device_id, allowed), []).append(each)
    return [group for group in groups.values() if len(group) > 1]


def _against_link(subject: Subject, gate_id: str, kind: str) -> Iterator[Finding]:
    samples = samples_of(subject, kind)
    for each in samples:
        yield _judged(subject, gate_id, each)
    untried = list(untried_of(subject, ("open", kind)))
    yield from untried
    if not samples and not untried:
        yield nothing(subject.trials)


def _judged(subject: Subject, gate_id: str, sample: Sample) -> Finding:
    good = subject.limit(gate_id, "pass_percent", _GOOD)
    bad = subject.limit(gate_id, "fail_percent", _BAD)
    gpus = gpus_of(subject, device_of(sample))
    allowed, value = sample.allowed_bytes_per_s, rate(sample) or 0.0
    if not allowed:
        return unknown(f"{gbps(value)}, and what its link allows is not known", rate_evidence(sample), on=gpus)
    share = 100 * value / allowed
    evidence = rate_evidence(sample, f"at least {gbps(allowed * good / 100)}, {good:g} % of {gbps(allowed)}")
    words = f"{gbps(value)}, {share:.0f} % of what the slowest hop allows"
    if share >= good:
        return passed("as fast as the slowest hop allows", evidence, on=gpus)
    if is_noisy(subject, sample):
        return warned(f"{words}; noisy, so it decides nothing", evidence, on=gpus)
    return (failed if share < bad else warned)(words, evidence, on=gpus)

"""Find what was tried of one kind, and say of each device why nothing was: what is missing is never a PASS."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.findings import Finding, skipped, unknown
from pytest_gpucoexist.model.trials import HOST, SIMULATED
from pytest_gpucoexist.model.verdicts import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import Gpu
    from pytest_gpucoexist.model.trials import Integrity, Sample, Trials, Untried

__all__ = [
    "LARGE_BYTES",
    "arrow",
    "complete",
    "device_of",
    "gbps",
    "gpus_of",
    "is_large",
    "is_noisy",
    "nothing",
    "rate",
    "rate_evidence",
    "samples_of",
    "tried_vendors",
    "untried_of",
    "variation",
]

LARGE_BYTES = 64 << 20
"""Rates of smaller copies say nothing about a link: scitix/sichek#52."""
_LONG_S = 0.02
"""Nor is a copy small that takes so long: a start costs some 30 µs (NVlabs/cuda-oxide PR#976), 0.2 % of it."""

NOISY = 0.05


def gbps(bytes_per_s: float) -> str:
    """Write a rate in GB/s (10⁹ bytes)."""
    value = bytes_per_s / 1e9
    return f"{value:.2f} GB/s" if value < 100 else f"{value:.0f} GB/s"


def arrow(source: str, target: str) -> str:
    """Name a way."""
    return f"{source} -> {target}"


def rate(sample: Sample) -> float | None:
    """Return the median rate (bytes per second); None where a repetition is no positive number."""
    if not sample.seconds or not all(math.isfinite(each) and each > 0 for each in sample.seconds):
        return None
    return sample.bytes_per_s


def complete(sample: Sample) -> bool:
    """Whether it can be judged."""
    return rate(sample) is not None


def is_large(sample: Sample) -> bool:
    """Whether its rate is one of the link and not of starting a copy."""
    return sample.size_bytes >= LARGE_BYTES or (complete(sample) and min(sample.seconds) >= _LONG_S)


def variation(sample: Sample) -> float:
    """Return the coefficient of variation; 0 where there are too few repetitions to tell."""
    return sample.variation or 0.0


def is_noisy(subject: Subject, *samples: Sample) -> bool:
    """Whether the rates vary so much that they decide nothing."""
    most = subject.limit("bw.stability", "percent", 100 * NOISY) / 100
    return any(variation(each) > most for each in samples)


def device_of(one: Sample | Integrity | Untried) -> str | None:
    """Return the device of a way from or to the host."""
    return one.target if one.source == HOST else one.source


def gpus_of(subject: Subject, *keys: str | None) -> list[Gpu]:
    """Return the devices that these keys name, in their order; a key that is none (the host) is left out."""
    known = {gpu.key: gpu for gpu in subject.machine.gpus}
    return [known[key] for key in dict.fromkeys(keys) if key in known]


def samples_of(subject: Subject, kind: str, *vendors: str, local: bool = True) -> list[Sample]:
    """Return the samples of a kind that can be judged as rates. `local`: those of memory of another node left out."""
    trials = subject.trials
    if trials is None:
        return []
    return [
        each
        for each in trials.samples
        if each.kind == kind
        and complete(each)
        and is_large(each)
        and SIMULATED not in each.notes
        and (not local or each.node_is_local is not False)
        and _is_of(subject, each, vendors)
    ]


def untried_of(subject: Subject, kinds: Iterable[str], *vendors: str) -> Iterator[Finding]:
    """Say of which devices these kinds were not tried, and why."""
    names = {"device", *kinds}  # a device that was not touched has none of it
    for each in subject.trials.untried if subject.trials is not None else ():
        if each.kind in names and _is_of(subject, each, vendors):
            gpus = gpus_of(subject, each.source, each.target)
            # What broke is the business of bw.missing_data: here it is one more thing that is not known.
            yield skipped(each.reason, on=gpus) if each.status == "SKIP" else unknown(each.reason, on=gpus)


def nothing(trials: Trials | None) -> Finding:
    """Say that there is nothing to judge."""
    if trials is None:
        return skipped("nothing was copied: a machine that is replayed has no devices, or no trial was run")
    return skipped("nothing of this kind was tried here")


def rate_evidence(sample: Sample, expected: str | None = None) -> Evidence:
    """Say what was measured, and over which hop."""
    value = rate(sample)
    words = [gbps(value) if value is not None else "no rate", f"{sample.size_bytes / 2**20:g} MiB"]
    words.append(f"median of {len(sample.seconds)} by the {'device' if sample.clock == 'events' else 'host'}'s clock")
    if sample.variation is not None:
        words.append(f"varies by {100 * sample.variation:.1f} %")
    links = [each for each in sample.links if each.at >= 0]
    if links:
        best = max(links, key=lambda each: each.bytes_per_s)
        words.append(f"slowest hop {best.hop}: {best.speed_gts:g} GT/s x{best.width}, {gbps(best.bytes_per_s)}")
    return Evidence(source=arrow(sample.source, sample.target), found=", ".join(words), expected=expected)


def tried_vendors(subject: Subject, one: Sample | Integrity | Untried) -> set[str]:
    """Return the vendors of both ends."""
    return {gpu.vendor for gpu in gpus_of(subject, one.source, one.target)}


def _is_of(subject: Subject, one: Sample | Untried, vendors: tuple[str, ...]) -> bool:
    return not vendors or bool(tried_vendors(subject, one) & set(vendors))

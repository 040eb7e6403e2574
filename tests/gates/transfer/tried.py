"""Trials by hand: what one card and its neighbours would say, with rates that others have measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.model.trials import HOST, Integrity, LinkReading, Sample, Trials, Wrong
from pytest_gpucoexist.testing.builder import MachineBuilder, a_machine
from tests.gates.judging import verdicts

if TYPE_CHECKING:
    from pytest_gpucoexist.model.verdicts import Verdict

__all__ = ["AMD", "GEN3", "GEN4", "GEN5", "NV0", "NV1", "said", "sample", "trials", "two_and_one", "verified", "wrong"]

GEN3, GEN4, GEN5 = (8.0, 15.75e9), (16.0, 31.51e9), (32.0, 63.01e9)
"""GT/s and bytes per second of sixteen lanes, after line coding (the kernel's formula)."""

NV0, NV1, AMD = "0000:01:00.0", "0000:02:00.0", "0000:03:00.0"


def two_and_one() -> MachineBuilder:
    """Give two NVIDIA cards of one model and an AMD card."""
    machine = a_machine().with_gpu("rtx4090", address=NV0).with_gpu("rtx4090", address=NV1)
    return machine.with_gpu("rx7900xtx", address=AMD)


def sample(kind: str, gbps: float, key: str = NV0, **more: Any) -> Sample:
    """Give four repetitions that vary a little; `link` is a generation, `spread` how much they vary."""
    size = more.pop("size_bytes", 64 << 20)
    link, spread = more.pop("link", GEN4), more.pop("spread", 0.002)
    seconds = tuple(size / (gbps * 1e9) * each for each in (1 - spread, 1.0, 1.0, 1 + spread))
    ends = {"source": HOST, "target": key} if kind in {"h2d", "together"} else {"source": key, "target": HOST}
    readings = tuple(
        LinkReading(at=at, hop=key, speed_gts=link[0], width=16, bytes_per_s=link[1]) for at in (0.0, 0.05, 0.1)
    )
    facts: dict[str, Any] = {"route": "host", "node": 0, "node_is_local": True, "links": readings, **ends}
    return Sample(kind=kind, size_bytes=size, seconds=seconds, **{**facts, **more})


def verified(kind: str, source: str = HOST, target: str = NV0, *wrongs: Wrong, route: Any = "host") -> Integrity:
    """Give a way of copying that was verified."""
    return Integrity(kind=kind, source=source, target=target, route=route, sizes=(1, 4097), wrong=wrongs)


def wrong(kind: str = "flipped", hop: Any = None) -> Wrong:
    """Give one thing that was wrong."""
    return Wrong(kind=kind, sentence="bit 4 of the word at byte 4096", size_bytes=4097, hop=hop)


def trials(*found: Integrity | Sample, **more: Any) -> Trials:
    """Put them together."""
    return Trials(
        level=more.pop("level", "transfer"),
        integrity=tuple(each for each in found if isinstance(each, Integrity)),
        samples=tuple(each for each in found if isinstance(each, Sample)),
        **more,
    )


def said(gate: str, *found: Integrity | Sample, **more: Any) -> dict[str, Verdict]:
    """Return what a gate says of these trials, by status."""
    tried = trials(*found, **more)
    return {each.status: each for each in verdicts(two_and_one(), gate, level="full", trials=tried)}

"""One fault out of everything that can go wrong, drawn from a seed, and the judgement of what came of it."""

from __future__ import annotations

import os
import random
import signal
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pytest_gpucoexist.errors import EngineError, GpuCoexistError, VendorDeadlineError, VendorEndedError
from tests.proofs.orders import SILENT, Phase, chunks, key_and_place, misnamed
from tests.proofs.rig import COPY_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpucoexist.model.trials import Integrity
    from tests.proofs.rig import Rig

__all__ = ["Chaos", "draw", "unleash"]

_SIZES = (8191, 65537, (1 << 20) + 13, (5 << 20) + 13)
_SILENT = (
    *("flip 4200", "flip -1", "flip 5000 0x81", "drop", "stale", "torn", "torn 1", "shift 3", "shift -24"),
    *("shift 4096", "zeros", "zeros 4100 300", "noise"),
)
_ENDS = ("lost 719", "lost 700", "lost 214", "kill", "segv", "hang")
_SIGNALS = ("KILL", "TERM", "SEGV", "STOP CONT", "STOP CONT", "STOP")
_ALLOCATE = {"nvidia": "cuda.{}.fault.cuMemAlloc", "amd": "hip.{}.fault.hipMalloc"}
_REGISTER = {"nvidia": "cuda.{}.fault.cuMemHostRegister", "amd": "hip.{}.fault.hipHostRegister"}

Family = Literal["silent", "ends", "slow", "memory", "register", "signal", "nothing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chaos:
    """What was drawn: the copy, and what happens to it. `key` and `at` order a fault, `delay_s` sends a signal."""

    seed: int
    family: Family
    source: str
    target: str
    route: Literal["staged", "local", "peer"]
    phase: Phase
    size: int
    action: str = ""
    key: str = ""
    at: int = 1
    victim: int = 0
    delay_s: float = 0.0


def draw(seed: int) -> Chaos:
    """Draw one; the same for the same seed."""
    chance = random.Random(seed)
    route: Literal["staged", "local", "peer"] = chance.choices(("staged", "local", "peer"), (8, 1, 2))[0]
    ends = [f"{vendor}.{chance.randrange(2)}" for vendor in chance.sample(("nvidia", "amd"), 2)]
    source, target = ends
    if route == "local":
        target = source
    elif route == "peer":
        target = f"{source[:-1]}{1 - int(source[-1])}"
    family: Family = chance.choices(
        ("silent", "ends", "slow", "memory", "register", "signal", "nothing"), (72, 7, 4, 5, 4, 4, 4)
    )[0]
    phase: Phase = chance.choice(("loading", "first", "second", "reading")) if route == "staged" else route
    size = chance.choice(_SIZES)
    key, at = key_and_place(phase, source, target, chance.randrange(max(1, chunks(size) - 1)))
    common: dict[str, Any] = {"seed": seed, "family": family, "source": source, "target": target, "route": route}
    common |= {"phase": phase, "size": size}
    if family == "silent":
        actions: tuple[str, ...] = _SILENT
        if phase in {"loading", "reading"}:  # their copies begin a page before the payload
            actions = (
                ("flip 4200", "flip 5000 0x81") if phase == "loading" else ("flip 4200", *_SILENT[3:6], *_SILENT[7:])
            )
        return Chaos(**common, action=chance.choice(actions), key=key, at=at)
    if family == "ends":
        return Chaos(**common, action=chance.choice(_ENDS), key=key, at=at)
    if family == "slow":
        return Chaos(**common, action=f"hang {chance.uniform(0.01, 0.1):.3f}", key=key, at=at)
    if family in {"memory", "register"}:
        vendor, _, number = chance.choice((source, target)).partition(".")
        names = _ALLOCATE if family == "memory" else _REGISTER
        return Chaos(**common, action="status 2", key=names[vendor].format(number))
    if family == "signal":
        return Chaos(
            **common, action=chance.choice(_SIGNALS), victim=chance.randrange(2), delay_s=chance.uniform(0.0, 0.15)
        )
    return Chaos(**common)


def unleash(rig: Rig, chaos: Chaos) -> bool:
    """Let it happen in a verified copy; AssertionError when it is not seen, not named, or leaves something behind.

    Returns whether it happened: a fault waits for a copy that it fits, and a signal may come too late.
    """
    from pytest_gpucoexist.staging.service import Staging
    from pytest_gpucoexist.staging.verified import verified_copy

    source, target = rig.end(chaos.source), rig.end(chaos.target)
    pinned = chaos.family == "register"  # in all that is to be pinned: the memory of the copy is not the only one
    order = rig.machine.order(chaos.key, chaos.action, at=chaos.at, each=pinned) if chaos.key else None
    timers = _signals(chaos, rig.pids()) if chaos.family == "signal" else []
    found: Integrity | None = None
    error: GpuCoexistError | None = None
    # Words of another seed would have no known origin, and a driver remembers them from one fault to the next.
    sizes, seed = ((chaos.size, chaos.size), 1) if chaos.action == "stale" else ((chaos.size,), chaos.seed)
    for timer in timers:
        timer.start()
    with Staging(copy_s=COPY_S) as staging:
        try:
            found = verified_copy(staging, source, target, sizes, seed=seed, route=chaos.route)
        except GpuCoexistError as failure:  # anything else is a defect
            error = failure
    for timer in timers:
        timer.join()
    struck = order is not None and order.struck > 0
    if order is not None:
        order.withdraw()
    complaint = _judge(chaos, struck, found, error)
    assert complaint is None, complaint
    recovers = chaos.family in {"silent", "slow", "memory", "register", "nothing"} and (
        error is None or (isinstance(error, EngineError) and error.kind == "memory")
    )
    left = rig.left() if recovers else rig.end_all()
    assert left == [], f"left behind: {left}"
    return struck


def _signals(chaos: Chaos, pids: Sequence[int]) -> list[threading.Timer]:
    pid = pids[chaos.victim]
    return [
        threading.Timer(chaos.delay_s + 0.2 * after, _send(pid, getattr(signal, f"SIG{name}")))
        for after, name in enumerate(chaos.action.split())
    ]


def _send(pid: int, number: int) -> Callable[[], None]:
    def send() -> None:
        with suppress(ProcessLookupError):  # it has ended, which is a moment like any other
            os.kill(pid, number)

    return send


def _judge(chaos: Chaos, struck: bool, found: Integrity | None, error: GpuCoexistError | None) -> str | None:
    """Say what is not as it must be."""
    wrong = {(each.kind, each.hop) for each in found.wrong} if found is not None else set()
    word = chaos.action.partition(" ")[0]
    if chaos.family == "signal":
        return _judge_signal(chaos, wrong, error)
    if chaos.family == "nothing" or not struck or chaos.family == "slow":
        return None if error is None and not wrong else f"nothing happened, and it was called {error or wrong}"
    if word in SILENT:
        return f"{chaos.action} was called {error}" if error else misnamed(chaos.phase, chaos.action, wrong)
    if chaos.family == "register":
        fine = found is not None and not wrong and (found.route == "copied" or chaos.route != "staged")
        return None if fine else f"memory that one side cannot pin: {error or found}"
    if word in {"kill", "segv"}:
        fine = isinstance(error, VendorEndedError) and error.signal == f"SIG{word.upper()}"
    else:
        kind = {"lost": "lost", "hang": "deadline", "status": "memory"}[word]
        fine = isinstance(error, EngineError) and error.kind == kind
    return None if fine else f"{chaos.action} at {chaos.phase} was called {error!r}, {wrong}"


def _judge_signal(chaos: Chaos, wrong: object, error: GpuCoexistError | None) -> str | None:
    """It may come when all is over; then nothing is wrong. What is stopped may go on in time."""
    if wrong:
        return f"a signal made {wrong}"
    if error is None:
        return None
    if chaos.action.startswith("STOP"):
        fine = isinstance(error, (VendorDeadlineError, EngineError)) or type(error).__name__ == "PeerError"
    else:
        fine = isinstance(error, VendorEndedError) and error.signal == f"SIG{chaos.action}"
    return None if fine else f"SIG{chaos.action} was called {error!r}"

"""Whether a device reaches another directly, proven by data: runtimes say yes, and write zeros or nothing.

The proof is in a process of its own, with what its vendor's process was started with, because direct copies have
crashed processes, and desktops. A few bytes go first, then more than any one page table's entry maps; what lay there
before and on both sides is looked at. AMD's devices are tried only when that was asked for.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from pytest_gpucoexist.errors import EngineError, TransferError, VendorProcessError
from pytest_gpucoexist.processes.process import VendorProcess
from pytest_gpucoexist.staging.endpoint import open_endpoint
from pytest_gpucoexist.staging.memory import from_host, to_host
from pytest_gpucoexist.staging.service import Staging

if TYPE_CHECKING:
    from pytest_gpucoexist.staging.endpoint import Endpoint

__all__ = ["SIZES", "Peering", "prove_peers"]

SIZES = (8, 4097, (4 << 20) + 5)
_ZONE = 64  # bytes before and after, which nobody may write


@dataclass(frozen=True, slots=True, kw_only=True)
class Peering:
    """What was found for one direction. `status`: proven, refused by the runtime, wrong data, failed, or untried."""

    source: str
    target: str
    status: Literal["proven", "refused", "wrong", "failed", "untried"]
    reason: str = ""


def prove_peers(
    staging: Staging,
    source: Endpoint,
    target: Endpoint,
    *,
    opted_in: bool = False,
    seed: int = 0,
    copy_s: float = 5.0,
    deadline_s: float = 30.0,
) -> Peering:
    """Try direct copies from `source` to `target`; a copy of `staging` by "auto" uses them only when they are proven.

    `opted_in` allows the attempt with AMD's devices. Raises nothing for what fails in the process that tries.
    """
    staging.proven.discard((source.key, target.key))

    def found(status: Literal["proven", "refused", "wrong", "failed", "untried"], reason: str = "") -> Peering:
        return Peering(source=source.key, target=target.key, status=status, reason=reason)

    if source is target or source.process is not target.process:
        return found("untried", f"{source.key} and {target.key} are not two devices of one process")
    if source.runtime == "hip" and not opted_in:
        return found("untried", "direct copies between AMD devices have crashed machines: they are tried on demand")
    opened = source.process
    try:
        child = replace(opened, process=VendorProcess(opened.process.order, opened.host))
    except VendorProcessError as error:
        return found("failed", f"no process to try it in: {error}")
    simulated = source.runtime == "host"
    try:
        # The process ends first: to give back what a copy that hangs has in hand would wait for that copy.
        with Staging(copy_s=copy_s) as own, child:
            ends = [
                open_endpoint(child, each.gpu, simulated=simulated, deadline_s=deadline_s) for each in (source, target)
            ]
            for size in SIZES:
                wrong = _tried(own, ends[0], ends[1], size, random.Random(f"{seed} {size}"))
                if wrong:
                    return found("wrong", f"{size} bytes from {source.key} to {target.key}: {wrong}")
    except EngineError as error:
        return found("refused" if error.kind == "peer" else "failed", str(error))
    except (TransferError, VendorProcessError) as error:
        return found("failed", str(error))
    staging.proven.add((source.key, target.key))
    return found("proven")


def _tried(staging: Staging, source: Endpoint, target: Endpoint, size: int, chance: random.Random) -> str:
    """Copy directly and return what is wrong with what lies there then, or nothing."""
    data, before = chance.randbytes(size), chance.randbytes(size + 2 * _ZONE)
    given, taken = source.allocate(size), target.allocate(len(before))  # until the end of the process
    from_host(staging, data, given)
    from_host(staging, before, taken)
    if to_host(staging, given).tobytes() != data or to_host(staging, taken).tobytes() != before:
        return "already what was written for it does not read back: the way to the host is at fault"
    staging.copy(given, taken, offsets=(0, _ZONE), route="peer")
    after = to_host(staging, taken).tobytes()
    arrived = after[_ZONE : _ZONE + size]
    if after[:_ZONE] != before[:_ZONE] or after[_ZONE + size :] != before[_ZONE + size :]:
        return "bytes beside it were changed"
    if arrived == data:
        return ""
    if arrived == before[_ZONE : _ZONE + size]:
        return "nothing arrived, although the runtime reported success"
    if not any(arrived):
        return "zeros arrived, although the runtime reported success"
    first = next(at for at, (is_, meant) in enumerate(zip(arrived, data, strict=True)) if is_ != meant)
    return f"what arrived differs from byte {first} on"

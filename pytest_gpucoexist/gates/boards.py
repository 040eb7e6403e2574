"""Judge each board by what its vendor's library says about it, whatever that library leaves out or gets wrong.

A judge is a function of a Board that returns a Finding. It asks for values and gets them, or leaves early: what the
board does not have is SKIP, what could not be read is UNKNOWN, and a value that makes no sense is UNKNOWN too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.gates.findings import Finding, skipped, unknown
from pytest_gpucoexist.gates.vendors import LIBRARY_NAMES, device_cells, faults, vendor_reply
from pytest_gpucoexist.model.machine import Gpu
from pytest_gpucoexist.model.verdicts import Evidence
from pytest_gpucoexist.probes.platform import WSL_DRIVER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.host.base import HelperReply

__all__ = ["Board", "NotTold", "boards", "flag", "judge_boards", "no_reply", "other_driver", "whole"]

_DRIVERS = {"nvidia": ("nvidia",), "amd": ("amdgpu",), "intel": ("i915", "xe")}


class NotTold(Exception):  # noqa: N818 - an answer about what is not there
    """A value that the library did not give: the status of its cell, and the reason in words."""

    def __init__(self, status: str, detail: str) -> None:
        super().__init__(status, detail)
        self.status = status
        self.detail = detail


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """One physical GPU: the devices that are granted of it (itself, or its MIG instances or partitions)."""

    gpu: Gpu
    on: tuple[Gpu, ...]
    cells: Mapping[str, Any]
    library: str

    def health(self, name: str) -> Any:
        """Return the health cell `name`. Raises NotTold."""
        health = self.cells.get("health")
        if not isinstance(health, dict):
            raise NotTold("absent", f"{self.library} was recorded without its health")
        return self._value(health, name)

    def field(self, name: str) -> Any:
        """Return the field `name` of the helper's reply. Raises NotTold."""
        return self._value(self.cells, name)

    def maybe(self, name: str) -> Any:
        """Return a health cell, or None."""
        try:
            return self.health(name)
        except NotTold:
            return None

    def evidence(self, name: str, found: object, expected: object = None) -> Evidence:
        """Say what a cell held."""
        source = f"{self.library}: {name.replace('_', ' ')}"
        return Evidence(source=source, found=str(found), expected=None if expected is None else str(expected))

    def _value(self, holder: Mapping[str, Any], name: str) -> Any:
        cell = holder.get(name)
        if not isinstance(cell, dict):
            raise NotTold("absent", f"the reply has no {name.replace('_', ' ')}")
        if "value" in cell:
            return cell["value"]
        raise NotTold(str(cell.get("status")), str(cell.get("detail")))


def judge_boards(subject: Subject, vendor: str, judge: Callable[[Board], Finding]) -> Iterator[Finding]:
    """Ask the vendor's library once, and judge each of its boards here. Yields at least one finding."""
    some = False
    for each in boards(subject, vendor):
        some = True
        yield each if isinstance(each, Finding) else _judged(each, judge)
    if not some:
        yield skipped(f"no {vendor} GPU here")


def boards(subject: Subject, vendor: str) -> Iterator[Board | Finding]:
    """Give each physical GPU of a vendor, or the finding that says why there are no values of it."""
    reply = vendor_reply(subject, vendor)
    library = LIBRARY_NAMES[vendor]
    for on in _physical(subject, vendor):
        gpu = on[0]
        other = other_driver(gpu)
        if other is not None:
            yield skipped(f"{other}; {library} does not see it", on=on)
            continue
        if reply.status != "ok":
            yield no_reply(reply, library, on)
            continue
        cells = device_cells(reply, gpu)
        if cells is None:
            fault = faults(reply)
            why = f"could not ask it: {fault[0][1]}" if fault else "does not list it"
            yield unknown(f"{library} {why}", on=on)
            continue
        yield Board(gpu=gpu, on=on, cells=cells, library=library)


def other_driver(gpu: Gpu) -> str | None:
    """Say that another driver than the vendor's own holds a GPU, or none; None when its own does."""
    if gpu.pci_address is None or gpu.driver in {*_DRIVERS[gpu.vendor], WSL_DRIVER}:
        return None
    if gpu.driver is None:
        fact = gpu.facts.get("driver")
        if fact is not None and fact.status not in {"ok", "absent"}:
            return None
        return "no driver holds it"
    return f"{gpu.driver} holds it"


def no_reply(reply: HelperReply, library: str, on: tuple[Gpu, ...] = ()) -> Finding:
    """Say why a library gave nothing: SKIP where it is not installed or has nothing to talk to, UNKNOWN otherwise.

    Whether a library that is not installed is a fault is a question for the gate that is about it.
    """
    if reply.status == "absent" and isinstance(reply.data, dict) and reply.data.get("cause") == "no-library":
        return skipped(f"{library} is not installed", on=on)
    reason = f"{library} gave no answer ({reply.status}): {reply.detail or 'no reason given'}"
    return skipped(reason, on=on) if reply.status == "unsupported" else unknown(reason, on=on)


def whole(value: Any, name: str = "value") -> int:
    """Return a count. Raises ValueError when it is none: text, a negative number, all bits set."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise ValueError(f"{name} is {value!r:.60}")
    return value


def flag(value: Any) -> bool:
    """Return a flag. Raises ValueError for anything else."""
    if not isinstance(value, bool):
        raise ValueError(f"a flag is {value!r:.60}")  # noqa: TRY004 - like all else that makes no sense
    return value


def _judged(board: Board, judge: Callable[[Board], Finding]) -> Finding:
    try:
        return judge(board)
    except NotTold as why:
        if why.status == "unsupported":
            return skipped(f"this board or driver does not have it: {why.detail}", on=board.on)
        return unknown(f"could not be read ({why.status}): {why.detail}", on=board.on)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        return unknown(f"what {board.library} says makes no sense: {error}", on=board.on)


def _physical(subject: Subject, vendor: str) -> list[tuple[Gpu, ...]]:
    """Group the devices that are granted by the board they are on."""
    found: dict[str, list[Gpu]] = {}
    for gpu in subject.gpus(vendor):
        found.setdefault(gpu.pci_address or gpu.key, []).append(gpu)
    return [tuple(on) for on in found.values()]

"""What runs in a vendor's process: its devices, their memory, and its sides of a copy.

It is sent there as source, with the modules of `transfer` that it imports, and needs neither this package nor NumPy.
Everything crosses as builtins. An error of a transfer is an answer, so that its kind arrives: `answered`.
"""

from __future__ import annotations

import functools
import sys
import threading
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.errors import EngineError, TransferError
from pytest_gpucoexist.staging.arrays import DeviceView, check_device, memory_of
from pytest_gpucoexist.transfer import ring
from pytest_gpucoexist.transfer.engine import Engine, open_engine
from pytest_gpucoexist.transfer.host_engine import HostEngine
from pytest_gpucoexist.transfer.runtime import Runtime
from pytest_gpucoexist.transfer.segment import Place, Segment
from pytest_gpucoexist.transfer.signatures import CUDA, HIP

if TYPE_CHECKING:
    from collections.abc import Callable


_COPY = 1  # the event of copies outside of rings

_engines: dict[str, Engine] = {}
_segments: dict[int, Segment] = {}
_pinned: set[tuple[int, str]] = set()
_kept: dict[int, Any] = {}
BUFFER = "gpucoexist buffer"


def answered(function: Callable[..., Any]) -> Callable[..., Any]:
    """Have a function answer with ("done", value), or with what an error of a transfer says of itself."""

    @functools.wraps(function)
    def answer(*arguments: Any) -> tuple[str, Any]:
        try:
            return "done", function(*arguments)
        except TransferError as error:
            return "failed", told(error)

    return answer


def told(error: TransferError) -> dict[str, Any]:
    """Return an error as builtins."""
    fields = {name: getattr(error, name) for name in ("call", "code", "name", "kind")} if is_engine(error) else {}
    return {"type": type(error).__name__, "text": str(error), "fields": fields}


def is_engine(error: TransferError) -> bool:
    """Whether an error has what an engine's has."""
    return isinstance(error, EngineError)


@answered
def open_device(key: str, runtime: str, pci_address: str | None) -> dict[str, Any]:
    """Open a device; answers with the addresses of all that the runtime shows this process."""
    if key not in _engines:
        _engines[key] = open_engine(runtime, pci_address)
    api = getattr(_engines[key], "_api", None)
    seen = [pci_address] if api is None else [address for _, address in api.devices()]
    return {"visible": seen, "library": "" if api is None else api.library}


@answered
def visible(runtime: str) -> list[str]:
    """Return the addresses of all devices that a runtime shows this process, without a context on any."""
    api = Runtime({"cuda": CUDA, "hip": HIP}[runtime])
    api.initialise()
    return [address for _, address in api.devices()]


@answered
def allocate(key: str, size_bytes: int) -> int:
    """Allocate device memory."""
    return _engines[key].allocate(size_bytes)


@answered
def free(key: str, pointer: int) -> None:
    """Give it back."""
    _engines[key].free(pointer)


@answered
def memory(key: str) -> tuple[int, int]:
    """Return free and total memory of a device, in bytes."""
    return _engines[key].memory_bytes()


@answered
def fill(key: str, pointer: int, byte: int, size_bytes: int) -> None:
    """Set every byte of device memory."""
    _engines[key].fill(pointer, byte, size_bytes)


@answered
def attach(number: int, pid: int, descriptor: int, key: str, pins: bool) -> str:
    """Map a segment of the caller and pin it for a device. Answers why it is not pinned, or nothing."""
    if number not in _segments:
        _segments[number] = Segment.open_at(Place(pid=pid, descriptor=descriptor))
    segment = _segments[number]
    if not pins:
        return "it was not to be"
    # CUDA and HIP pin for the process, for all of its devices (PORTABLE); a simulated device does, too.
    if any(each == number and _engines[other].runtime == _engines[key].runtime for each, other in _pinned):
        return ""
    try:
        _engines[key].register(segment.address, segment.size_bytes)
    except EngineError as error:
        if error.kind in {"lost", "deadline", "closed"}:
            raise
        return str(error)
    _pinned.add((number, key))
    return ""


@answered
def detach(number: int) -> None:
    """Unpin a segment and unmap it."""
    segment = _segments.pop(number, None)
    failed: EngineError | None = None
    for each, key in [pair for pair in _pinned if pair[0] == number]:
        _pinned.discard((each, key))
        try:
            if segment is not None:
                _engines[key].unregister(segment.address)
        except EngineError as error:
            failed = failed or error
    if segment is not None:
        segment.close()
    if failed is not None:
        raise failed


@answered
def move(key: str, number: int, slot: int, pointer: int, size_bytes: int, to_host: bool, wait_s: float) -> float | None:
    """Copy between a slot and device memory. Answers with the device's time in seconds, where it keeps one."""
    engine, address = _engines[key], _segments[number].slot_address(slot)
    if to_host:
        engine.to_host(address, pointer, 0, _COPY)
        engine.to_host(address, pointer, size_bytes, _COPY + 1)
    else:
        engine.from_host(pointer, address, 0, _COPY)
        engine.from_host(pointer, address, size_bytes, _COPY + 1)
    engine.wait(_COPY + 1, wait_s)
    return engine.elapsed_s(_COPY, _COPY + 1)


@answered
def local(key: str, target: int, source: int, size_bytes: int, wait_s: float) -> float | None:
    """Copy within a device. Answers with the device's time in seconds."""
    engine = _engines[key]
    engine.on_device(target, source, 0, _COPY)
    engine.on_device(target, source, size_bytes, _COPY + 1)
    engine.wait(_COPY + 1, wait_s)
    return engine.elapsed_s(_COPY, _COPY + 1)


@answered
def peer(key: str, other: str) -> bool:
    """Say whether the runtime lets a device reach another of this process."""
    return _engines[key].peer(str(_engines[other].pci_address))


@answered
def straight(key: str, other: str, target: int, source: int, size_bytes: int, wait_s: float) -> float | None:
    """Copy straight to a peer. Answers with the device's time in seconds."""
    engine, address = _engines[key], str(_engines[other].pci_address)
    engine.to_peer(address, target, source, 0, _COPY)
    engine.to_peer(address, target, source, size_bytes, _COPY + 1)
    engine.wait(_COPY + 1, wait_s)
    return engine.elapsed_s(_COPY, _COPY + 1)


@answered
def one(role: str, key: str, number: int, pointer: int, size_bytes: int, pace: dict[str, Any]) -> dict[str, Any]:
    """Be one side of a staged copy."""
    return _side(role, key, number, pointer, size_bytes, pace)


@answered
def both(
    sending: tuple[str, int], receiving: tuple[str, int], number: int, size_bytes: int, pace: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Be both sides of a staged copy between two devices of this process: (key, pointer) of each."""
    found: dict[str, dict[str, Any]] = {}
    failed: list[BaseException] = []

    def work(role: str, key: str, pointer: int) -> None:
        try:
            found[role] = _side(role, key, number, pointer, size_bytes, pace)
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread that was called
            failed.append(error)

    thread = threading.Thread(target=work, args=("sender", *sending), name="gpucoexist-sender", daemon=True)
    thread.start()
    work("receiver", *receiving)
    thread.join()
    if failed:
        raise min(failed, key=lambda error: not isinstance(error, EngineError))
    return found["sender"], found["receiver"]


def _side(role: str, key: str, number: int, pointer: int, size_bytes: int, pace: dict[str, Any]) -> dict[str, Any]:
    side = ring.send if role == "sender" else ring.receive
    passed = asdict(side(_engines[key], _segments[number], pointer, size_bytes, ring.Pace(**pace)))
    return {**passed, "wake_ups_s": list(passed["wake_ups_s"])}


@answered
def close() -> None:
    """Unpin, unmap and close everything. Raises the first error, after all was tried."""
    failed: TransferError | None = None
    for key in list(_engines):
        try:
            _engines.pop(key).close()  # it unpins what it pinned
        except TransferError as error:
            failed = failed or error
    _pinned.clear()
    for number in list(_segments):
        _segments.pop(number).close()
    if failed is not None:
        raise failed


@answered
def borrow(number: int, key: str, found: tuple[str, str, str | None], folders: list[str], arguments: Any) -> Any:
    """Call a function of the caller and keep the array that it returns: its pointer, size and type."""
    array = _call(found, folders, arguments)
    engine = _engines[key]
    pointer, size_bytes = memory_of(array, engine.runtime)
    number_there = getattr(engine, "_device", None)
    if number_there is not None:
        check_device(array, engine.runtime, number_there)
    engine.settle()
    if isinstance(engine, HostEngine):
        engine.adopt(pointer, size_bytes)  # its copies know only its own memory
    _kept[number] = array
    return pointer, size_bytes, f"{type(array).__module__}.{type(array).__qualname__}"


def release(number: int) -> None:
    """Let go of an array that was kept."""
    _kept.pop(number, None)


def call(key: str, found: tuple[str, str, str | None], folders: list[str], arguments: Any) -> Any:
    """Call a function of the caller; {BUFFER: (number, pointer, size)} becomes the array, or a view of the memory."""
    given = [_given(each) for each in arguments]
    try:
        return _call(found, folders, given)
    finally:
        _engines[key].settle()  # what it queued has ended before the next copy


def _given(argument: Any) -> Any:
    if isinstance(argument, dict) and set(argument) == {BUFFER}:
        number, pointer, size_bytes = argument[BUFFER]
        return _kept[number] if number in _kept else DeviceView(pointer, size_bytes)
    return argument


def _call(found: tuple[str, str, str | None], folders: list[str], arguments: Any) -> Any:
    lookup: Any = sys.modules["_gpucoexist_child.lookup"]
    lookup.extend_path(list(folders))
    return lookup.find_function(*found)(*arguments)

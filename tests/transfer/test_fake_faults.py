"""Every fault that can be ordered shows itself as ordered, through the real clients and while they run."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.client import Died, Refused

if TYPE_CHECKING:
    from tests.fakes.client import Driven
    from tests.fakes.machine import Order

PAGE = 4096
SIZE = 5 * PAGE + 123
ROOM = 6 * PAGE  # a red zone behind what is copied

SENT = random.Random(1).randbytes(ROOM)
EARLIER = random.Random(2).randbytes(ROOM)
BEFORE = random.Random(3).randbytes(ROOM)  # what the destination held

NEW, OLD, OLDER = SENT[:SIZE], BEFORE[:SIZE], EARLIER[:SIZE]


def flipped(data: bytes, at: int, mask: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= mask
    return bytes(changed)


# Action -> what is then in the destination, red zone included.
CORRUPTIONS: dict[str, bytes] = {
    "flip 0": flipped(NEW, 0, 1) + BEFORE[SIZE:],
    "flip 5000 0x82": flipped(NEW, 5000, 0x82) + BEFORE[SIZE:],
    "flip -1": flipped(NEW, SIZE - 1, 1) + BEFORE[SIZE:],
    "drop": BEFORE,
    "stale": OLDER + BEFORE[SIZE:],
    "torn": NEW[: 5 * PAGE] + BEFORE[5 * PAGE :],
    "torn 1": NEW[:PAGE] + OLD[PAGE : 2 * PAGE] + NEW[2 * PAGE :] + BEFORE[SIZE:],
    "shift 7": OLD[:7] + NEW[:-7] + BEFORE[SIZE:],
    "shift -4096": NEW[PAGE:] + BEFORE[SIZE - PAGE :],
    "zeros": bytes(SIZE) + BEFORE[SIZE:],
    "zeros 4096 4096": NEW[:PAGE] + bytes(PAGE) + NEW[2 * PAGE :] + BEFORE[SIZE:],
    "overrun 24": SENT[: SIZE + 24] + BEFORE[SIZE + 24 :],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One direction of a client's: how to put bytes at its ends, copy, and read the destination."""

    prepare: Callable[[bytes, bytes], None]
    copy: Callable[[], None]
    result: Callable[[], bytes]


def way(driven: Driven, direction: str) -> Way:
    staging, host = driven.host(SENT), driven.host(SENT)
    pointer, other = driven("allocate", ROOM), driven("allocate", ROOM)
    for address in (staging, host):
        driven("register", address, ROOM)
    stream = driven("stream")

    def put(target: int, data: bytes) -> None:
        if target == host:
            driven.write(host, data)
        else:
            driven.write(staging, data)
            driven("to_device", target, staging, ROOM)

    def get(source: int) -> bytes:
        if source != host:
            driven("to_host", staging, source, ROOM)
        return driven.read(host if source == host else staging, ROOM)

    function, target, source = {
        "h2d": ("to_device", pointer, host),
        "d2h": ("to_host", host, pointer),
        "d2d": ("on_device", other, pointer),
    }[direction]

    def prepare(of_source: bytes, of_target: bytes) -> None:
        put(source, of_source)
        put(target, of_target)

    def copy() -> None:
        driven(function, target, source, SIZE, stream)
        driven("wait", stream)

    return Way(prepare=prepare, copy=copy, result=lambda: get(target))


def order(driven: Driven, direction: str, action: str, *, at: int = 1, each: bool = False) -> Order:
    return driven.machine.order(f"{driven.vendor}.0.copy.{direction}", action, at=at, each=each)


@pytest.mark.parametrize("direction", ["h2d", "d2h", "d2d"])
def test_each_corruption_is_as_ordered(driven: Driven, direction: str) -> None:
    path = way(driven, direction)
    for action, expected in CORRUPTIONS.items():
        if action == "stale":
            path.prepare(EARLIER, bytes(ROOM))
            ordered = order(driven, direction, action)
            path.copy()
            assert ordered.struck == 0, "nothing older is known of the source yet"
            path.prepare(SENT, BEFORE)
        else:
            path.prepare(SENT, BEFORE)
            ordered = order(driven, direction, action)
        path.copy()
        assert ordered.struck == 1, action
        assert path.result() == expected, action
        path.prepare(SENT, BEFORE)
        path.copy()
        assert path.result() == NEW + BEFORE[SIZE:], f"{action} struck again"
        ordered.withdraw()


def test_noise_is_nothing_that_was_sent(driven: Driven) -> None:
    path = way(driven, "d2h")
    path.prepare(SENT, BEFORE)
    order(driven, "d2h", "noise")
    path.copy()
    words = [path.result()[at : at + 8] for at in range(0, SIZE - 8, 8)]
    assert not any(word in SENT or word in BEFORE for word in words)
    assert len(set(words)) == len(words)


def test_the_third_copy_and_each_from_the_second(driven: Driven) -> None:
    path = way(driven, "d2h")
    path.prepare(SENT, BEFORE)

    def wrong() -> list[bool]:
        results = []
        for _copy in range(4):
            path.copy()
            results.append(path.result()[:SIZE] != NEW)
        return results

    third = order(driven, "d2h", "flip 9", at=3)
    assert wrong() == [False, False, True, False]
    assert (third.seen, third.struck) == (4, 1)
    each = order(driven, "d2h", "flip 9", at=2, each=True)
    assert wrong() == [False, True, True, True]
    assert each.struck == 3
    each.withdraw()
    assert wrong() == [False] * 4


def test_an_order_waits_for_a_copy_that_it_fits(driven: Driven) -> None:
    path = way(driven, "h2d")
    path.prepare(SENT, BEFORE)
    ordered = order(driven, "h2d", f"flip {SIZE}")
    path.copy()
    assert ordered.struck == 0
    path.prepare(SENT, BEFORE)
    assert ordered.struck == 1, "the copy that prepared the target was larger"
    assert path.result() == flipped(BEFORE, SIZE, 1)


def test_other_devices_and_directions_stay_well(driven: Driven) -> None:
    path = way(driven, "h2d")
    for key in ("0.copy.d2h", "0.copy.d2d", "1.copy.h2d"):
        driven.machine.order(f"{driven.vendor}.{key}", "zeros", each=True)
    path.prepare(SENT, BEFORE)
    path.copy()
    for key in ("0.copy.d2h", "0.copy.d2d", "1.copy.h2d"):
        driven.machine.put({f"{driven.vendor}.{key}": None})
    assert path.result() == NEW + BEFORE[SIZE:]


def test_a_peer_that_says_yes_and_writes_zeros(driven: Driven) -> None:
    buffer, source = driven.host(SENT), driven("allocate", ROOM)
    driven("to_device", source, buffer, ROOM)
    driven("use", 1)
    target = driven("allocate", ROOM)
    driven("enable_peer", 0)
    lie = driven.machine.order(f"{driven.vendor}.0.copy.peer.1", "zeros", each=True)
    assert driven("can_access", 1, 0)
    driven("to_peer", target, 1, source, 0, ROOM)
    driven("wait")
    driven("to_host", buffer, target, ROOM)
    assert driven.read(buffer, ROOM) == bytes(ROOM)
    driven("disable_peer", 0)
    driven("to_peer", target, 1, source, 0, ROOM)
    driven("wait")
    driven("to_host", buffer, target, ROOM)
    assert driven.read(buffer, ROOM) == SENT, "through host memory it is right"
    assert lie.struck == 1


def test_a_copy_that_hangs_goes_on_when_the_order_is_withdrawn(driven: Driven) -> None:
    path = way(driven, "h2d")
    path.prepare(SENT, BEFORE)
    held = order(driven, "h2d", "hang")
    host, pointer = driven.host(SENT), driven("allocate", ROOM)
    driven("register", host, ROOM)
    event, stream = driven("event"), driven("stream")
    driven("to_device", pointer, host, ROOM, stream)
    driven("record", event, stream)
    assert driven.refusal("happened", event) == driven.status("CUDA_ERROR_NOT_READY", "hipErrorNotReady")
    held.withdraw()
    driven("wait_event", event)
    driven("to_host", host, pointer, ROOM)
    assert driven.read(host, ROOM) == SENT


@pytest.mark.parametrize("name", ["unknown", "launch_failure", "illegal_address"])
def test_a_device_lost_in_the_middle_is_lost_for_every_later_call(driven: Driven, name: str) -> None:
    code, cuda, hip = {
        "unknown": (999, "CUDA_ERROR_UNKNOWN", "hipErrorUnknown"),
        "launch_failure": (719, "CUDA_ERROR_LAUNCH_FAILED", "hipErrorLaunchFailure"),
        "illegal_address": (700, "CUDA_ERROR_ILLEGAL_ADDRESS", "hipErrorIllegalAddress"),
    }[name]
    lost = driven.status(cuda, hip)
    host, pointer = driven.host(SENT), driven("allocate", ROOM)
    driven("register", host, ROOM)
    event, stream = driven("event"), driven("stream")
    ordered = order(driven, "h2d", f"lost {code}", at=2)
    for _copy in range(3):
        driven.refusal("to_device", pointer, host, ROOM, stream)
    assert driven.refusal("wait", stream) == lost
    assert ordered.struck == 1
    calls: list[tuple[Any, ...]] = [
        ("wait", stream),
        ("is_done", stream),
        ("record", event, stream),
        ("happened", event),
        ("to_host", host, pointer, ROOM),
        ("allocate", PAGE),
        ("free", pointer),
        ("memory",),
        ("unregister", host),
    ]
    ordered.withdraw()
    assert [driven.refusal(*call) for call in calls] == [lost] * len(calls)
    driven.refusal("use", 1)
    if driven.runtime == "hip" or driven.refusal("memory") == "":
        driven("allocate", PAGE)
    assert driven.read(host, ROOM) == SENT, "host memory is still there"


def test_what_waits_for_a_hanging_copy_hears_that_the_device_is_lost(driven: Driven) -> None:
    host, pointer = driven.host(SENT), driven("allocate", ROOM)
    driven("register", host, ROOM)
    stream = driven("stream")
    order(driven, "h2d", "hang")
    driven("to_device", pointer, host, ROOM, stream)
    driven.client.send(f"{driven.runtime}.wait", stream)
    driven.machine.put({f"{driven.vendor}.0.lost": 719})
    lost = driven.status("CUDA_ERROR_LAUNCH_FAILED", "hipErrorLaunchFailure")
    with pytest.raises(Refused, match=f"^{lost}$"):
        driven.client.answer()


def test_functions_fail_at_the_call_that_was_ordered(driven: Driven) -> None:
    function = driven.status("cuMemAlloc", "hipMalloc")
    out_of_memory = driven.status("CUDA_ERROR_OUT_OF_MEMORY", "hipErrorOutOfMemory")
    ordered = driven.machine.order(f"{driven.runtime}.0.fault.{function}", "status 2", at=2)
    assert [driven.refusal("allocate", PAGE) for _call in range(3)] == ["", out_of_memory, ""]
    assert ordered.struck == 1
    register = driven.status("cuMemHostRegister", "hipHostRegister")
    driven.machine.order(f"{driven.runtime}.fault.{register}", "status 2", each=True)
    assert driven.refusal("register", driven.host(SENT), ROOM) == out_of_memory


@pytest.mark.parametrize(("action", "status"), [("kill", -9), ("segv", -11)])
def test_the_client_dies_at_the_third_copy(driven: Driven, action: str, status: int) -> None:
    function = driven.status("cuMemcpyHtoDAsync", "hipMemcpyAsync")
    driven.machine.order(f"{driven.runtime}.0.fault.{function}", action, at=3)
    host, pointer, stream = driven.host(SENT), driven("allocate", ROOM), driven("stream")
    driven("to_device", pointer, host, ROOM, stream)
    driven("to_device", pointer, host, ROOM, stream)
    with pytest.raises(Died) as died:
        driven("to_device", pointer, host, ROOM, stream)
    assert died.value.status == status


@pytest.mark.parametrize(("action", "status"), [("kill", -9), ("segv", -11)])
def test_the_client_dies_while_a_copy_is_under_way(driven: Driven, action: str, status: int) -> None:
    order(driven, "h2d", action, at=2)
    host, pointer = driven.host(SENT), driven("allocate", ROOM)
    driven("to_device", pointer, host, ROOM)
    with pytest.raises(Died) as died:
        driven("to_device", pointer, host, ROOM)
    assert died.value.status == status

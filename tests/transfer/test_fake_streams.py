"""Streams, events and rates of the fake drivers, through the real cuda-bindings and rocm-bindings-hip.

A copy that hangs until its order is withdrawn proves what waits for what; nothing here sleeps, or fails by being slow.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.fakes.client import Driven

PAGE = 4096


def some_bytes(size_bytes: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size_bytes)


def test_streams_keep_order_and_events_have_times(driven: Driven) -> None:
    data = some_bytes(1 << 20)
    driven.machine.put({f"{driven.vendor}.0.h2d_gbps": 0.1})
    sent = driven.host(data)
    driven("register", sent, len(data))
    stream, pointer = driven("stream"), driven("allocate", len(data))
    first, last = driven("event"), driven("event")
    driven("record", first, stream)
    driven("to_device", pointer, sent, len(data), stream)
    driven("record", last, stream)
    for number in (1, 2, 3):
        driven("call_later", stream, number)
    driven("wait_event", last)
    driven("wait", stream)
    assert driven("called") == [1, 2, 3]
    # 2**20 bytes at 0.1 GB/s: never sooner, and what a busy machine adds is not the fake's.
    assert driven("elapsed_ms", first, last) >= 10.48
    driven.machine.put({f"{driven.vendor}.0.h2d_gbps": 0.05})
    driven("record", first, stream)
    driven("to_device", pointer, sent, len(data), stream)
    driven("record", last, stream)
    driven("wait", stream)
    assert driven("elapsed_ms", first, last) >= 20.97, "a rate that changes counts from the next copy on"


def test_one_engine_takes_one_copy_at_a_time(driven: Driven) -> None:
    driven.machine.put({f"{driven.vendor}.0.h2d_gbps": 0.1})
    size_bytes = 1 << 20
    sent = driven.host(some_bytes(size_bytes))
    driven("register", sent, size_bytes)
    streams = [driven("stream") for _ in range(3)]
    pointers = [driven("allocate", size_bytes) for _ in streams]
    events = [driven("event") for _ in range(4)]
    driven("record", events[0], streams[0])
    for stream, pointer in zip(streams, pointers, strict=True):
        driven("to_device", pointer, sent, size_bytes, stream)
    for event, stream in zip(events[1:], streams, strict=True):
        driven("record", event, stream)
        driven("wait", stream)
    assert max(driven("elapsed_ms", events[0], event) for event in events[1:]) >= 3 * 10.48


def test_a_pageable_copy_is_there_when_the_call_returns(driven: Driven) -> None:
    driven.machine.put({f"{driven.vendor}.0.h2d_gbps": 0.1, f"{driven.vendor}.0.d2h_gbps": 0.1})
    data = some_bytes(PAGE * 16)
    sent, got = driven.host(data), driven.host(bytes(len(data)))
    stream, pointer = driven("stream"), driven("allocate", len(data))
    driven("to_device", pointer, sent, len(data), stream)
    driven.write(sent, bytes(len(data)))
    driven("to_host", got, pointer, len(data), stream)
    assert driven.read(got, len(data)) == data
    driven("is_done", stream)


def test_queries_say_not_ready_until_the_copy_is_done(driven: Driven) -> None:
    not_ready = driven.status("CUDA_ERROR_NOT_READY", "hipErrorNotReady")
    held = driven.machine.order(f"{driven.vendor}.0.copy.h2d", "hang")
    sent = driven.host(some_bytes(PAGE))
    driven("register", sent, PAGE)
    stream, event, pointer = driven("stream"), driven("event"), driven("allocate", PAGE)
    assert driven.refusal("elapsed_ms", event, event) == driven.status(
        "CUDA_ERROR_INVALID_HANDLE", "hipErrorInvalidHandle"
    ), "it was never recorded"
    driven("to_device", pointer, sent, PAGE, stream)
    driven("record", event, stream)
    assert driven.refusal("happened", event) == not_ready
    assert driven.refusal("is_done", stream) == not_ready
    assert driven.refusal("elapsed_ms", event, event) == not_ready
    held.withdraw()
    driven("wait_event", event)
    driven("happened", event)
    driven("wait", stream)
    driven("is_done", stream)
    assert driven("elapsed_ms", event, event) == 0


def test_a_stream_waits_for_an_event_of_another(driven: Driven) -> None:
    not_ready = driven.status("CUDA_ERROR_NOT_READY", "hipErrorNotReady")
    held = driven.machine.order(f"{driven.vendor}.0.copy.h2d", "hang")
    data = some_bytes(PAGE)
    sent, got = driven.host(data), driven.host(bytes(PAGE))
    driven("register", sent, PAGE)
    driven("register", got, PAGE)
    pointer, event = driven("allocate", PAGE), driven("event")
    one, other = driven("stream"), driven("stream")
    driven("to_device", pointer, sent, PAGE, one)
    driven("record", event, one)
    driven("await_event", other, event)
    driven("to_host", got, pointer, PAGE, other)
    assert driven.refusal("is_done", other) == not_ready
    held.withdraw()
    driven("wait", other)
    assert driven.read(got, PAGE) == data


@pytest.mark.parametrize("blocking", [True, False])
def test_the_default_stream_and_blocking_ones_wait_for_each_other(driven: Driven, blocking: bool) -> None:
    not_ready = driven.status("CUDA_ERROR_NOT_READY", "hipErrorNotReady")
    held = driven.machine.order(f"{driven.vendor}.0.copy.h2d", "hang")
    sent = driven.host(some_bytes(PAGE))
    driven("register", sent, PAGE)
    pointer, event = driven("allocate", PAGE), driven("event")
    stream, bystander = driven.client(f"{driven.runtime}.stream"), driven("stream")
    if not blocking:
        driven("close_stream", stream)
        stream = driven("stream_apart")
    driven("to_device", pointer, sent, PAGE, stream)
    driven("fill", pointer, 7, PAGE)
    driven("record", event)
    if blocking:
        assert driven.refusal("happened", event) == not_ready, "the default stream follows the blocking one"
        driven("fill", pointer, 8, PAGE, bystander)
        assert driven.refusal("is_done", bystander) == not_ready, "and blocking ones follow the default stream"
    else:
        driven("wait_event", event)
        assert driven.refusal("is_done", stream) == not_ready
    held.withdraw()
    for each in (stream, 0, bystander):
        driven("wait", each)


def test_each_thread_has_a_stream_of_its_own(driven: Driven) -> None:
    per_thread = 2
    data = some_bytes(PAGE)
    held = driven.machine.order(f"{driven.vendor}.0.copy.h2d", "hang")
    host, pointer = driven.host(data), driven("allocate", PAGE)
    driven("register", host, PAGE)
    driven("to_device", pointer, host, PAGE, per_thread)
    assert driven.refusal("is_done", per_thread) == driven.status("CUDA_ERROR_NOT_READY", "hipErrorNotReady")
    driven("is_done", driven("stream"))
    held.withdraw()
    driven("to_host", host, pointer, PAGE, per_thread)
    driven("wait", per_thread)
    assert driven.read(host, PAGE) == data


def test_memory_registered_for_one_device_is_pageable_for_another(driven: Driven) -> None:
    size_bytes = 1 << 20
    driven.machine.put({f"{driven.vendor}.1.h2d_gbps": size_bytes / 0.2 / 1e9})
    here, portable = driven.host(bytes(size_bytes)), driven.host(bytes(size_bytes))
    driven("register_here", here, size_bytes)
    driven("register", portable, size_bytes)
    driven("use", 1)
    stream, pointer = driven("stream"), driven("allocate", size_bytes)
    driven("to_device", pointer, here, size_bytes, stream)
    driven("is_done", stream)
    held = driven.machine.order(f"{driven.vendor}.1.copy.h2d", "hang")
    driven("to_device", pointer, portable, size_bytes, stream)
    assert driven.refusal("is_done", stream) == driven.status("CUDA_ERROR_NOT_READY", "hipErrorNotReady")
    held.withdraw()
    driven("wait", stream)

"""The real cuda-bindings and rocm-bindings-hip on the fakes: devices, memory, copies, peers, contexts, errors."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from tests.fakes.client import Died, Refused
from tests.fakes.gpus import AMD_GPUS, NVIDIA_GPUS

if TYPE_CHECKING:
    from tests.fakes.client import Driven

PAGE = 4096


def some_bytes(size_bytes: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size_bytes)


def test_devices_are_those_of_the_description(driven: Driven) -> None:
    found = [driven("describe", device) for device in range(driven("start"))]
    if driven.runtime == "cuda":
        assert [each["pci_address"] for each in found] == [gpu.pci_address for gpu in NVIDIA_GPUS]
        assert [each["name"] for each in found] == [gpu.name for gpu in NVIDIA_GPUS]
        assert [each["memory_total_bytes"] for each in found] == [gpu.memory_total_bytes for gpu in NVIDIA_GPUS]
        assert [each["target"] for each in found] == ["8.9", "8.9"]
        assert found[0]["uuid"] == "11111111222233334444555555555555"
    else:
        assert [each["pci_address"] for each in found] == [gpu.pci_address for gpu in AMD_GPUS]
        assert [each["name"] for each in found] == [gpu.name for gpu in AMD_GPUS]
        assert [each["memory_total_bytes"] for each in found] == [gpu.memory_total_bytes for gpu in AMD_GPUS]
        assert [each["target"] for each in found] == ["gfx1100", "gfx90a"]
        assert found[0]["uuid"] == "d40123456789abcd"


@pytest.mark.parametrize("kind", ["pageable", "registered", "pinned"])
def test_a_round_trip_brings_back_what_was_sent(driven: Driven, kind: str) -> None:
    data = some_bytes(5 * PAGE + 123)
    if kind == "pinned":
        sent, got = driven("pinned", len(data)), driven("pinned", len(data))
        driven.write(sent, data)
    else:
        sent, got = driven.host(data), driven.host(bytes(len(data)))
    if kind == "registered":
        driven("register", sent, len(data))
        driven("register", got, len(data))
    stream, pointer = driven("stream"), driven("allocate", len(data))
    driven("to_device", pointer, sent, len(data), stream)
    driven("to_host", got, pointer, len(data), stream)
    driven("wait", stream)
    assert driven.read(got, len(data)) == data
    assert driven.machine.copied(f"{driven.vendor}.0.h2d") == (1, len(data))
    assert driven.machine.copied(f"{driven.vendor}.0.d2h") == (1, len(data))


def test_parts_copies_on_the_device_and_fills(driven: Driven) -> None:
    data = some_bytes(4 * PAGE)
    buffer, first, second = driven.host(data), driven("allocate", len(data)), driven("allocate", len(data))
    driven("to_device", first, buffer, len(data))
    driven("fill", second, 0x5A, len(data))
    driven("on_device", second + 100, first + 1000, 5000)
    driven("to_host", buffer, second, len(data))
    fill = b"\x5a"
    assert driven.read(buffer, len(data)) == fill * 100 + data[1000:6000] + fill * (len(data) - 5100)


def test_device_memory_cannot_be_read_by_the_host(driven: Driven) -> None:
    pointer = driven("allocate", PAGE)
    with pytest.raises(Died) as died:
        driven.read(pointer, 1)
    assert died.value.status == -11


def test_memory_is_counted_and_runs_out(driven: Driven) -> None:
    free_bytes, total_bytes = driven("memory")
    pointer = driven("allocate", 1 << 20)
    assert driven("memory") == [free_bytes - (1 << 20), total_bytes]
    out_of_memory = driven.status("CUDA_ERROR_OUT_OF_MEMORY", "hipErrorOutOfMemory")
    assert driven.refusal("allocate", total_bytes) == out_of_memory
    driven("free", pointer)
    assert driven("memory") == [free_bytes, total_bytes]


def test_what_is_wrong_has_the_vendors_names(driven: Driven) -> None:
    invalid = driven.status("CUDA_ERROR_INVALID_VALUE", "hipErrorInvalidValue")
    handle = driven.status("CUDA_ERROR_INVALID_HANDLE", "hipErrorInvalidHandle")
    registered = driven.status("CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "hipErrorHostMemoryAlreadyRegistered")
    not_registered = driven.status("CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "hipErrorHostMemoryNotRegistered")
    buffer, pointer = driven.host(bytes(2 * PAGE)), driven("allocate", PAGE)
    assert driven.refusal("to_device", pointer, buffer, PAGE + 1) == invalid
    assert driven.refusal("to_device", buffer, buffer, PAGE) == invalid
    assert driven.refusal("to_host", buffer, buffer, PAGE) == invalid
    driven("register", buffer, PAGE)
    assert driven.refusal("register", buffer, PAGE) == registered
    assert driven.refusal("register", buffer, 2 * PAGE) == registered
    assert driven.refusal("to_device", pointer, buffer + 8, PAGE) == invalid, "only a part of it is registered"
    driven("unregister", buffer)
    assert driven.refusal("unregister", buffer) == not_registered
    assert driven.refusal("register", 8 * PAGE, PAGE) == invalid, "nothing is mapped there"
    driven("free", pointer)
    assert driven.refusal("free", pointer) == invalid
    stream, event = driven("stream"), driven("event")
    driven("close_stream", stream)
    driven("close_event", event)
    assert driven.refusal("wait", stream) == handle
    assert driven.refusal("record", event) == handle
    assert driven.refusal("use", 2) == driven.status("CUDA_ERROR_INVALID_DEVICE", "hipErrorInvalidDevice")
    names = [driven("error", code)[0] for code in (0, 2, 712, 719, 999)]
    assert names == (
        ["CUDA_SUCCESS", "CUDA_ERROR_OUT_OF_MEMORY", registered, "CUDA_ERROR_LAUNCH_FAILED", "CUDA_ERROR_UNKNOWN"]
        if driven.runtime == "cuda"
        else ["hipSuccess", "hipErrorOutOfMemory", registered, "hipErrorLaunchFailure", "hipErrorUnknown"]
    )


@pytest.mark.parametrize("driven", ["hip"], indirect=True)
def test_hip_keeps_the_last_failure(driven: Driven) -> None:
    driven.refusal("free", 4096)
    driven("memory")
    assert driven("last_error") == "hipErrorInvalidValue"
    assert driven("last_error") == "hipSuccess"


def test_peers_copy_directly_once_access_is_enabled(driven: Driven) -> None:
    data = some_bytes(3 * PAGE)
    buffer = driven.host(data)
    source = driven("allocate", len(data))
    driven("to_device", source, buffer, len(data))
    driven("use", 1)
    target = driven("allocate", len(data))
    assert driven("can_access", 0, 1)
    driven("to_peer", target, 1, source, 0, len(data))
    driven("wait")
    staged = [driven.machine.copied(f"{driven.vendor}.{way}") for way in ("0.d2h", "1.h2d", "0.peer.1")]
    assert staged == [(1, len(data)), (1, len(data)), (0, 0)], "without access the way leads through host memory"
    driven("enable_peer", 0)
    assert driven.refusal("enable_peer", 0) == driven.status(
        "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "hipErrorPeerAccessAlreadyEnabled"
    )
    driven("fill", target, 0, len(data))
    driven("to_peer", target, 1, source, 0, len(data))
    driven("wait")
    assert driven.machine.copied(f"{driven.vendor}.0.peer.1") == (1, len(data))
    driven.write(buffer, bytes(len(data)))
    driven("to_host", buffer, target, len(data))
    assert driven.read(buffer, len(data)) == data
    driven("disable_peer", 0)
    assert driven.refusal("disable_peer", 0) == driven.status(
        "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", "hipErrorPeerAccessNotEnabled"
    )


def test_devices_that_are_no_peers(driven: Driven) -> None:
    driven.machine.put({f"{driven.vendor}.p2p.0.1": None})
    driven("use", 1)
    driven("use", 0)
    assert not driven("can_access", 0, 1)
    assert driven.refusal("enable_peer", 1) == driven.status(
        "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "hipErrorPeerAccessUnsupported"
    )


def test_contexts_are_seen(driven: Driven) -> None:
    """`driven` has used its first device: CUDA's primary context is there, HIP's comes with the first work."""
    first = [(driven.client.pid, f"{driven.vendor}.0")]
    for device in range(driven("start")):
        driven("describe", device)
    assert driven.machine.contexts() == (first if driven.runtime == "cuda" else [])
    driven("allocate", PAGE)
    assert driven.machine.contexts() == first
    driven("use", 1)
    driven("use", 0)
    driven("use", 1)
    driven("allocate", PAGE)
    assert driven.machine.contexts() == [*first, (driven.client.pid, f"{driven.vendor}.1")]


def test_a_forked_child_is_refused(driven: Driven) -> None:
    refused = driven.client("host.fork_and", f"{driven.runtime}.memory")
    assert refused == driven.status("CUDA_ERROR_NOT_INITIALIZED", "hipErrorNotInitialized")


def test_copies_are_logged_when_that_is_asked(driven: Driven) -> None:
    sent, pointer = driven.host(bytes(PAGE)), driven("allocate", PAGE)
    name = driven.status("cuMemcpyHtoD", "hipMemcpy")
    driven("to_device", pointer, sent, PAGE)
    assert driven.status("cuMemAlloc", "hipMalloc") in driven.machine.calls()
    assert name not in driven.machine.calls()
    driven.machine.put({"log": "all"})
    driven("to_device", pointer, sent, PAGE)
    assert driven.machine.calls().count(name) == 1


def test_no_copy_looks_at_the_file(driven: Driven) -> None:
    """Nothing but the word on the board says that the description has changed: a file changed behind it is not read."""
    sent, pointer = driven.host(bytes(PAGE)), driven("allocate", PAGE)
    driven("to_device", pointer, sent, PAGE)
    text = driven.machine.path.read_text()
    driven.machine.path.write_text(f"{text}{driven.runtime}.fault.cuMemcpyHtoD = status 2\n")
    with driven.machine.path.open("a") as file:
        file.write(f"{driven.vendor}.0.lost = 719\n")
    driven("to_device", pointer, sent, PAGE)
    driven.machine.board.describe_again()
    with pytest.raises(Refused):
        driven("to_device", pointer, sent, PAGE)

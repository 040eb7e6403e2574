"""Copies arrive whole whatever the route, the size and the vendors; what cannot be done is said before it is tried."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.errors import EngineError, TransferError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_gpucoexist.staging.service import Staging

SIZES = [1, 3, 4095, 65537, (9 << 20) + 13]


@pytest.fixture
def staging() -> Iterator[Staging]:
    pytest.importorskip("execnet", reason="needs execnet")
    from pytest_gpucoexist.staging.service import Staging

    with Staging() as service:
        yield service


def data_of(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


def copied(staging: Staging, source: Any, target: Any, size: int, **how: Any) -> Any:
    from pytest_gpucoexist.staging.memory import from_host, to_host

    with source.allocate(size) as given, target.allocate(size + 7) as taken:
        target.ask("fill", target.key, taken.pointer, 0xAA, size + 7)
        from_host(staging, data_of(size, size), given)
        result = staging.copy(given, taken, offsets=(0, 3), **how)
        assert to_host(staging, taken).tobytes() == b"\xaa" * 3 + data_of(size, size) + b"\xaa" * 4
    return result


@pytest.mark.parametrize("ways", [("nvidia", "amd"), ("amd", "nvidia")], ids="->".join)
def test_between_vendors(devices: Callable[..., Any], staging: Staging, ways: tuple[str, str]) -> None:
    (source,), (target,) = (devices(vendor) for vendor in ways)
    for size in SIZES:
        result = copied(staging, source, target, size)
        assert (result.route, result.notes, result.size_bytes) == ("staged", (), size)
    serial = copied(staging, source, target, 1 << 20, route="serial", chunk_bytes=1 << 16)
    assert (serial.route, serial.chunk_bytes) == ("staged", 1 << 16)


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_within_a_vendor(devices: Callable[..., Any], staging: Staging, vendor: str) -> None:
    first, second = devices(vendor, 2)
    assert first.visible == second.visible or first.runtime == "host"
    for size in SIZES:
        assert copied(staging, first, first, size).route == "local"
        assert copied(staging, first, second, size).route == "staged"
        peer = copied(staging, first, second, size, route="peer")
        assert (peer.route, peer.device_s is not None) == ("peer", True)
    staging.proven.add((first.key, second.key))
    assert copied(staging, first, second, 100).route == "peer"
    assert copied(staging, second, first, 100).route == "staged"


def test_what_cannot_be_copied(devices: Callable[..., Any], staging: Staging) -> None:
    (one,), (other,) = devices("nvidia"), devices("amd")
    with one.allocate(10) as given, other.allocate(5) as taken:
        with pytest.raises(TransferError, match=r"cannot copy 10 bytes at 0 of <DeviceBuffer of 5 bytes on amd"):
            staging.copy(given, taken)
        with pytest.raises(TransferError, match="no copy between them is local"):
            staging.copy(given, taken, 5, route="local")
        with pytest.raises(TransferError, match="not two devices of one process"):
            staging.copy(given, taken, 5, route="peer")
        with pytest.raises(TransferError, match="memory of another process"):
            other.run(str, given)
    with pytest.raises(TransferError, match="which was given back"):
        staging.copy(given, taken, 1)
    with pytest.raises(EngineError) as caught:
        one.allocate(1 << 60)
    assert caught.value.kind == "memory"
    assert caught.value.code == 2


def test_without_pinning_the_result_says_so(devices: Callable[..., Any]) -> None:
    from pytest_gpucoexist.staging.service import Staging

    (source,), (target,) = devices("nvidia"), devices("amd")
    with Staging(pin=False) as staging:
        result = copied(staging, source, target, 100_001)
    assert result.route == "copied"
    expected = [f"the memory between is not pinned for {each.key}: it was not to be" for each in (source, target)]
    assert list(result.notes) == expected

"""Whatever fails in a copy is named, comes within its deadline, and leaves nothing behind; what still works goes on."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("numpy", reason="needs NumPy")
pytest.importorskip("execnet", reason="needs execnet")

from pytest_gpucoexist.errors import (
    EngineError,
    GpuCoexistError,
    PeerError,
    VendorDeadlineError,
    VendorEndedError,
)
from pytest_gpucoexist.staging.service import Staging
from pytest_gpucoexist.staging.verified import verified_copy

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fakes.machine import FakeMachine


def refused(fake_gpus: FakeMachine, key: str, action: str, work: Callable[[], object]) -> GpuCoexistError:
    order = fake_gpus.order(key, action)
    with pytest.raises(GpuCoexistError) as caught:
        work()
    assert order.struck == 1
    order.withdraw()
    return caught.value


@pytest.mark.parametrize("side", ["nvidia", "amd"])
def test_a_device_that_is_lost_in_the_middle(
    devices_of_fakes: Callable[..., Any], fake_gpus: FakeMachine, side: str
) -> None:
    (source,), (target,) = devices_of_fakes("nvidia"), devices_of_fakes("amd")
    way = "d2h" if side == "nvidia" else "h2d"
    with Staging() as staging, source.allocate(1 << 20) as given, target.allocate(1 << 20) as taken:
        error = refused(fake_gpus, f"{side}.0.copy.{way}", "lost 719", lambda: staging.copy(given, taken))
        assert isinstance(error, EngineError)
        assert (error.kind, error.code) == ("lost", 719)
        assert f"{(source if side == 'nvidia' else target).key}" in str(error)
        fake_gpus.put({f"{side}.0.lost": None})


def test_no_memory_on_one_side(devices_of_fakes: Callable[..., Any], fake_gpus: FakeMachine) -> None:
    (source,) = devices_of_fakes("nvidia")
    error = refused(fake_gpus, "cuda.0.fault.cuMemAlloc", "status 2", lambda: source.allocate(1000))
    assert isinstance(error, EngineError)
    assert (error.kind, error.name) == ("memory", "CUDA_ERROR_OUT_OF_MEMORY")
    source.allocate(1000).close()


@pytest.mark.parametrize("side", ["nvidia", "amd"])
def test_memory_that_one_side_cannot_pin(
    devices_of_fakes: Callable[..., Any], fake_gpus: FakeMachine, side: str
) -> None:
    (source,), (target,) = devices_of_fakes("nvidia"), devices_of_fakes("amd")
    call = {"nvidia": "cuda.0.fault.cuMemHostRegister", "amd": "hip.0.fault.hipHostRegister"}[side]
    order = fake_gpus.order(call, "status 2", each=True)
    with Staging() as staging, source.allocate(1 << 20) as given, target.allocate(1 << 20) as taken:
        copied = staging.copy(given, taken)
        order.withdraw()
        assert copied.route == "copied"
        (note,) = copied.notes
        assert note.startswith(f"the memory between is not pinned for {(source if side == 'nvidia' else target).key}: ")
        found = verified_copy(staging, source, target, (65537,))
    assert (found.route, found.wrong) == ("copied", ())


def test_a_copy_that_hangs(devices_of_fakes: Callable[..., Any], fake_gpus: FakeMachine) -> None:
    (source,), (target,) = devices_of_fakes("nvidia"), devices_of_fakes("amd")
    with Staging(copy_s=0.5) as staging, source.allocate(1 << 20) as given, target.allocate(1 << 20) as taken:
        error = refused(fake_gpus, "amd.0.copy.h2d", "hang", lambda: staging.copy(given, taken))
    assert isinstance(error, EngineError)
    assert error.kind == "deadline"
    assert target.key in str(error)
    with pytest.raises(EngineError, match="is of no use to process") as again:
        target.allocate(1)
    assert again.value.kind == "closed"


@pytest.mark.parametrize("devices", ["simulated"], indirect=True)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("side", ["sender", "receiver"])
def test_a_process_that_is_killed_or_stopped(devices: Callable[..., Any], number: int, side: str) -> None:
    (source,), (target,) = devices("nvidia"), devices("amd")
    victim, other = (source, target) if side == "sender" else (target, source)
    with Staging(copy_s=0.3) as staging, source.allocate(1 << 20) as given, target.allocate(1 << 20) as taken:
        staging.copy(given, taken)
        os.kill(victim.pid, number)
        with pytest.raises((VendorEndedError, VendorDeadlineError)) as caught:
            staging.copy(given, taken)
        assert str(victim.pid) in str(caught.value)
        # The other side is not harmed.
        with other.allocate(100) as one, other.allocate(100) as two:
            assert staging.copy(one, two).route == "local"


def test_a_side_that_only_heard_of_it_is_not_blamed(
    devices_of_fakes: Callable[..., Any], fake_gpus: FakeMachine
) -> None:
    (source,), (target,) = devices_of_fakes("nvidia"), devices_of_fakes("amd")
    with Staging() as staging, source.allocate(1 << 20) as given, target.allocate(1 << 20) as taken:
        staging.copy(given, taken)
        error = refused(fake_gpus, "nvidia.0.copy.d2h", "segv", lambda: staging.copy(given, taken))
    assert isinstance(error, VendorEndedError)
    assert not isinstance(error, PeerError)
    assert error.signal == "SIGSEGV"

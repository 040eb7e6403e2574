"""The engines of CUDA and HIP on drivers without hardware: the contract, and what is the vendor's own."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.errors import EngineError
from tests.fakes.gpus import AMD_GPUS, NVIDIA_GPUS
from tests.transfer.engine_contract import Devices, EngineContract
from tests.transfer.remote import Remote

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fakes.machine import FakeMachine

LONG_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Vendor:
    """How a runtime and the description of its fake call things."""

    runtime: str
    scope: str
    addresses: tuple[str, str]
    prefix: str
    initialise: str
    register: str
    new_stream: str
    enable_peer: str
    masks: str


VENDORS = {
    "cuda": Vendor(
        runtime="cuda",
        scope="nvidia",
        addresses=(NVIDIA_GPUS[0].pci_address, NVIDIA_GPUS[1].pci_address),
        prefix="CUDA_ERROR_",
        initialise="cuInit",
        register="cuMemHostRegister_v2",
        new_stream="cuStreamCreate",
        enable_peer="cuCtxEnablePeerAccess",
        masks="CUDA_VISIBLE_DEVICES",
    ),
    "hip": Vendor(
        runtime="hip",
        scope="amd",
        addresses=(AMD_GPUS[0].pci_address, AMD_GPUS[1].pci_address),
        prefix="hipError",
        initialise="hipInit",
        register="hipHostRegister",
        new_stream="hipStreamCreateWithFlags",
        enable_peer="hipDeviceEnablePeerAccess",
        masks="HIP_VISIBLE_DEVICES",
    ),
}


@pytest.fixture(params=["cuda", "hip"])
def vendor(request: pytest.FixtureRequest) -> Vendor:
    return VENDORS[request.param]


@pytest.fixture
def environ(request: pytest.FixtureRequest, vendor: Vendor) -> dict[str, str]:
    found: dict[str, str] = request.getfixturevalue(f"fake_{vendor.runtime}")
    return found


@pytest.fixture
def child(environ: dict[str, str]) -> Iterator[Remote]:
    """A process that finds the runtime's library, and no other's."""
    with Remote(environ) as remote:
        yield remote


@pytest.fixture
def devices(vendor: Vendor, child: Remote, fake_gpus: FakeMachine) -> Iterator[Devices]:
    """Both devices of the vendor; nothing hangs any more when the test is over."""
    with contextlib.ExitStack() as orders:

        def slow() -> None:
            order = fake_gpus.order(f"{vendor.scope}.0.copy.d2h", "hang", each=True)
            orders.callback(order.withdraw)

        first, second = vendor.addresses
        yield Devices(
            bench=child,
            runtime=vendor.runtime,
            first=first,
            second=second,
            absent="0000:77:00.0",
            prefix=vendor.prefix,
            slow=slow,
        )


class TestRuntimeEngines(EngineContract):
    """The contract, in a child for each test."""


def test_the_library_answers_that_it_cannot_be_used(child: Remote, vendor: Vendor, fake_gpus: FakeMachine) -> None:
    fake_gpus.fault(f"{vendor.runtime}.{vendor.initialise}", "status 999")
    with pytest.raises(EngineError, match=rf"initialising lib.*: {vendor.initialise} answered") as caught:
        child.ask("open", vendor.runtime, vendor.addresses[0])
    assert (caught.value.call, caught.value.code, caught.value.kind) == (vendor.initialise, 999, "other")
    assert caught.value.name.lower().replace("_", "") in {"cudaerrorunknown", "hiperrorunknown"}


def test_a_device_that_a_mask_hides(environ: dict[str, str], vendor: Vendor) -> None:
    """The other one is found by its address, although its number is another now."""
    with Remote({**environ, vendor.masks: "1"}) as child:
        with pytest.raises(EngineError, match=rf"looking for {vendor.addresses[0]}") as caught:
            child.ask("open", vendor.runtime, vendor.addresses[0])
        assert caught.value.kind == "no-device"
        assert f"it sees 0 {vendor.addresses[1]}; masks: {vendor.masks}=1" in str(caught.value)
        number = child.ask("open", vendor.runtime, vendor.addresses[1])
        assert child.ask("engine", number, "memory_bytes")[1] > 0


def test_a_limit_of_locked_memory(child: Remote, vendor: Vendor, fake_gpus: FakeMachine) -> None:
    number = child.ask("open", vendor.runtime, vendor.addresses[0])
    fake_gpus.fault(f"{vendor.runtime}.{vendor.register.removesuffix('_v2')}", "status 2")
    with pytest.raises(EngineError, match=r"pinning 4096 bytes .*raise the limit of locked memory") as caught:
        child.ask("engine", number, "register", child.ask("memory", 4096), 4096)
    assert (caught.value.call, caught.value.kind) == (vendor.register, "memory")


def test_a_driver_that_denies_peers(child: Remote, vendor: Vendor, fake_gpus: FakeMachine) -> None:
    fake_gpus.put({f"{vendor.scope}.p2p.0.1": None})
    number = child.ask("open", vendor.runtime, vendor.addresses[0])
    assert child.ask("engine", number, "peer", vendor.addresses[1]) is False


def test_a_driver_that_cannot_enable_what_it_promised(child: Remote, vendor: Vendor, fake_gpus: FakeMachine) -> None:
    number = child.ask("open", vendor.runtime, vendor.addresses[0])
    fake_gpus.fault(f"{vendor.runtime}.{vendor.enable_peer}", "status 711")
    with pytest.raises(
        EngineError, match=rf"enabling access from .* to {vendor.addresses[1]}: {vendor.enable_peer}"
    ) as caught:
        child.ask("engine", number, "peer", vendor.addresses[1])
    assert (caught.value.code, caught.value.kind) == (711, "peer")
    fake_gpus.fault(f"{vendor.runtime}.{vendor.enable_peer}", "status 704")  # somebody in the process has done it
    assert child.ask("engine", number, "peer", vendor.addresses[1]) is True
    child.ask("engine", number, "to_peer", vendor.addresses[1], 0, 0, 0, 5)
    child.ask("engine", number, "wait", 5, LONG_S)


def test_an_engine_that_cannot_be_opened_half(child: Remote, vendor: Vendor, fake_gpus: FakeMachine) -> None:
    fake_gpus.fault(f"{vendor.runtime}.{vendor.new_stream}", "status 2")
    with pytest.raises(EngineError, match=f"{vendor.new_stream} answered") as caught:
        child.ask("open", vendor.runtime, vendor.addresses[0])
    assert caught.value.kind == "memory"
    fake_gpus.fault(f"{vendor.runtime}.{vendor.new_stream}", None)
    assert child.ask("open", vendor.runtime, vendor.addresses[0]) == 0


def test_a_device_lost_in_the_middle(devices: Devices, vendor: Vendor, fake_gpus: FakeMachine) -> None:
    """The copy, and everything after it, is an error that says so; the process ends all the same."""
    engine = devices.open()
    pointer, address = engine.allocate(1 << 20), devices.bench.ask("memory", 1 << 20)
    engine.register(address, 1 << 20)
    order = fake_gpus.order(f"{vendor.scope}.0.copy.d2h", "lost 719", at=2)

    def copied(event: int) -> None:
        engine.to_host(address, pointer, 1 << 20, event)
        engine.wait(event, LONG_S)

    copied(0)
    with pytest.raises(EngineError, match="of no use to this process any more") as caught:
        copied(1)  # in the wait, or already when the copy's event is recorded
    assert (caught.value.kind, caught.value.code) == ("lost", 719)
    assert order.struck == 1
    with pytest.raises(EngineError) as again:
        engine.fill(pointer, 0, 16)
    assert again.value.kind == "lost"


def test_closing_does_not_wait_for_ever(devices: Devices, vendor: Vendor, fake_gpus: FakeMachine) -> None:
    number = devices.bench.ask("open", vendor.runtime, vendor.addresses[0], close_s=0.1)
    pointer = devices.bench.ask("engine", number, "allocate", 1 << 20)
    address = devices.bench.ask("memory", 1 << 20)
    devices.bench.ask("engine", number, "register", address, 1 << 20)
    devices.slow()
    devices.bench.ask("engine", number, "to_host", address, pointer, 1 << 20, 0)
    with pytest.raises(EngineError, match="does not end: end this process") as caught:
        devices.bench.ask("engine", number, "close")
    assert caught.value.kind == "deadline"
    assert devices.bench.ask("engine", number, "close") is None


def test_no_context_but_the_primary_one(devices: Devices, vendor: Vendor, fake_gpus: FakeMachine) -> None:
    engine, other = devices.open(), devices.open()
    for each in (engine, other):
        each.filled(100, 1)
    assert len(fake_gpus.contexts()) == 1
    assert fake_gpus.contexts()[0][1] == f"{vendor.scope}.0"


@pytest.mark.parametrize("vendor", [VENDORS["cuda"]], ids=["cuda"])
def test_what_the_thread_had_current_stays(devices: Devices, vendor: Vendor) -> None:
    """Two engines by turns, an error in one of them, and the thread still has no context of its own."""
    first, second = devices.open(), devices.open(vendor.addresses[1])
    for engine in (first, second, first):
        engine.filled(64, 1)
        with pytest.raises(EngineError):
            engine.fill(0x10, 0, 16)
    assert devices.bench.ask("current_context", first.number) == 0


@pytest.mark.parametrize("vendor", [VENDORS["hip"]], ids=["hip"])
def test_the_thread_s_device_stays_and_its_last_error_too(devices: Devices, vendor: Vendor) -> None:
    first, second = devices.open(), devices.open(vendor.addresses[1])
    for engine in (first, second):
        engine.filled(1 << 20, 1)
        with pytest.raises(EngineError):
            engine.fill(0x10, 0, 16)
    assert devices.bench.ask("current_device", first.number) == 0
    assert devices.bench.ask("last_error", first.number) == 0


def test_both_vendors_pin_the_same_memory(fake_gpus: FakeMachine, fake_cuda: Any, fake_hip: Any) -> None:
    libraries = f"{fake_cuda['LD_LIBRARY_PATH']}:{fake_hip['LD_LIBRARY_PATH']}"
    with Remote({**fake_cuda, "LD_LIBRARY_PATH": libraries}) as child:
        numbers = [child.ask("open", each.runtime, each.addresses[0]) for each in VENDORS.values()]
        address = child.ask("memory", 1 << 20)
        for number in numbers:
            child.ask("engine", number, "register", address, 1 << 20)
        for number in numbers:
            child.ask("engine", number, "unregister", address)
        child.ask("close")
        assert child.end() == 0

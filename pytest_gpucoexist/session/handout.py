"""What the fixtures do: hand out what the running test holds, or acquire it late."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.errors import DeviceBusyError, GpuCoexistError
from pytest_gpucoexist.session.choices import Choice, choices_of
from pytest_gpucoexist.session.current import running
from pytest_gpucoexist.session.fixture_needs import FIXTURE_NEEDS
from pytest_gpucoexist.session.leasing import LACKING, lacking, late
from pytest_gpucoexist.session.state import GPU_SESSION

if TYPE_CHECKING:
    from types import TracebackType

    from pytest_gpucoexist.model.machine import Gpu, Machine

__all__ = [
    "GpuLeases",
    "bound_node",
    "child_environment",
    "chosen",
    "each_device",
    "framework_device",
    "leased",
    "leased_pair",
    "parameter",
    "whole_machine",
]

Pin = Callable[[Sequence["Gpu"], "Machine"], AbstractContextManager[Any]]


class GpuLeases:
    """The factory beneath the fixtures, for code that finds out only while it runs what it needs."""

    def __init__(self, config: pytest.Config) -> None:
        """Made by the fixture `gpu_leases`."""
        self._config = config

    def acquire(self, mark: str = "gpu", /, **arguments: Any) -> AbstractContextManager[tuple[Gpu, ...]]:
        """Hold devices while the context lasts: `with gpu_leases.acquire("cuda", count=2) as gpus:`.

        `mark` and `arguments` are those of a mark. What is missing skips or fails the test as its marks would. The
        wait counts as the test's own time. A test that already holds devices does not wait: when these are not free,
        DeviceBusyError is raised, because two such tests could wait for each other forever.
        """
        return _Late(late(self._config.stash[GPU_SESSION], None, mark, arguments))


class _Late(AbstractContextManager["tuple[Gpu, ...]"]):
    """Devices while the context lasts. Who has them is the news of a refusal, not how this package asked."""

    def __init__(self, held: AbstractContextManager[tuple[Gpu, ...]]) -> None:
        self._held = held

    def __enter__(self) -> tuple[Gpu, ...]:
        __tracebackhide__ = True
        try:
            return self._held.__enter__()
        except DeviceBusyError as error:
            raise error.with_traceback(None) from None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return self._held.__exit__(kind, error, traceback)


def leased(
    request: pytest.FixtureRequest, fixture: str, *, vendor: str | None = None, vendors: int = 1
) -> tuple[Gpu, ...]:
    """Return the devices that the running test holds, of one vendor if asked; acquire late when it holds none.

    `vendors` is how many different ones there must be among them.
    """
    holding = running()
    if holding is not None and holding.item is request.node:
        gpus = tuple(gpu for gpu in holding.gpus() if vendor in {None, gpu.vendor})
        if len({gpu.vendor for gpu in gpus}) >= vendors:
            return gpus
    mark, arguments = FIXTURE_NEEDS[fixture]
    session = request.config.stash[GPU_SESSION]
    context = late(session, request.node, mark, arguments, closest_pair=fixture == "gpu_pair")
    devices = context.__enter__()
    request.addfinalizer(lambda: context.__exit__(None, None, None))
    return devices


def leased_pair(request: pytest.FixtureRequest) -> tuple[Gpu, Gpu]:
    """Return the first two leased devices of different vendors, in the order of the mark."""
    gpus = leased(request, "gpu_pair", vendors=2)
    return gpus[0], next(other for other in gpus if other.vendor != gpus[0].vendor)


@contextlib.contextmanager
def chosen(request: pytest.FixtureRequest, fixture: str) -> Iterator[Gpu]:
    """Fix the choice of a device for the scope of a wider fixture: the one that the first test was given for it."""
    holding = running()
    key = None if holding is None else holding.device_of(fixture)
    if holding is None or key is None:
        raise GpuCoexistError(
            f"{fixture} must be an argument of the test or of a fixture that the test names: asked for by "
            "getfixturevalue, later tests of its scope could use the device without holding it"
        )
    choices = choices_of(request.config)
    scope = (fixture, str(request.node.nodeid))
    choices.alive[scope] = Choice(key=key, first=holding.owner)
    try:
        yield _gpu(holding.session.machine(), key)
    finally:
        del choices.alive[scope]


def each_device(request: pytest.FixtureRequest) -> Gpu:
    """Return the device of this run of the test."""
    key = parameter(request, "a GPU")
    for gpu in leased(request, "each_gpu"):
        if key in {gpu.key, gpu.id}:
            return gpu
    raise GpuCoexistError(f"{request.node.nodeid}: {key} is not among the devices that this test holds")


def parameter(request: pytest.FixtureRequest, what: str) -> Any:
    """Return the value of an `each_*` parameter; skip the test when there was nothing to run it on."""
    if not hasattr(request, "param"):
        raise GpuCoexistError(
            f"{request.fixturename} must be an argument of the test or of a fixture that the test names: "
            "asked for by getfixturevalue, the test has not been made to run once for each"
        )
    value = request.param
    if value is None:
        session = request.config.stash[GPU_SESSION]
        lacking(session, request.node, f"needs {what}; none found that satisfies the test's marks")
    return value


@contextlib.contextmanager
def bound_node(request: pytest.FixtureRequest) -> Iterator[int | None]:
    """Bind the test to the node of its device, and keep what was bound as a property of the test."""
    from pytest_gpucoexist.session.pins.affinity import bound_to_node

    gpu = leased(request, "numa_node")[0]
    with bound_to_node(gpu, request.config.stash[GPU_SESSION].machine()) as binding:
        request.node.user_properties.append(("gpu_numa_binding", binding.describe()))
        yield binding.node


def child_environment(request: pytest.FixtureRequest) -> dict[str, str]:
    """Return the environment of this moment with masks that leave the leased devices visible."""
    from pytest_gpucoexist.host import local_host
    from pytest_gpucoexist.session.pins.env import environment_for

    session = request.config.stash[GPU_SESSION]
    gpus = leased(request, "gpu_env")
    # A host of its own: the session's was made at the start, and a fixture may have changed the environment since.
    return environment_for(gpus, session.machine(), local_host().environ, session.options.mask_style)  # type: ignore[arg-type]


@contextlib.contextmanager
def framework_device(request: pytest.FixtureRequest, fixture: str, pin: Pin) -> Iterator[Any]:
    """Make the leased device current in a framework; skip with the reason where the framework cannot serve it."""
    from pytest_gpucoexist.session.pins.unsuitable import Unsuitable

    gpus = leased(request, fixture)
    with contextlib.ExitStack() as stack:
        try:
            device = stack.enter_context(pin(gpus, request.config.stash[GPU_SESSION].machine()))
        except Unsuitable as unsuitable:
            request.node.stash[LACKING] = str(unsuitable)
            pytest.skip(str(unsuitable))
        yield device


def whole_machine(config: pytest.Config) -> Machine:
    """Return the machine with everything that files and both vendors' libraries tell."""
    session = config.stash[GPU_SESSION]
    if session.selected_needs:
        session.prepare(session.selected_needs)  # a worker of xdist has not asked yet, and keeps this value
    machine: Machine = session.machine(("nvidia", "amd"))
    return machine


def _gpu(machine: Machine, key: str) -> Gpu:
    gpu = machine.gpu(key)
    if gpu is None:
        raise GpuCoexistError(f"{key} is no longer a device of {machine.name}")
    return gpu

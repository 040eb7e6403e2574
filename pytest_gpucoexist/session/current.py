"""The devices of the running test, for code that has no fixtures: `unittest` and helpers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.errors import GpuCoexistError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucoexist.leases.lease import Lease
    from pytest_gpucoexist.model.machine import Gpu
    from pytest_gpucoexist.session.leasing import Holding
    from pytest_gpucoexist.session.state import GpuSession

__all__ = ["current_gpu", "current_gpus", "in_use", "running"]

# A stack, because a test may run pytest inside pytest; no ContextVar, because threads that a test starts belong to it.
_running: list[Holding] = []

# Tests that run in this process, where it has a home; one inside the other where a test runs pytest.
_tests: list[object] = []

_at_import: list[Callable[[], tuple[Gpu, ...]] | None] = [None]


def running() -> Holding | None:
    """Return what the running test holds, or None when it has no devices or no test runs."""
    return _running[-1] if _running else None


def in_use(session: GpuSession) -> frozenset[str]:
    """Return the devices that the running test of a session has, and what outlived earlier ones."""
    of_session = [holding.keys() for holding in _running if holding.session is session]
    return frozenset(key for keys in of_session for key in keys)


def push(holding: Holding) -> None:
    """Begin a test that holds devices."""
    _running.append(holding)


def pop(holding: Holding) -> None:
    """End it."""
    if holding in _running:
        _running.remove(holding)


def drop(lease: Lease) -> None:
    """Forget a lease that has been released, whoever held it by now."""
    for holding in tuple(_running):
        if any(each is lease for each in holding.leases):
            holding.leases.remove(lease)
            if not holding.leases:
                _running.remove(holding)


def begin_test(item: object) -> None:
    """Count only what this test holds, until it ends: a test that asked for no device has none."""
    _tests.append(item)


def end_test() -> None:
    """End it; a process that runs no test answers with its home again, where it has one."""
    _tests.pop()


def answer_at_import(answer: Callable[[], tuple[Gpu, ...]] | None) -> Callable[[], tuple[Gpu, ...]] | None:
    """Have `answer` called while no test runs, where the environment tells of no home. Returns the former one."""
    former = _at_import[0]
    _at_import[0] = answer
    return former


def _home() -> tuple[Gpu, ...]:
    from pytest_gpucoexist.session.home import home_gpus

    devices = home_gpus()
    if not devices and _at_import[0] is not None:
        devices = _at_import[0]()
    return devices


def current_gpus() -> tuple[Gpu, ...]:
    """Return the devices leased for the running test, in the order of its marks.

    While no test runs, a worker of `--gpu-workers=narrow` or `rotate` answers with its home, so that a module may ask
    while it is imported. Raises GpuCoexistError elsewhere outside a test, and in one that asked for no device.
    """
    holding = running()
    devices = () if holding is None else holding.gpus()
    if not devices and not _tests:
        devices = _home()
    if not devices:
        raise GpuCoexistError(
            "no GPU is leased here: current_gpu() works while a test runs that asks for a device by a mark "
            "(@pytest.mark.gpu, cuda, rocm, cross_vendor) or a fixture of pytest-gpucoexist"
        )
    return devices


def current_gpu() -> Gpu:
    """Return the device leased for the running test; the first one, where it has several. Raises GpuCoexistError."""
    return current_gpus()[0]

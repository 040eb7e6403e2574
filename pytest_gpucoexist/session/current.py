"""The devices of the running test, for code that has no fixtures: `unittest` and helpers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.errors import GpuCoexistError

if TYPE_CHECKING:
    from pytest_gpucoexist.leases.broker import Lease
    from pytest_gpucoexist.model.machine import Gpu
    from pytest_gpucoexist.session.leasing import Holding

__all__ = ["current_gpu", "current_gpus", "running"]

# A stack, because a test may run pytest inside pytest; no ContextVar, because threads that a test starts belong to it.
_running: list[Holding] = []


def running() -> Holding | None:
    """Return what the running test holds, or None when it has no devices or no test runs."""
    return _running[-1] if _running else None


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


def current_gpus() -> tuple[Gpu, ...]:
    """Return the devices leased for the running test, in the order of its marks.

    Raises GpuCoexistError outside a test, and in one that asked for no device.
    """
    holding = running()
    devices = () if holding is None else holding.gpus()
    if not devices:
        raise GpuCoexistError(
            "no GPU is leased here: current_gpu() works while a test runs that asks for a device by a mark "
            "(@pytest.mark.gpu, cuda, rocm, cross_vendor) or a fixture of pytest-gpucoexist"
        )
    return devices


def current_gpu() -> Gpu:
    """Return the device leased for the running test; the first one, where it has several. Raises GpuCoexistError."""
    return current_gpus()[0]

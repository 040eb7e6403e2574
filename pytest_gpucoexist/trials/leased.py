"""From a machine that was judged to trials of what may be touched: devices that are visible, fit and nobody else's."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, Protocol

from pytest_gpucoexist.errors import DeviceBusyError, GpuCoexistError
from pytest_gpucoexist.host import local_host
from pytest_gpucoexist.model.groups import Group
from pytest_gpucoexist.model.requirement import Requirement
from pytest_gpucoexist.model.trials import SIMULATED, Trials, Untried

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_gpucoexist.model.machine import Gpu, Machine
    from pytest_gpucoexist.processes.opening import OpenedProcess

__all__ = ["EXTRA", "Leases", "try_machine"]

EXTRA = "pip install 'pytest-gpucoexist[transfer]'"
_WAIT_S = 2.0
_VENDORS = ("nvidia", "amd")


class Leases(Protocol):
    """What gives devices to this process: `leases.lease.Leaser`, as far as trials need it."""

    def acquire(self, groups: Sequence[Group], owner: str, *, timeout_s: float | None = None) -> object:
        """Hold devices. Raises DeviceBusyError."""
        ...


def try_machine(
    machine: Machine,
    *,
    leases: Leases | None,
    release: Callable[[object], None] = lambda _: None,
    unfit: Mapping[str, str],
    level: Literal["transfer", "full"],
    budget_s: float | None = None,
    python: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    progress: Callable[[str], None] = lambda _: None,
    owner: str = "trials",
) -> Trials:
    """Try the NVIDIA and AMD devices of a machine, and say of each other one why it was not tried.

    `leases` None: nothing is held. `unfit` are devices that gates took out, with words by key: they are not touched,
    and neither is what a mask hides. `python` are interpreters by vendor, `environ` the caller's environment (default:
    this process's). A simulated machine's devices are memory of this host. `budget_s` as in `try_devices`.
    """
    untried: list[Untried] = []
    chosen = [gpu for gpu in machine.gpus if _may_be_tried(gpu, machine, unfit, untried)]
    missing = _missing()
    if missing is not None:
        untried += [_untouched(gpu, missing, "ERROR") for gpu in chosen]
        return Trials(level=level, untried=tuple(untried))
    from pytest_gpucoexist.trials.run import try_devices

    held: list[object] = []
    try:
        ours = [gpu for gpu in chosen if _hold(gpu, leases, owner, held, untried)]
        found = try_devices(
            ours,
            host=local_host(),
            opener=lambda gpus: _opened(gpus, machine, python or {}, environ),
            level=level,
            budget_s=budget_s,
            simulated=machine.simulated,
            progress=progress,
        )
    finally:
        for lease in held:
            release(lease)
    samples = found.samples
    if machine.simulated:
        samples = tuple(replace(each, notes=(*each.notes, SIMULATED)) for each in samples)
    return replace(found, samples=samples, untried=(*untried, *found.untried))


def _may_be_tried(gpu: Gpu, machine: Machine, unfit: Mapping[str, str], untried: list[Untried]) -> bool:
    if gpu.vendor not in _VENDORS or not (gpu.is_compute and gpu.granted and gpu.visible):
        return False
    if gpu.key in unfit or not gpu.fit:
        untried.append(_untouched(gpu, f"it is unfit: {unfit.get(gpu.key, 'a gate took it out')}", "SKIP"))
        return False
    if gpu.driver is None and not machine.simulated:
        untried.append(_untouched(gpu, "no driver holds it", "SKIP"))
        return False
    return True


def _hold(gpu: Gpu, leases: Leases | None, owner: str, held: list[object], untried: list[Untried]) -> bool:
    if leases is None:
        return True
    wanted = Group(requirement=Requirement(device=gpu.key, exclusive=True), candidates=(gpu.key,))
    try:
        held.append(leases.acquire([wanted], owner, timeout_s=_WAIT_S))
    except DeviceBusyError as error:
        untried.append(_untouched(gpu, f"in use by others: {error}", "UNKNOWN"))
    except GpuCoexistError as error:
        untried.append(_untouched(gpu, f"cannot be held: {error}", "ERROR"))
    else:
        return True
    return False


def _opened(
    gpus: Sequence[Gpu], machine: Machine, python: Mapping[str, str], environ: Mapping[str, str] | None
) -> OpenedProcess:
    from pytest_gpucoexist.processes.opening import open_process

    vendor = gpus[0].vendor
    return open_process(gpus, machine, vendor, host=local_host(), environ=environ, python=python.get(vendor) or None)


def _missing() -> str | None:
    try:
        import execnet  # noqa: F401
        import numpy  # noqa: F401, ICN001
    except ImportError as error:
        return f"copies need execnet and NumPy ({error}): {EXTRA}"
    return None


def _untouched(gpu: Gpu, reason: str, status: Literal["SKIP", "UNKNOWN", "ERROR"]) -> Untried:
    return Untried(kind="device", source=gpu.key, target=None, reason=reason, status=status)

"""Give each xdist worker its home before it imports anything: `--gpu-workers`. In the controller.

The masks are put into `spec.env`, which execnet sets in the worker before pytest is loaded there; a replacement for a
worker that crashed is made from the same spec, so it has the same home, whatever number it gets. A worker that may be
on another machine is asked where it is, and is given its home over its gateway.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.errors import GpuCoexistError
from pytest_gpucoexist.placement.homes import VARIABLES, Homes, home_masks, home_needs, usable_devices
from pytest_gpucoexist.session.home import home_environment
from pytest_gpucoexist.session.wire import KEY, is_surely_here

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucoexist.model.identity import Vendor
    from pytest_gpucoexist.model.machine import Machine
    from pytest_gpucoexist.session.state import GpuSession

__all__ = ["Ground", "Settled", "WorkerHomes"]

_ALL: frozenset[str] = frozenset().union(*VARIABLES.values())


class Ground:
    """One machine on which workers run: judged, with the visibility variables that they would inherit there."""

    def __init__(self, machine: Machine, environ: Mapping[str, str]) -> None:
        """`environ` is that of the controller, of the recording, or of the gateway on another machine."""
        self.machine = machine
        self.environ = environ
        self.homes = Homes(machine)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """A worker's home, and what its environment says of it. `ground` is where it is."""

    home: tuple[str, ...]
    environ: Mapping[str, str]
    ground: Ground
    notes: tuple[str, ...] = ()

    def describe(self) -> str:
        """Name the devices: `nvidia0 amd1`."""
        gpus = [gpu for key in self.home if (gpu := self.ground.machine.gpu(key)) is not None]
        return " ".join(gpu.id for gpu in gpus) or "no device"


class WorkerHomes:
    """Registered in a controller with `--gpu-workers=narrow` or `rotate`."""

    def __init__(self, session: GpuSession) -> None:
        """`session` discovers and judges this machine when the first worker is to be settled on it."""
        self._session = session
        self._here: Ground | None = None
        self._there: dict[tuple[str | None, ...], Ground] = {}
        self._kinds: dict[str, int] = {}
        self.by_worker: dict[str, Settled] = {}
        """Where each worker is at home, by its id."""

    @pytest.hookimpl(optionalhook=True, trylast=True)
    def pytest_xdist_setupnodes(self, config: pytest.Config, specs: Sequence[Any]) -> None:
        """Settle the workers that are surely here. What a spec, or another plugin, says by `env:` stays."""
        here = [spec for spec in specs if is_surely_here(spec)]
        for spec in specs:
            if not is_surely_here(spec):
                self._kinds[_kind(spec)] = self._kinds.get(_kind(spec), 0) + 1
        homes: list[str] = []
        notes: list[str] = []
        for index, spec in enumerate(here):
            settled = settle_on(self._ground(), self._session, len(here) - index, dict(spec.env))
            spec.env.update(settled.environ)
            spec.gpucoexist_settled = settled
            homes.append(f"{spec.id} {settled.describe()}")
            notes += [f"  {spec.id}: {note}" for note in settled.notes]
        if here:
            mode = self._session.options.workers
            _say(config, [f"gpucoexist: --gpu-workers={mode}, homes: {'; '.join(homes)}", *notes])

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker, or the replacement of one, its home; settle one that may be elsewhere."""
        spec = node.gateway.spec
        worker = str(node.gateway.id)
        if not is_surely_here(spec):
            self._settle_over(node.gateway, worker)
        settled: Settled | None = spec.gpucoexist_settled
        if settled is not None:
            self.by_worker[worker] = settled
            node.workerinput.setdefault(KEY, {})["home"] = list(settled.home)

    def _settle_over(self, gateway: Any, worker: str) -> None:
        from pytest_gpucoexist.session.remote import set_environment

        spec = gateway.spec
        former: Settled | None = spec.gpucoexist_settled
        try:
            ground, name = self._ground_of(gateway)
            if former is None or former.ground is not ground:
                former = self._settle_there(spec, worker, ground, name)
            set_environment(gateway, former.environ)
            spec.gpucoexist_settled = former
        except GpuCoexistError as error:
            spec.gpucoexist_settled = None
            self._session.notes.append(f"ERROR: {worker} has no home: {error}")

    def _settle_there(self, spec: Any, worker: str, ground: Ground, name: str | None) -> Settled:
        count = self._kinds.get(_kind(spec), 1)
        self._kinds[_kind(spec)] = max(count - 1, 1)
        settled = settle_on(ground, self._session, count, dict(spec.env))
        where = f" on {name}" if name else ""
        words = f"gpucoexist: --gpu-workers={self._session.options.workers}, home: {worker} {settled.describe()}{where}"
        _say(self._session.config, [words, *(f"  {worker}: {note}" for note in settled.notes)])
        return settled

    def _ground_of(self, gateway: Any) -> tuple[Ground, str | None]:
        """Return where a worker is, and the host's name where that is not here."""
        from pytest_gpucoexist.session.remote import look_there, place_there
        from pytest_gpucoexist.session.wire import place

        config, options = self._session.config, self._session.options
        there = place_there(gateway)
        machine = config.option.gpu_machine or there.option or config.getini("gpu_machine") or None
        here = place()
        same_place = machine is not None or [there.host, there.boot_id] == here[:2]
        if machine == options.machine and there.step == here[2] and same_place:
            return self._ground(), None
        where = (there.host, there.boot_id, there.step, machine)
        if where not in self._there:
            found, environ = look_there(gateway, options)
            self._there[where] = Ground(found, environ)
        return self._there[where], there.host

    def _ground(self) -> Ground:
        if self._here is None:
            self._here = ground_here(self._session)
        return self._here


def ground_here(session: GpuSession) -> Ground:
    """Discover and judge this machine. Ends the run where a gate ends it, or where there is nothing to replay."""
    from pytest_gpucoexist.session.discovery import session_host

    try:
        needs = home_needs(session.machine())
        machine = session.prepare(needs)
        host = session_host(session.config, session.options)
    except GpuCoexistError as error:
        if session.stopped is not None:
            from pytest_gpucoexist.session.gating import EXIT_UNFIT

            pytest.exit(session.stopped, returncode=EXIT_UNFIT)
        raise pytest.UsageError(str(error)) from None
    return Ground(machine, {mask.variable: mask.value for mask in machine.masks} if host is None else host.environ)


def settle_on(ground: Ground, session: GpuSession, workers: int, asked: Mapping[str, Any]) -> Settled:
    """Choose a worker's home; `workers` are still to come, `asked` is the `env:` of its spec."""
    options: Any = session.options
    explicit = {variable: str(value) for variable, value in asked.items() if variable in _ALL}
    environ = {**ground.environ, **explicit}
    given, warnings = _given(ground.machine, environ, explicit)
    home = ground.homes.take(workers, given)
    masks = home_masks(home, ground.machine, options.workers, options.mask_style, environ, given)
    caller = {variable: value for variable, value in environ.items() if variable in _ALL}
    notes = (*(f"env:{variable}={value} of its --tx stays as it is" for variable, value in explicit.items()), *warnings)
    told = home_environment(home, ground.machine, options.workers, masks, caller)
    return Settled(home=home, environ=told, ground=ground, notes=notes)


def _given(
    machine: Machine, environ: Mapping[str, str], explicit: Mapping[str, str]
) -> tuple[dict[Vendor, list[str]], list[str]]:
    """Return the devices of each vendor for which the spec of a worker sets a variable, in that mask's order.

    Also what is to be said of these masks.
    """
    vendors = [vendor for vendor, variables in VARIABLES.items() if not variables.isdisjoint(explicit)]
    if not vendors:
        return {}, []
    from pytest_gpucoexist.model.visibility.apply import apply_masks

    seen = apply_masks(environ, machine)
    usable = usable_devices(seen)
    order = {key: place for mask in seen.masks for place, key in enumerate(mask.devices or ())}
    warnings = [mask.warning for mask in seen.masks if mask.variable in explicit and mask.warning]
    return {
        vendor: sorted((gpu.key for gpu in usable.get(vendor, ())), key=lambda key: order.get(key, 0))
        for vendor in vendors
    }, warnings


def _kind(spec: Any) -> str:
    """Return what specs have in common that start workers in the same way."""
    parts = str(spec).split("//")
    return "//".join(part for part in parts if not part.startswith(("id=", "env:", "execmodel=")))


def _say(config: pytest.Config, lines: Sequence[str]) -> None:
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and getattr(config.option, "verbose", 0) >= 0:
        for line in lines:
            reporter.write_line(line)

"""`each_gpu`, `each_vendor`, `each_numa_node`: one run of a test per device, vendor, node.

The machine is the controller's, so every xdist worker makes the same ids, whatever it may use itself. Only a test that
asks for one of these fixtures starts a discovery at collection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.session.fixture_needs import is_ours

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_gpucoexist.model.machine import Gpu

__all__ = ["EACH", "generate", "restriction"]

EACH = frozenset({"each_gpu", "each_vendor", "each_numa_node"})

NOTHING = "none"
"""Id of the one parameter that stands for "no such device here": the test is then skipped with the reason."""


def generate(metafunc: pytest.Metafunc) -> None:
    """Parametrize a test that asks for `each_*` with the devices that satisfy its marks."""
    wanted = [name for name in metafunc.fixturenames if name in EACH and is_ours(metafunc.definition, name)]
    wanted = [name for name in dict.fromkeys(wanted) if not _parametrized_by_hand(metafunc, name)]
    if not wanted:
        return
    gpus = _candidates(metafunc)
    for name in wanted:
        values = _VALUES[name](gpus)
        params = [pytest.param(value, id=ident) for ident, value in values]
        metafunc.parametrize(name, params or [pytest.param(None, id=NOTHING)], indirect=True)


def restriction(item: pytest.Item) -> Mapping[str, Any]:
    """Return the arguments of `model.requirement.restrict` for a parametrized test: device key, vendor, node."""
    callspec = getattr(item, "callspec", None)
    params: Mapping[str, Any] = getattr(callspec, "params", {})
    found: dict[str, Any] = {}
    for name, argument in (("each_gpu", "device"), ("each_vendor", "vendor"), ("each_numa_node", "node")):
        if params.get(name) is not None and is_ours(item, name):
            found[argument] = params[name]
    if "device" in found:
        from pytest_gpucoexist.session.state import GPU_SESSION

        gpu = item.config.stash[GPU_SESSION].collecting_machine.gpu(found["device"])
        found["device_vendor"] = None if gpu is None else gpu.vendor
    return found


def _candidates(metafunc: pytest.Metafunc) -> list[Gpu]:
    """Devices that could serve this test, in the machine's order: visible, usable, and as its marks demand.

    A device that a gate took out keeps its run of the test, which then fails: it must not vanish from the list.
    """
    from pytest_gpucoexist.model.matching import would_do
    from pytest_gpucoexist.session.state import GPU_SESSION

    session = metafunc.config.stash[GPU_SESSION]
    decision = session.decision(metafunc.definition)
    if decision is None:
        return []
    machine = session.collecting_machine
    keys = would_do(decision.need, machine)
    return [gpu for gpu in machine.gpus if gpu.key in keys]


def _parametrized_by_hand(metafunc: pytest.Metafunc, name: str) -> bool:
    """Whether the test gives this argument its own values; those win, as they do over any parametrized fixture."""
    for mark in metafunc.definition.iter_markers("parametrize"):
        names = mark.args[0] if mark.args else mark.kwargs.get("argnames", ())
        listed = names.replace(",", " ").split() if isinstance(names, str) else names
        if name in listed:
            return True
    return False


def _devices(gpus: list[Gpu]) -> list[tuple[str, Any]]:
    return [(gpu.id, gpu.key) for gpu in gpus]


def _vendors(gpus: list[Gpu]) -> list[tuple[str, Any]]:
    return [(vendor, vendor) for vendor in dict.fromkeys(gpu.vendor for gpu in gpus)]


def _nodes(gpus: list[Gpu]) -> list[tuple[str, Any]]:
    nodes = {gpu.numa_node for gpu in gpus if gpu.numa_node is not None and gpu.numa_node >= 0}
    return [(f"node{node}", node) for node in sorted(nodes)]


_VALUES: Mapping[str, Callable[[list[Gpu]], list[tuple[str, Any]]]] = {
    "each_gpu": _devices,
    "each_vendor": _vendors,
    "each_numa_node": _nodes,
}

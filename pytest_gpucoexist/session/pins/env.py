"""The environment for a subprocess that shall see exactly the leased devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpucoexist.model.machine import Gpu, Machine

__all__ = ["environment_for"]


def environment_for(
    gpus: Sequence[Gpu],
    machine: Machine,
    environ: Mapping[str, str],
    style: Literal["auto", "index", "uuid"] = "auto",
) -> dict[str, str]:
    """Return a copy of `environ` whose masks leave exactly `gpus` visible, to each vendor's runtime its own.

    A worker's home is left out: it is not what the masks say any more.
    """
    from pytest_gpucoexist.model.visibility import write_masks
    from pytest_gpucoexist.session.home import without_home

    environment = dict(environ)
    for variable, value in write_masks(gpus, machine, style, environ).items():
        if value is None:
            environment.pop(variable, None)
        else:
            environment[variable] = value
    return without_home(environment)

"""From what a runtime makes of a list to the Mask that people see."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.model.machine import Mask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucoexist.model.visibility.slurm import Translation
    from pytest_gpucoexist.model.visibility.tokens import Selection

__all__ = ["make_mask"]

_RUNTIME_NAMES = {"cuda": "CUDA", "rocr": "ROCR", "hip": "HIP", "opencl": "OpenCL", "level-zero": "Level Zero"}


def make_mask(
    variable: str,
    value: str,
    runtime: str,
    picked: Selection,
    own: Sequence[str],
    slurm: Translation | None = None,
) -> Mask:
    """Describe one variable for one runtime. `own` are the keys that the runtime counts, in its order.

    Where the value is Slurm's list, numbered across vendors, `devices` are those that Slurm meant, and the warning
    says what the runtime needs to be told. A runtime without devices has nothing to be warned about.
    """
    if not own:
        return Mask(variable=variable, value=value, runtime=runtime, devices=())
    if slurm is not None and variable in slurm.variables:
        given = tuple(key for key in slurm.keys if key in own)
        return _translated(variable, value, runtime, given, own, slurm, right=given == picked.devices)
    warning = f"{variable}={value}: {picked.remark}" if picked.remark else None
    return Mask(variable=variable, value=value, runtime=runtime, devices=picked.devices, warning=warning)


def _translated(
    variable: str,
    value: str,
    runtime: str,
    given: tuple[str, ...],
    own: Sequence[str],
    slurm: Translation,
    *,
    right: bool,
) -> Mask:
    """Give the GPUs that Slurm meant; `right` when the runtime, reading its own numbers, finds just those."""
    source = f"{slurm.source}={slurm.value}"
    warning = None
    if not right:
        numbers = ",".join(str(own.index(key)) for key in given) or "-1"
        warning = (
            f"Slurm numbered this node's GPUs across vendors ({source}) and {_RUNTIME_NAMES[runtime]} counts its own: "
            f"set {variable}={numbers}"
        )
        if slurm.assumed:
            warning += f" (assuming that Slurm counts {slurm.assumed}: no GRES type says otherwise)"
    return Mask(variable=variable, value=value, runtime=runtime, devices=given, warning=warning, translated_from=source)

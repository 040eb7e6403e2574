"""Why a framework cannot serve a test here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.errors import GpuCoexistError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucoexist.model.machine import Gpu

__all__ = ["Unsuitable", "first_of_vendor"]


class Unsuitable(GpuCoexistError):  # noqa: N818  a condition that becomes a skip, not a failure
    """The framework is absent or built for another vendor: the test is skipped with this reason."""


def first_of_vendor(gpus: Sequence[Gpu], vendor: str | None, framework: str, built: str) -> Gpu:
    """Return the first leased device that the framework is built for. Raises Unsuitable, naming both."""
    for gpu in gpus:
        if gpu.vendor == vendor:
            return gpu
    leased = ", ".join(f"{gpu.id} ({gpu.key})" for gpu in gpus)
    raise Unsuitable(f"{framework} is built for {built}; leased: {leased}")

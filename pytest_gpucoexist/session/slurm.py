"""Workers in allocations of Slurm: `--tx 'N*popen//python=srun --gres=gpu:nvidia:1 -n1 python'`.

- srun keeps what a task writes until a line ends, and what execnet sends has no lines: without `-u` no worker ever
  answers. It is added.
- An srun that ends instead of starting a worker has said why; pytest-xdist would bury that in a traceback.
- Slurm numbers a node's GPUs across vendors (`model/visibility/slurm.py`). A worker with such masks writes them anew,
  in each runtime's own numbers, before anything asks a runtime.
"""

from __future__ import annotations

import os
import shlex
import time
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from pytest_gpucoexist.session.state import GpuSession

__all__ = ["EXIT_UNAVAILABLE", "SrunGateways", "mend_masks", "unbuffered"]

EXIT_UNAVAILABLE = 69
"""`EX_UNAVAILABLE` of sysexits.h: a service that was asked for is not there."""

_UNBUFFERED = {"-u", "--unbuffered"}
_ENDS_S = 5.0


def unbuffered(python: str) -> str:
    """Return `python=` of a gateway with srun's `-u` behind srun; as it is where there is no srun, or `-u` already."""
    words = shlex.split(python)
    at = next((index for index, word in enumerate(words) if os.path.basename(word) == "srun"), None)
    if at is None or not _UNBUFFERED.isdisjoint(words):
        return python
    return shlex.join([*words[: at + 1], "-u", *words[at + 1 :]])


class SrunGateways:
    """Registered in a controller of pytest-xdist whose gateways have a `python=` of their own."""

    def __init__(self, config: pytest.Config) -> None:
        """Nothing is started yet."""
        self._config = config
        self._specs: list[Any] = []

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_xdist_setupnodes(self, specs: Sequence[Any]) -> None:
        """Make sruns of gateways, and of their replacements, hand on every byte at once."""
        for spec in specs:
            if spec.popen and spec.python:
                python = unbuffered(spec.python)
                if python != spec.python or "srun" in python:
                    self._specs.append(spec)
                    spec.python = python

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionstart(self) -> Generator[None, object, object]:
        """End the run with words when an srun has ended without a worker."""
        try:
            return (yield)
        except (OSError, EOFError) as error:
            ended = self._ended()
            if not ended:
                raise
            words = f"{'; '.join(ended)}. What it said stands above"
            pytest.exit(f"no worker from Slurm: {words} ({error})", returncode=EXIT_UNAVAILABLE)

    def _ended(self) -> list[str]:
        """Name the gateways whose srun has ended; the one that made pytest-xdist fail is about to."""
        distributed: Any = self._config.pluginmanager.get_plugin("dsession")
        gateways = [each for each in distributed.nodemanager.group if each.spec in self._specs]
        until = time.monotonic() + _ENDS_S
        while True:
            found = [
                f"{each.id}: `{each.spec.python}` ended with exit status {status}"
                for each in gateways
                # execnet has no public way to the process.
                if (status := each._io.popen.poll()) is not None  # noqa: SLF001
            ]
            if found or time.monotonic() > until:
                return found
            time.sleep(0.05)


def mend_masks(session: GpuSession) -> None:
    """Write this worker's masks anew where they are a list that Slurm numbered across vendors."""
    value = os.environ.get("SLURM_STEP_GPUS") or os.environ.get("SLURM_JOB_GPUS")
    if not value or any(os.environ.get(name) != value for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")):
        return
    from pytest_gpucoexist.errors import GpuCoexistError
    from pytest_gpucoexist.model.visibility import write_masks

    try:
        machine = session.machine()
        keys = {key for mask in machine.masks if mask.translated_from for key in mask.devices or ()}
        given = [gpu for gpu in machine.gpus if gpu.key in keys]
        masks = write_masks(given, machine, session.options.mask_style, os.environ) if given else {}  # type: ignore[arg-type]
    except GpuCoexistError:
        return  # the first test that needs a GPU will say so
    for variable, text in masks.items():
        if text is None:
            os.environ.pop(variable, None)
        else:
            os.environ[variable] = text

"""Faults in a row, each drawn from its seed, through the real service: seen, called by its name, and nothing is left.

`GPUCOEXIST_FAULTS=500` runs that many; `GPUCOEXIST_FIRST_FAULT=321` begins there.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

import tests.transfer.needs_numpy  # noqa: F401 - above all that imports NumPy

if TYPE_CHECKING:
    from tests.proofs.rig import Rig

pytestmark = pytest.mark.skipif(
    "GPUCOEXIST_FAULTS" not in os.environ, reason="needs GPUCOEXIST_FAULTS, such as 500: it takes minutes"
)
ROUNDS = int(os.environ.get("GPUCOEXIST_FAULTS", "25"))
FIRST = int(os.environ.get("GPUCOEXIST_FIRST_FAULT", "0"))
EACH = 25


@pytest.mark.parametrize("first", range(FIRST, FIRST + ROUNDS, EACH))
def test_random_faults(rig: Rig, first: int) -> None:
    from tests.proofs.chaos import draw, unleash

    for seed in range(first, min(first + EACH, FIRST + ROUNDS)):
        chaos = draw(seed)
        begun = time.monotonic()
        print(f"seed {seed}: {chaos}", end="", flush=True)
        unleash(rig, chaos)
        print(f" - {time.monotonic() - begun:.2f} s")

"""Where the numbers of a run are gathered and written: to `hardware.json` and `hardware.md`, or as a variable says.

The folder needs no other conftest: with `pytest -m hardware tests/hardware` this one is the first.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.hardware.measured import Numbers, write_numbers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.model.machine import Machine


@pytest.fixture(scope="session")
def all_numbers(gpu_machine: Machine, pytestconfig: pytest.Config) -> Iterator[Numbers]:
    """What this run has measured. Run it in one process: each worker of pytest-xdist would write its own."""
    numbers = Numbers(gpu_machine, pytestconfig.getoption("gpu_machine", None))
    yield numbers
    stem = os.environ.get("GPUCOEXIST_HARDWARE_REPORT") or os.path.join(pytestconfig.invocation_params.dir, "hardware")
    for path in write_numbers(numbers, stem):
        print(f"written: {path}")


@pytest.fixture
def numbers(all_numbers: Numbers, request: pytest.FixtureRequest) -> Iterator[Numbers]:
    """Take numbers of this test: `numbers.add(rate_gbps=…)`."""
    all_numbers.begin(request.node.nodeid.rpartition("/")[2])
    yield all_numbers
    all_numbers.end()

"""Signals at random moments, deadlines too short, values that cannot travel: it always ends, and nothing is left.

`GPUCOEXIST_FAULTS=500` runs more of them; each prints its seed.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.errors import VendorProcessError
from pytest_gpucoexist.host import local_host
from tests.processes import called
from tests.processes.conftest import children, state

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = int(os.environ.get("GPUCOEXIST_FAULTS", "24"))
SIGNALS = [signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGTERM]


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended, and that is a moment like any other
        os.kill(pid, number)


def _send_to_new(others: set[int], number: int) -> None:
    for pid in children() - others:  # the number of a child that nobody has collected is its own
        _send(pid, number)


def _some_call(chance: random.Random) -> tuple[Any, ...]:
    calls: list[tuple[Any, ...]] = [
        (called.same, "x" * chance.randrange(3_000_000)),
        (called.same, [1] * chance.randrange(50_000)),
        (called.flood, chance.randrange(20 * 2**20)),
        (called.wait, 0.1),
        (called.fail, "on purpose"),
        (called.same, object()),
        (called.return_an_object,),
        (called.hold_the_gil, 1),
        (called.crash,),
    ]
    return chance.choice(calls)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(0, ROUNDS, 8))
def test_signals_during_calls(start: Callable[..., Any], seed: int) -> None:
    for each in range(seed, min(seed + 8, ROUNDS)):
        print(f"seed {each}")
        chance = random.Random(each)
        process = start()
        for _ in range(chance.randrange(1, 4)):
            timer = threading.Timer(chance.random() * 0.12, _send, (process.pid, chance.choice(SIGNALS)))
            if chance.random() < 0.6:
                timer.start()
            function, *arguments = _some_call(chance)
            with contextlib.suppress(VendorProcessError):  # anything else is a defect
                process.run(function, *arguments, deadline_s=chance.choice([0.02, 0.1, 0.4, 3]))
            timer.cancel()
            if timer.ident is not None:
                timer.join()
            if process.ending is not None:
                break  # its number may be another's
        assert process.close().stuck is None


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(0, ROUNDS, 8))
def test_signals_while_it_starts(seed: int) -> None:
    pytest.importorskip("execnet", reason="needs execnet")
    from pytest_gpucoexist.processes.launch import LaunchOrder
    from pytest_gpucoexist.processes.process import VendorProcess

    others = children()
    before = state()
    for each in range(seed, min(seed + 8, ROUNDS)):
        print(f"seed {each}")
        chance = random.Random(each)
        timer = threading.Timer(chance.random() * 0.15, _send_to_new, (others, chance.choice(SIGNALS)))
        order = LaunchOrder(python=sys.executable, environment=os.environ, deadline_s=1.0)
        timer.start()
        with contextlib.suppress(VendorProcessError), VendorProcess(order, local_host()) as process:
            process.run(called.same, 1, deadline_s=1.0)
        timer.join()
    assert state() == before

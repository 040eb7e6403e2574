"""Fixtures for the project's own suite."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# A test never judges by the clock: a runner that is busy is no failure. Nor by luck: every run of a commit tries the
# same inputs; GPUCOEXIST_EXPLORE=1 tries others, and what it finds becomes an example of its test.
_COMMON: Any = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("suite", derandomize=True, **_COMMON)
settings.register_profile("explore", **_COMMON)
settings.load_profile("explore" if os.environ.get("GPUCOEXIST_EXPLORE") else "suite")

# A job in the background of a script inherits an ignored SIGINT, and so would every session that a test interrupts.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["pytester", "tests.fakes.fixtures"]

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def leases_of_its_own(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test that runs pytest a folder of leases: sessions that replay one machine wait for each other.

    Those of this suite do not, however many run at a time, and none is in the way of people who use the machine.
    """
    if "pytester" in request.fixturenames:
        folder = request.getfixturevalue("tmp_path_factory").mktemp("leases")
        monkeypatch.setenv("PYTEST_GPU_LEASE_DIR", str(folder))


@pytest.fixture(scope="session")
def shared() -> Path:
    """Recordings and facts that lie beside a checkout; tests that need them skip without."""
    path = ROOT.parent / "shared"
    if not (path / "machines").is_dir():
        pytest.skip("needs ../shared: recordings of real machines are not beside this checkout")
    return path

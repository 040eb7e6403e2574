"""Sessions of pytest inside tests: with the plugin loaded, on a machine given as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

# pytester forgets modules that an inner run imported first: what is patched must have been imported here.
import pytest_gpucoexist.model.plan
import pytest_gpucoexist.session.discovery
import pytest_gpucoexist.session.gating
from tests.machines import dual, write_machine

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from pytest_gpucoexist.model.machine import Machine

XDIST = ("-p", "xdist")


@pytest.fixture
def session(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Callable[..., pytest.RunResult]:
    """Run pytest in this process; `on` is a machine to replay, None the computer itself.

    Autoload is off inside, so that both modes of this suite run the same.
    """
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)

    def run(*args: str, on: Machine | str | None = "dual", real: bool = False, **options: Any) -> pytest.RunResult:
        given: list[str] = []
        machine = dual() if on == "dual" else on
        if machine is not None and not isinstance(machine, str):
            path = write_machine(pytester.path / "machine.json", machine)
            given = [f"--gpu-machine={path}"]
            if real:
                # As if it were this computer: what a runner with GPUs sees.
                monkeypatch.setattr(pytest_gpucoexist.session.discovery, "discover_machine", lambda *_: machine)
                # Its files are not there to be judged.
                monkeypatch.setattr(pytest_gpucoexist.session.gating, "session_host", lambda *_: None)
                given = []
        plugins = ["-p", "gpucoexist", "-p", "no:cacheprovider"]
        if any(arg.startswith("-n") for arg in args):
            pytest.importorskip("xdist", reason="needs pytest-xdist: it is not installed")
            plugins += XDIST
        return pytester.runpytest_inprocess(*plugins, *given, *args, **options)

    return run

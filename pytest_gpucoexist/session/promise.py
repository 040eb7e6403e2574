"""`--gpu-require`: what this runner promised is checked before the first test, and its absence ends the run with 69."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_gpucoexist.session.state import GpuSession

__all__ = ["EXIT_PROMISE", "BrokenPromise", "check_promises"]

EXIT_PROMISE = 69
"""`EX_UNAVAILABLE` of sysexits.h: a service that was promised is not there."""


def check_promises(session: GpuSession) -> BrokenPromise | None:
    """Compare the promise with the machine. Raises GpuCoexistError when there is no machine to compare."""
    from pytest_gpucoexist.model.plan import promised_need, unmet_promises

    promises = session.options.promises
    machine = session.prepare([promised_need(promises)], judge=False)
    unmet = unmet_promises(promises, machine)
    session.unmet = unmet
    return BrokenPromise(session) if unmet else None


class BrokenPromise:
    """Ends the run in place of collection, the one moment at which JUnit is still written and no worker has started."""

    def __init__(self, session: GpuSession) -> None:
        """`session.unmet` says in full sentences what is missing."""
        self._option = f"--gpu-require={session.options.require}"
        self._unmet = session.unmet

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> None:
        """Report an error, so that JUnit is red, and stop."""
        from pytest_gpucoexist.session.collecting import fail_collection

        message = "\n".join(self._unmet)
        fail_collection(session, self._option, message)
        pytest.exit(f"{self._option} is not met: {'; '.join(self._unmet)}", returncode=EXIT_PROMISE)

"""What happens around each test that needs a GPU. Registered only when one was selected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from pytest_gpucoexist.errors import DeviceBusyError, GpuCoexistError, UserError
from pytest_gpucoexist.model.plan import is_promised
from pytest_gpucoexist.placement.grant import CANCELLED
from pytest_gpucoexist.session.fixture_needs import our_fixtures
from pytest_gpucoexist.session.frameworks import framework_of_report
from pytest_gpucoexist.session.holds import holds_of
from pytest_gpucoexist.session.leasing import HOLDING, LACKING, LATE_BUSY, hold, let_go

if TYPE_CHECKING:
    from collections.abc import Generator

    from pytest_gpucoexist.model.machine import Gpu
    from pytest_gpucoexist.model.plan import Decision
    from pytest_gpucoexist.session.leasing import Holding
    from pytest_gpucoexist.session.state import GpuSession

__all__ = ["HOLD_ERROR", "GpuProtocol"]

HOLD_ERROR = pytest.StashKey[GpuCoexistError]()
"""On an item: why its devices cannot be held."""

REFUSED = pytest.StashKey[bool]()
"""On an item: whether it was failed here, before it began."""

LOST = pytest.StashKey[str]()
"""On an item: the device that it used is gone, in a gate's words."""

SKIPPED = pytest.StashKey["tuple[str, str] | None"]()
"""On an item: what a skip by the suite itself comes to, and its reason."""


class GpuProtocol:
    """Acquires devices before a test and its timers begin, skips what cannot run, and tells what happened."""

    def __init__(self, session: GpuSession) -> None:
        """`session` decides."""
        self._session = session
        self._standing: tuple[pytest.Item, Holding | None] | None = None
        self._devices: dict[tuple[str, int | None], tuple[Gpu, dict[str, Any]]] = {}

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        """Hold the devices around everything: set-up, reruns, other plugins' timers."""
        if item.stash.get(CANCELLED, False):
            return (yield)  # a prediction of `--gpu-dist` that did not come true: nothing is run here
        decision = self._session.decision(item)
        if self._session.is_worker and (stopped := self._session.stopped):
            # The controller ends the run, but would wait for every test that it has handed out already.
            item.session.shouldstop = stopped
        holding = None
        item.stash[REFUSED] = False
        if HOLD_ERROR in item.stash:
            del item.stash[HOLD_ERROR]
        if HOLDING in item.stash:
            del item.stash[HOLDING]
        if not self._session.options.observe or our_fixtures(item):
            try:
                holding = hold(self._session, item, decision)
            except GpuCoexistError as error:
                item.stash[HOLD_ERROR] = error
        try:
            result = yield
        except BaseException:
            # Interrupted: what stands of its fixtures is torn down, with its devices, when the session finishes.
            self._standing = (item, holding)
            raise
        let_go(self._session, item, nextitem, holding)
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self) -> Generator[None, object, object]:
        """Release what wider scopes held, when pytest has torn down what a run that was stopped left standing."""
        try:
            return (yield)
        finally:
            if self._standing is not None:
                item, holding = self._standing
                self._standing = None
                let_go(self._session, item, None, holding)
            holds_of(self._session).release()

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skip or fail what cannot run, before any fixture (and so before `setUpClass`)."""
        decision = self._session.decision(item)
        if (error := item.stash.get(HOLD_ERROR, None)) is not None:
            busy = isinstance(error, DeviceBusyError) and not self._session.leaser.held()
            if busy and self._session.options.busy == "skip":
                pytest.skip(str(error))
            self._refuse(item, str(error))
        if decision is None or self._session.options.observe or decision.outcome == "run":
            return
        reason = decision.reason or ""
        if decision.outcome in {"unfit", "error"}:
            self._refuse(item, reason)
        if is_promised(decision.need, self._session.options.promises):
            self._refuse(item, f"{reason} (promised by --gpu-require={self._session.options.require})")
        if self._session.options.fail_missing:
            self._refuse(item, reason)
        pytest.skip(reason)

    @staticmethod
    def _refuse(item: pytest.Item, reason: str) -> NoReturn:
        item.stash[REFUSED] = True
        pytest.fail(reason, pytrace=False)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Put what is known on the report: builtins only, because it may travel from an xdist worker."""
        report = yield
        if report.when == "setup" and item.stash.get(REFUSED, False) and hasattr(report, "wasxfail"):
            # `xfail` expects the test to fail, not the machine to lack what it needs.
            report.outcome = "failed"
            del report.wasxfail
        if report.failed and not item.stash.get(REFUSED, False):
            self._look_for_lost(item, report)
        decision = self._session.decision(item)
        if decision is not None:
            if report.when != "teardown":
                # A call may follow the report of a subtest that was skipped.
                item.stash[SKIPPED] = None
            if report.skipped and not hasattr(report, "wasxfail"):
                reason = _reason(report)
                lacking = framework_of_report(report) or item.stash.get(LACKING, None) == reason
                item.stash[SKIPPED] = "missing" if lacking else "not_run", reason
                refused = decision.outcome != "run" or HOLD_ERROR in item.stash
                if refused and report.when == "setup" and isinstance(report.longrepr, tuple):
                    # The skip was raised here; a person looks for it at the test.
                    path, line, _ = item.reportinfo()
                    report.longrepr = (str(path), (line or 0) + 1, report.longrepr[2])
            told = self._tell(item, decision)
            report.gpucoexist = told  # type: ignore[attr-defined]
            if report.when != "setup" or report.outcome != "passed":  # others follow
                report.user_properties += [*_properties(told), *self._session.gate_properties]
        return report

    def _look_for_lost(self, item: pytest.Item, report: pytest.TestReport) -> None:
        """Say in the report of a test that failed that its device is gone, where it is."""
        holding = item.stash.get(HOLDING, None)
        if holding is None:
            return
        from pytest_gpucoexist.session.presence import lost_among

        lost = lost_among(self._session, holding.used)
        if lost:
            item.stash[LOST] = "; ".join(lost.values())
            report.sections.append(("GPU coexistence", item.stash[LOST]))
            self._session.take_out(lost)

    def _tell(self, item: pytest.Item, decision: Decision) -> dict[str, Any]:
        machine = self._session.discovered
        holding = item.stash.get(HOLDING, None)
        gpus = holding.reported() if holding is not None else ()
        shares = holding.shares if holding is not None else {}
        nodes = {gpu.numa_node for gpu in gpus}
        simulated = machine is not None and machine.simulated
        outcome, reason = _outcome(item, decision, simulated=simulated)
        host = None if self._session.link is None else self._session.link.host
        return {
            "requirement": decision.need.describe() or "malformed",
            "devices": [{**self._plain(gpu, shares.get(gpu.key), host, simulated=simulated)} for gpu in gpus],
            "host": host,
            "waited_s": round(holding.waited_s, 3) if holding is not None else 0.0,
            "numa_node": nodes.pop() if len(nodes) == 1 else None,
            "gpu_outcome": outcome,
            "reason": reason,
            "worker": getattr(self._session.config, "workerinput", {}).get("workerid"),
            "simulated": simulated,
            "decision": decision.outcome,
            "decision_reason": decision.reason,
            "candidates": _candidates(decision, machine),
        }

    def _plain(self, gpu: Gpu, share_bytes: int | None, host: str | None, *, simulated: bool) -> dict[str, Any]:
        """Return a device as a report has it: three times for each test, mostly the same few."""
        known = self._devices.get((gpu.key, share_bytes))
        if known is None or known[0] is not gpu:
            from pytest_gpucoexist.model.codec import encode
            from pytest_gpucoexist.reports.model import DeviceUse

            plain = encode(DeviceUse.of(gpu, simulated=simulated, share_bytes=share_bytes))
            if host is not None:
                plain["id"] = f"{host}:{plain['id']}"
            known = self._devices[gpu.key, share_bytes] = gpu, plain
        return known[1]


def _outcome(item: pytest.Item, decision: Decision, *, simulated: bool) -> tuple[str, str | None]:
    if LOST in item.stash:
        return "unfit", item.stash[LOST]
    if decision.outcome != "run":
        return ("not_run" if decision.outcome == "error" else decision.outcome), decision.reason
    if HOLD_ERROR in item.stash:
        error = item.stash[HOLD_ERROR]
        return "not_run" if isinstance(error, UserError) else "busy", str(error)
    if LATE_BUSY in item.stash:
        return "busy", item.stash[LATE_BUSY]
    if skipped := item.stash.get(SKIPPED, None):
        return skipped
    return ("simulated" if simulated else "ran"), None


def _candidates(decision: Decision, machine: Any) -> list[str]:
    keys = dict.fromkeys(key for group in decision.groups for key in group.candidates)
    return [gpu.id for key in keys if machine is not None and (gpu := machine.gpu(key)) is not None]


def _reason(report: pytest.TestReport) -> str:
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    return str(text).removeprefix("Skipped: ")


def _properties(told: dict[str, Any]) -> list[tuple[str, object]]:
    """JUnit properties of a test. JUnit reads those of the teardown, other reports those of the call."""
    found: list[tuple[str, object]] = [("gpu_requirement", told["requirement"])]
    found += [("gpu_device", _device_text(device)) for device in told["devices"]]
    if told["host"] is not None:
        found.append(("gpu_host", told["host"]))
    if told["numa_node"] is not None:
        found.append(("gpu_numa_node", told["numa_node"]))
    found.append(("gpu_outcome", told["gpu_outcome"]))
    if told["reason"]:
        found.append(("gpu_reason", told["reason"]))
    return found


def _device_text(device: dict[str, Any]) -> str:
    names = ("key", "uuid", "name", "driver", "driver_version")
    text = " ".join(dict.fromkeys(str(device[name]) for name in names if device[name]))
    if device["share_bytes"] is not None:
        from pytest_gpucoexist.model.arguments import format_bytes

        text += f" ({format_bytes(device['share_bytes'])} of its memory)"
    return f"{text} (SIMULATED)" if device["simulated"] else text

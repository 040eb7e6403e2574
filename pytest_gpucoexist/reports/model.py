"""What a session did, test by test, as a value.

Names are those of the JSON report (`schemas/report.json`); a report of an older release can be read by a newer one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from pytest_gpucoexist.errors import DataError
from pytest_gpucoexist.model.codec import decode, encode
from pytest_gpucoexist.model.machine import Gpu, Machine
from pytest_gpucoexist.model.timeline import Timeline
from pytest_gpucoexist.model.verdicts import Judgement

__all__ = [
    "GPU_OUTCOMES",
    "OUTCOMES",
    "REPORT_VERSION",
    "DeviceUse",
    "GpuOutcome",
    "ObserveRow",
    "Outcome",
    "PlanRow",
    "SessionReport",
    "TestRecord",
]

REPORT_VERSION = 1

Outcome = Literal["passed", "failed", "error", "skipped", "xfailed", "xpassed"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)

GpuOutcome = Literal["ran", "missing", "masked", "not_granted", "simulated", "unfit", "busy", "not_run"]
"""What became of a test's need. `ran`: on real devices, named in `devices`. `simulated`: on stand-ins, or it needs
devices that only a replayed machine has. `not_run`: the session ended first, or the suite itself skipped it."""

GPU_OUTCOMES: tuple[GpuOutcome, ...] = get_args(GpuOutcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUse:
    """A device that a test held, with what names it on another machine's report."""

    id: str
    key: str
    pci_address: str | None = None
    uuid: str | None = None
    name: str | None = None
    driver: str | None = None
    driver_version: str | None = None
    numa_node: int | None = None
    simulated: bool = False
    share_bytes: int | None = None
    """The part of its memory that was leased; None where it was leased whole."""

    @classmethod
    def of(cls, gpu: Gpu, *, simulated: bool = False, share_bytes: int | None = None) -> DeviceUse:
        """Take from a `Gpu` what a report keeps."""
        return cls(
            id=gpu.id,
            key=gpu.key,
            pci_address=gpu.pci_address,
            uuid=gpu.uuid,
            name=gpu.name,
            driver=gpu.driver,
            driver_version=gpu.driver_version,
            numa_node=gpu.numa_node,
            simulated=simulated,
            share_bytes=share_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TestRecord:
    """One test: what it needed, what it got, how it ended.

    `requirement` is None for a test that needs no GPU. `reason` is a full sentence when the need was not met.
    `waited_s` is the time before its set-up in which others had its devices; it is no part of `duration_s`.
    """

    __test__: ClassVar[bool] = False  # pytest shall not take it for a test class

    nodeid: str
    outcome: Outcome
    requirement: str | None = None
    devices: tuple[DeviceUse, ...] = ()
    numa_node: int | None = None
    gpu_outcome: GpuOutcome | None = None
    reason: str | None = None
    worker: str | None = None
    duration_s: float = 0.0
    waited_s: float = 0.0

    @property
    def ran_on_gpu(self) -> bool:
        """Whether it really ran on a device of the machine: not skipped, nothing simulated."""
        if self.gpu_outcome != "ran" or self.outcome == "skipped":
            return False
        return not any(device.simulated for device in self.devices)

    def to_json(self) -> dict[str, Any]:
        """Return builtin types only: it can ride on a pytest report through execnet."""
        return encode(self)  # type: ignore[no-any-return]

    @classmethod
    def from_json(cls, data: object) -> TestRecord:
        """Read what `to_json` wrote. Raises DataError."""
        return decode(cls, data)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """Where one test would run, or why not: a line of `--gpu-plan`. Devices are ids such as `nvidia0`.

    `alternatives` are devices that would do as well. `devices` is empty when the need is not met.
    """

    nodeid: str
    requirement: str
    devices: tuple[str, ...] = ()
    alternatives: tuple[str, ...] = ()
    share: str | None = None
    """The part of their memory that it would lease, in words; None: the devices whole."""
    outcome: GpuOutcome = "ran"
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserveRow:
    """What the plugin would have done with a test and what the suite did: a line of `--gpu-observe`.

    `decision` is what the plugin would have done in words (`run on nvidia0`, `skip: needs …`), `outcome` what happened.
    """

    nodeid: str
    decision: str
    outcome: Outcome
    differs: bool
    requirement: str | None = None
    suite_reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionReport:
    """One pytest session. `created` is ISO 8601 in UTC; `promised` is the text of `--gpu-require`.

    `timeline` is what a run with `--gpu-dist` did with the devices.
    """

    version: str
    created: str
    report: int = REPORT_VERSION
    exit_status: int | None = None
    simulated: bool = False
    machine: Machine | None = None
    promised: str | None = None
    judgement: Judgement | None = None
    tests: tuple[TestRecord, ...] = ()
    timeline: Timeline | None = None
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the object of a `.json` report, of builtin types only."""
        return encode(self)  # type: ignore[no-any-return]

    @classmethod
    def from_json(cls, data: object) -> SessionReport:
        """Read what `to_json` wrote. Raises DataError, also for a report of a version not known here."""
        report = decode(cls, data)
        if report.report != REPORT_VERSION:
            raise DataError(f"$.report: version {report.report} is not known here; this release reads {REPORT_VERSION}")
        return report

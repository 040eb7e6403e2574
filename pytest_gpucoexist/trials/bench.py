"""What all trials share: devices that are open in processes of their own, the time that is left, and what was found.

A device that fails costs its own trials: what raises is noted as untried, in words, and its process is ended.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from pytest_gpucoexist.errors import EngineError, GpuCoexistError, TransferError, VendorProcessError
from pytest_gpucoexist.model.trials import Integrity, Sample, Untried, Wrong
from pytest_gpucoexist.staging.endpoint import open_endpoint
from pytest_gpucoexist.staging.service import Staging

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpucoexist.host.base import Host
    from pytest_gpucoexist.model.machine import Gpu
    from pytest_gpucoexist.processes.opening import OpenedProcess
    from pytest_gpucoexist.staging.endpoint import Endpoint

__all__ = ["Bench"]

COPY_S = 5.0  # a piece of at most a few MiB that takes longer hangs


@dataclass(slots=True)
class Bench:
    """One run of trials. `opener` starts a process that sees some devices of one vendor."""

    host: Host
    opener: Callable[[Sequence[Gpu]], OpenedProcess]
    level: Literal["transfer", "full"]
    ends_s: float
    seed: int
    simulated: bool = False
    progress: Callable[[str], None] = lambda _: None
    staging: Staging = field(default_factory=lambda: Staging(copy_s=COPY_S))
    endpoints: dict[str, Endpoint] = field(default_factory=dict)
    integrity: list[Integrity] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    untried: list[Untried] = field(default_factory=list)
    facts: dict[str, object] = field(default_factory=dict)

    @property
    def left_s(self) -> float:
        """How long it may still take."""
        return self.ends_s - time.monotonic()

    def open(self, gpus: Sequence[Gpu]) -> None:
        """Open each device in a process of its own."""
        for gpu in gpus:
            self.progress(f"opening {gpu.id}")
            self.guarded("open", gpu.key, None, lambda gpu=gpu: self._open(gpu))

    def guarded(self, kind: str, source: str | None, target: str | None, work: Callable[[], object]) -> bool:
        """Do a trial; what it raises is noted, and takes out the device that raised. Returns whether it was done."""
        if self.left_s <= 0:
            self.untried.append(Untried(kind=kind, source=source, target=target, reason="the budget was used up"))
            return False
        try:
            work()
        except EngineError as error:
            status: Literal["SKIP", "UNKNOWN", "ERROR"] = "UNKNOWN"
            if error.kind in {"lost", "deadline", "other", "closed"}:
                status = "ERROR"
            self._untried(kind, source, target, error, status)
        except (TransferError, VendorProcessError) as error:
            self._untried(kind, source, target, error, "ERROR")
        else:
            return True
        return False

    def add(self, found: Integrity) -> None:
        """Note what a verified copy has shown."""
        self.integrity.append(found)

    def failed(self, kind: str, source: str, target: str, error: GpuCoexistError) -> None:
        """Note a verified copy that could not be made."""
        wrong = (Wrong(kind="failed", sentence=str(error)),)
        self.integrity.append(
            Integrity(kind=kind, source=source, target=target, route="staged", sizes=(), wrong=wrong, seed=self.seed)
        )

    def close(self) -> None:
        """End everything."""
        self.staging.close()
        for endpoint in self.endpoints.values():
            endpoint.process.close()

    def _open(self, gpu: Gpu) -> None:
        process = self.opener([gpu])
        try:
            self.endpoints[gpu.key] = open_endpoint(process, gpu, simulated=self.simulated)
        except BaseException:
            process.close()
            raise

    def _untried(
        self,
        kind: str,
        source: str | None,
        target: str | None,
        error: GpuCoexistError,
        status: Literal["SKIP", "UNKNOWN", "ERROR"],
    ) -> None:
        self.untried.append(Untried(kind=kind, source=source, target=target, reason=str(error), status=status))
        for key in (source, target):
            endpoint = self.endpoints.get(key or "")
            if endpoint is not None and (endpoint.broken or endpoint.process.process.ending is not None):
                del self.endpoints[endpoint.key]
                endpoint.process.close()

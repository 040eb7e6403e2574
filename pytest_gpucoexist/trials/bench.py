"""What all trials share: devices that are open in processes of their own, the time that is left, and what was found.

A device that fails costs its own trials: what raises is noted as untried, in words, and its process is ended.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Literal

from pytest_gpucoexist.errors import EngineError, TransferError, VendorProcessError
from pytest_gpucoexist.model.trials import Untried
from pytest_gpucoexist.staging.endpoint import open_endpoint
from pytest_gpucoexist.staging.service import Staging

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpucoexist.host.base import Host
    from pytest_gpucoexist.model.machine import Gpu
    from pytest_gpucoexist.model.trials import Integrity, Sample
    from pytest_gpucoexist.processes.opening import OpenedProcess
    from pytest_gpucoexist.staging.endpoint import Endpoint

__all__ = ["FAILURES", "Bench"]

FAILURES = (TransferError, VendorProcessError, OSError)
"""What a trial may raise; anything else is a defect of this package, or Ctrl-C."""

COPY_S = 5.0  # a piece of at most a few MiB that takes longer hangs


class Bench:
    """One run of trials."""

    def __init__(
        self,
        host: Host,
        opener: Callable[[Sequence[Gpu]], OpenedProcess],
        level: Literal["transfer", "full"],
        *,
        ends_s: float,
        seed: int,
        simulated: bool,
        progress: Callable[[str], None],
    ) -> None:
        """Take what starts a process for devices of one vendor (`opener`), and an end by the monotonic clock."""
        self.host = host
        self.opener = opener
        self.level: Literal["transfer", "full"] = level
        self.ends_s = ends_s
        self.seed = seed
        self.simulated = simulated
        self.progress = progress
        self.staging = Staging(copy_s=COPY_S)
        self.endpoints: dict[str, Endpoint] = {}
        self.integrity: list[Integrity] = []
        self.samples: list[Sample] = []
        self.untried: list[Untried] = []
        self.facts: dict[str, object] = {}

    @property
    def left_s(self) -> float:
        """How long it may still take."""
        return self.ends_s - time.monotonic()

    def open(self, gpus: Sequence[Gpu]) -> None:
        """Open each device in a process of its own."""
        for gpu in gpus:
            self.progress(f"opening {gpu.id}")
            self.guarded("open", gpu.key, None, functools.partial(self._open, gpu))

    def guarded(self, kind: str, source: str | None, target: str | None, work: Callable[[], object]) -> bool:
        """Do a trial; what it raises is noted, and takes out the device that raised. Returns whether it was done."""
        if self.left_s <= 0:
            self.untried.append(Untried(kind=kind, source=source, target=target, reason="the budget was used up"))
            return False
        try:
            work()
        except FAILURES as error:
            self.failed(kind, source, target, error)
            return False
        return True

    def add(self, found: Integrity) -> None:
        """Note what a verified copy has shown."""
        self.integrity.append(found)

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

    def failed(self, kind: str, source: str | None, target: str | None, error: Exception) -> None:
        """Note a trial that raised, and end the processes of its devices that are of no use any more."""
        is_answer = isinstance(error, EngineError) and error.kind not in {"lost", "deadline", "other", "closed"}
        status: Literal["UNKNOWN", "ERROR"] = "UNKNOWN" if is_answer else "ERROR"
        self.untried.append(Untried(kind=kind, source=source, target=target, reason=str(error), status=status))
        for key in (source, target):
            endpoint = self.endpoints.get(key or "")
            if endpoint is not None and (endpoint.broken or endpoint.process.process.ending is not None):
                del self.endpoints[endpoint.key]
                endpoint.process.close()

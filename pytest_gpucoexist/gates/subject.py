"""What a gate looks at: the machine, the host, and evidence that many gates share and one of them reads."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_gpucoexist.gates.intent import driver_software
from pytest_gpucoexist.host.base import Host
from pytest_gpucoexist.model.machine import Gpu, Machine
from pytest_gpucoexist.model.trials import Trials
from pytest_gpucoexist.model.verdicts import Level
from pytest_gpucoexist.probes.platform import WSL_DRIVER
from pytest_gpucoexist.probes.reader import Text, names_in, read_text

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Subject"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One machine under judgement.

    `promised` is what `--gpu-require` promises (`{"cuda": 2}`); `needed` the vendors that selected tests ask for by
    name. `since_s` is the host's clock (seconds since the epoch) when the session began, None outside of one: what
    the kernel logged later happened in the session. `deadline_s` is the time for all vendor libraries together.
    `trials` is what was tried with the devices, at the levels `transfer` and `full`; None where nothing was.
    """

    host: Host
    machine: Machine
    level: Level = "quick"
    promised: Mapping[str, int] = field(default_factory=dict)
    needed: frozenset[str] = frozenset()
    since_s: float | None = None
    deadline_s: float = 5.0
    limits: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    trials: Trials | None = None
    _shared: dict[Any, Any] = field(default_factory=dict)
    _locks: dict[Any, threading.Lock] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def gpus(self, *vendors: str) -> list[Gpu]:
        """Return the compute devices of these vendors (all: none named) that are granted here.

        A GPU of the host that this container does not hold is nobody's business here. Masked devices are included.
        """
        known = self._shared.get(("subject", vendors))
        if known is None:
            known = tuple(
                gpu
                for gpu in self.machine.gpus
                if gpu.is_compute and gpu.granted and (not vendors or gpu.vendor in vendors)
            )
            self._shared["subject", vendors] = known
        return list(known)

    def functions(self, *vendors: str) -> list[Gpu]:
        """Like `gpus`, one for each PCI function: a card that is partitioned counts once, others not at all.

        In WSL a library tells an address of Windows' bus, where nothing of Linux is: no function either.
        """
        found: dict[str, Gpu] = {}
        for gpu in self.gpus(*vendors):
            if gpu.pci_address is not None and gpu.driver != WSL_DRIVER:
                found.setdefault(gpu.pci_address, gpu)
        return list(found.values())

    def wanted(self, vendor: str) -> str | None:
        """Say why somebody expects this vendor's GPUs to work here, or None: an idle card is nobody's problem.

        A promise, or the vendor's driver software installed on this system. That a test names the vendor is no sign:
        a suite's CUDA tests are selected on every laptop.
        """
        names = {"nvidia": ("nvidia", "cuda"), "amd": ("amd", "rocm"), "intel": ("intel",)}.get(vendor, ())
        promise = next((f"{name}:{self.promised[name]}" for name in names if self.promised.get(name)), None)
        if promise is not None:
            return f"{promise} is promised"
        return driver_software(self.machine, vendor)

    def limit(self, gate_id: str, name: str, default: float) -> float:
        """Return a gate's number: from `gpu_gate_limits`, else `default`, which the gate's `limits` must show too."""
        return self.limits.get(gate_id, {}).get(name, default)

    def read(self, path: str, limit: int = 65536) -> Text:
        """Read a file once for all gates: its text, or why there is none. Never raises OSError."""
        return self.shared(("read", path, limit), lambda: read_text(self.host, path, limit))

    def names(self, path: str) -> list[str]:
        """List a folder once for all gates; empty where it cannot be listed."""
        return self.shared(("names", path), lambda: names_in(self.host, path))

    def shared(self, key: Any, make: Callable[[], T]) -> T:
        """Return what `make` gave the first gate that asked for `key`; the others wait for it.

        Raises what `make` raised, to each of them. Keys are tuples that begin with the name of their module.
        """
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            if key not in self._shared:
                try:
                    self._shared[key] = (make(), None)
                except Exception as error:  # noqa: BLE001  every gate that asks gets it
                    self._shared[key] = (None, error)
            value, failure = self._shared[key]
        if failure is not None:
            raise failure
        return value  # type: ignore[no-any-return]

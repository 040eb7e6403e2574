"""Two NVIDIA and two AMD devices of drivers without hardware, one process for each vendor, and leases on all four.

Processes are kept from one fault to the next until one is broken: `bare` is what there was before there were any,
`base` what there was when those that run now had started.
"""

from __future__ import annotations

import os
import uuid
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.host import local_host
from pytest_gpucoexist.leases.machine import Identity, MachineLeaser
from pytest_gpucoexist.leases.places import Place
from pytest_gpucoexist.model.groups import Group
from pytest_gpucoexist.model.machine import Gpu, Machine
from pytest_gpucoexist.model.requirement import Requirement
from tests.fakes.gpus import AMD_GPUS, NVIDIA_GPUS
from tests.proofs.inventory import MARK, Inventory, differences, inventory

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pytest_gpucoexist.leases.lease import Lease
    from pytest_gpucoexist.processes.process import VendorProcess
    from pytest_gpucoexist.staging.endpoint import Endpoint
    from tests.fakes.machine import FakeMachine

__all__ = ["COPY_S", "DEADLINE_S", "Rig"]

COPY_S = 0.5
"""How long a copy of a chunk may take here: long beside what it does take, short beside a test."""
DEADLINE_S = 5.0

GPUS = {
    "nvidia": [
        Gpu(id=f"nvidia{n}", vendor="nvidia", pci_address=each.pci_address) for n, each in enumerate(NVIDIA_GPUS)
    ],
    "amd": [Gpu(id=f"amd{n}", vendor="amd", pci_address=each.pci_address) for n, each in enumerate(AMD_GPUS)],
}
MACHINE = Machine(name="fakes", gpus=(*GPUS["nvidia"], *GPUS["amd"]))


class Rig:
    """The processes and what they are compared with. `close` ends them."""

    def __init__(
        self,
        machine: FakeMachine,
        environ: Mapping[str, dict[str, str]],
        folder: Path,
        *,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        """Take the environments of both vendors' processes, and a folder for leases."""
        self._deadline_s = deadline_s
        self.machine = machine
        self.mark = uuid.uuid4().hex
        self.environ = environ
        self._folder = folder
        self._place = Place(kind="folder", folder=str(folder))
        self._leaser = self.another_user()
        self._leaser.release(self.lease())  # what is made once and stays, such as the files that are locked
        self._processes: list[Any] = []
        self._ends: dict[str, Endpoint] = {}
        self.opened = 0
        self.bare = self.now()
        self.base = self.bare

    def another_user(self) -> MachineLeaser:
        """Return one more who takes leases of these devices."""
        return MachineLeaser(lambda: MACHINE, self._place, Identity("proof"))

    def lease(self, leaser: MachineLeaser | None = None) -> Lease:
        """Lease all four devices, without waiting for them."""
        keys = tuple(gpu.key for gpu in MACHINE.gpus)
        groups = [Group(requirement=Requirement(count=len(keys)), candidates=keys)]
        return (leaser or self._leaser).acquire(groups, "a proof", timeout_s=0.0)

    def release(self, lease: Lease) -> None:
        """Give the devices back."""
        self._leaser.release(lease)

    @property
    def running(self) -> bool:
        """Whether there are processes that nobody has ended by `end_all`."""
        return bool(self._processes)

    def now(self) -> Inventory:
        """Take stock."""
        return inventory(self.mark, self._folder)

    def end(self, name: str) -> Endpoint:
        """Return a device, "nvidia.0" or "amd.1"; starts both vendors' processes when they do not run."""
        if not self._processes:
            self._open()
        return self._ends[name]

    def pids(self) -> list[int]:
        """Return the processes of NVIDIA and AMD."""
        return [self.end(f"{vendor}.0").process.process.pid for vendor in GPUS]

    def processes(self) -> list[VendorProcess]:
        """Return the processes that run, or have run since `end_all`."""
        return [each.process for each in self._processes]

    def left(self) -> list[str]:
        """Say what a fault left behind while the processes go on."""
        return differences(self.base, self.now())

    def end_all(self) -> list[str]:
        """End the processes, give lost devices back, and say what is left then."""
        stuck = [process.close().stuck for process in self._processes]
        self._processes, self._ends = [], {}
        self.machine.put({f"{vendor}.{n}.lost": None for vendor in GPUS for n in range(2)})
        return [*(f"cannot be ended: {each}" for each in stuck if each), *differences(self.bare, self.now())]

    def _open(self) -> None:
        from pytest_gpucoexist.processes.opening import open_process
        from pytest_gpucoexist.staging.endpoint import open_endpoint

        host = local_host()
        self.opened += 1
        for vendor, gpus in GPUS.items():
            whole = {**os.environ, **self.environ[vendor], MARK: self.mark}
            process = open_process(gpus, MACHINE, gpus[0].vendor, host=host, environ=whole)
            self._processes.append(process)
            for number, gpu in enumerate(gpus):
                self._ends[f"{vendor}.{number}"] = open_endpoint(process, gpu, deadline_s=self._deadline_s)
        self.base = self.now()

    def close(self) -> list[str]:
        """End everything and say what is left."""
        left = self.end_all()
        self._leaser.close()
        return left

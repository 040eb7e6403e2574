"""The machine that the fake drivers stand for: written for them, and changed while a client runs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.fakes.board import MAX_ORDERS, Board

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from pytest_gpucoexist.testing.vendor_replies import AmdGpu, GpuUser, MigInstance, NvmlGpu

Keys = dict[str, object]

NOT_AVAILABLE = 0xFFFFFFFFFFFFFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A fault that was ordered under a key of the description, and that is counted on the board."""

    machine: FakeMachine
    key: str
    number: int

    @property
    def seen(self) -> int:
        """How many copies or calls it could have struck at, in all processes."""
        return self.machine.board.order(self.number)[0]

    @property
    def struck(self) -> int:
        """How often the fault has happened, in all processes."""
        return self.machine.board.order(self.number)[1]

    def withdraw(self) -> None:
        """Let it happen no more; what hangs by it goes on."""
        self.machine.put({self.key: None})


class FakeMachine:
    """The description that the fake libraries read. Every change is in force at their next call."""

    def __init__(self, folder: Path, libraries: Mapping[str, str]) -> None:
        self.path = folder / "machine.conf"
        self.log = folder / "calls.log"
        self.environ = {
            **libraries,
            "GPUCOEXIST_FAKE_MACHINE": str(self.path),
            "GPUCOEXIST_FAKE_LOG": str(self.log),
        }
        self._keys: dict[str, str] = {}
        self._orders = 0
        self.board = Board(self.path)
        self._write()

    def put(self, keys: Mapping[str, object]) -> None:
        """Set keys of the description; None takes one away."""
        for key, value in keys.items():
            self._keys.pop(key, None)
            if value is not None:
                self._keys[key] = str(int(value) if isinstance(value, bool) else value)
        self._write()

    def fault(self, where: str, action: str | None) -> None:
        """Let a function fail: `fault("nvidia.nvmlInitWithFlags", "hang 60")`, `fault("nvidia.1.*", "status 15")`."""
        scope, _, function = where.rpartition(".")
        self.put({f"{scope}.fault.{function}": action})

    def order(self, key: str, action: str, *, at: int = 1, each: bool = False) -> Order:
        """Order a fault of a copy or of a function, from now on and counted over all processes.

        `order("nvidia.0.copy.h2d", "flip 4096")` strikes once, at the `at`-th copy from here on or, if that does not
        fit (`src/gpu/faults.c` has the actions), the first that does; `each` at all of them. A way is h2d, d2h, d2d or
        peer.INDEX. `order("cuda.1.fault.cuMemAlloc", "status 2")` is for a function: CUDA's without their "_v2".
        """
        if ".copy." in key:
            self.board.engine(key.replace(".copy.", "."))  # raises where there is no such engine
        self._orders += 1
        assert self._orders < MAX_ORDERS
        self.put({key: f"#{self._orders} {at}{'+' if each else ''} {action}"})
        return Order(machine=self, key=key, number=self._orders)

    def copied(self, where: str) -> tuple[int, int]:
        """Return how many copies an engine has made, and their bytes: `copied("nvidia.0.h2d")`, `"amd.0.peer.1"`."""
        return self.board.engine(where)

    def load(self, *folders: Path) -> None:
        """Let clients find libraries in these folders too."""
        known = self.environ.get("LD_LIBRARY_PATH", "").split(":")
        self.environ["LD_LIBRARY_PATH"] = ":".join(filter(None, [*known, *map(str, folders)]))

    def nvidia(
        self,
        *gpus: NvmlGpu,
        driver_version: str = "570.133.07",
        p2p: Collection[tuple[int, int]] = (),
        cuda: int = 12080,
    ) -> None:
        """Describe NVIDIA's driver and GPUs."""
        self.put(
            {
                "nvidia.count": len(gpus),
                "nvidia.driver_version": driver_version,
                "nvidia.nvml_version": f"{cuda // 1000}.{driver_version}",
                "nvidia.cuda_driver_version": cuda,
                **{f"nvidia.p2p.{low}.{high}": 0 for low, high in p2p},
            }
        )
        for index, gpu in enumerate(gpus):
            self.put({f"nvidia.{index}.{name}": value for name, value in _nvidia(gpu).items()})
            if gpu.fault is not None:
                self.fault(f"nvidia.{index}.*", "status 15")

    def amd(
        self,
        *gpus: AmdGpu,
        driver_version: str | None = "6.14.14",
        p2p: Collection[tuple[int, int]] = (),
        link: int = 1,
        hops: int = 2,
    ) -> None:
        """Describe AMD's driver and GPUs; `link` is the wrapper's own number (7.0: 1 is PCIe, 2 XGMI)."""
        pairs = [(low, high) for high in range(len(gpus)) for low in range(high)]
        self.put({"amd.count": len(gpus), "amd.driver_version": driver_version})
        self.put({f"amd.link.{low}.{high}": f"{link} {hops}" for low, high in pairs})
        self.put({f"amd.p2p.{low}.{high}": (low, high) in p2p for low, high in pairs})
        for index, gpu in enumerate(gpus):
            self.put({f"amd.{index}.{name}": value for name, value in _amd(gpu).items()})

    def calls(self) -> list[str]:
        """Return the functions that clients have called, in order."""
        if not self.log.exists():
            return []
        return [line.split()[1] for line in self.log.read_text().splitlines()]

    def callers(self) -> set[int]:
        """Return the PIDs of the processes that have called."""
        return {int(line.split()[0]) for line in self.log.read_text().splitlines()} if self.log.exists() else set()

    def contexts(self) -> list[tuple[int, str]]:
        """Return the contexts that clients have made, in order: the PID and the device, `(4711, "nvidia.0")`."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        calls = [(int(pid), function, device) for pid, function, device in (line.split() for line in lines)]
        return [
            (pid, f"{vendor}.{device}")
            for pid, function, device in calls
            for vendor in ("nvidia", "amd")
            if function == f"{vendor}.context"
        ]

    def _write(self) -> None:
        text = "".join(f"{key} = {value}\n" for key, value in self._keys.items())
        temporary = self.path.with_suffix(".new")
        temporary.write_text(text)
        os.replace(temporary, self.path)
        self.board.describe_again()


def _nvidia(gpu: NvmlGpu) -> Keys:
    subvendor, _, subdevice = gpu.subsystem_id.partition(":")
    keys: Keys = {
        "name": gpu.name,
        "uuid": gpu.uuid,
        "pci": gpu.pci_address,
        "pci_device_id": f"{gpu.device_id}10de",
        "pci_subsystem_id": f"{subdevice}{subvendor[2:]}",
        "minor": gpu.minor,
        "vbios": gpu.vbios_version,
        "compute_capability": gpu.compute_capability,
        "memory_total": gpu.memory_total_bytes,
        "memory_used": gpu.memory_used_bytes,
        "bar1_total": gpu.bar1_total_bytes,
        "bar1_used": gpu.bar1_used_bytes,
        "ecc": gpu.ecc,
        "mig": gpu.mig,
        "mig_slots": 7 if gpu.mig else None,
        "memory_affinity": None if gpu.memory_nodes is None else sum(1 << node for node in gpu.memory_nodes),
        "pcie_generation": gpu.pcie_generation,
        "pcie_max_generation": gpu.pcie_max_generation,
        "pcie_width": gpu.pcie_width,
        "pcie_max_width": gpu.pcie_max_width,
        "persistence": gpu.persistence,
        "compute_mode": 0,
        "processes": _processes(gpu.processes, "compute"),
        "graphics_processes": _processes(gpu.processes, "graphics"),
    }
    for part in gpu.instances:
        # The slot is the GPU instance's number: slots in between stay empty, as on a real board.
        keys |= {f"mig.{part.gi - 1}.{name}": value for name, value in _instance(part).items()}
    return keys


def _instance(part: MigInstance) -> Keys:
    return {
        "uuid": part.uuid,
        "name": part.name,
        "gi": part.gi,
        "ci": part.ci,
        "memory_total": part.memory_total_bytes,
        "memory_used": part.memory_used_bytes,
        "gpu_slices": part.slices,
        "compute_slices": part.slices,
        "multiprocessors": part.multiprocessors,
        "processes": _processes(part.processes, "compute"),
        "graphics_processes": _processes(part.processes, "graphics"),
    }


def _amd(gpu: AmdGpu) -> Keys:
    return {
        "bdf": gpu.pci_address,
        "name": gpu.name,
        "uuid": gpu.uuid,
        "asic_serial": gpu.uuid and f"0x{gpu.uuid.removeprefix('GPU-').upper()}",
        "device_id": gpu.device_id,
        "target_graphics_version": gpu.target and f"0x{gpu.target.removeprefix('gfx')}",
        "compute_units": gpu.compute_units,
        "vram_total": gpu.memory_total_bytes,
        "vram_used": gpu.memory_used_bytes,
        "vbios_version": gpu.vbios_version,
        "vbios_part_number": gpu.vbios_part_number,
        "compute_partition": gpu.compute_partition,
        "memory_partition": gpu.memory_partition,
        "kfd_id": gpu.kfd_id,
        "kfd_node": gpu.kfd_node,
        "partition_id": gpu.partition_id,
        "numa_node": 0xFFFFFFFF if gpu.numa_node is None else gpu.numa_node,
        "ecc_blocks": gpu.ecc_blocks,
        "pcie_mtps": gpu.pcie_mtps,
        "pcie_width": gpu.pcie_width,
        "pcie_max_mtps": gpu.pcie_max_mtps,
        "pcie_max_width": gpu.pcie_max_width,
        "processes": _processes(gpu.processes, "compute"),
    }


def _processes(users: Sequence[GpuUser], kind: str) -> str | None:
    return " ".join(
        f"{user.pid}:{NOT_AVAILABLE if user.memory_bytes is None else user.memory_bytes}"
        for user in users
        if user.kind == kind
    )

"""A quick judgement of the bus and of memory leaves a sleeping GPU alone, and opens nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from pytest_gpucoexist.gates.catalogue import gates_of_level
from pytest_gpucoexist.gates.runner import judge
from pytest_gpucoexist.testing.builder import a_machine
from tests.gates.judging import subject_of
from tests.gates.pcie.trees import folder_of, put, space

if TYPE_CHECKING:
    from pytest_gpucoexist.host.base import Host

# Answered from the kernel's memory (drivers/pci/pci-sysfs.c, aer.c, iommu.c, drivers/base/power/sysfs.c).
HARMLESS = {
    *("power/runtime_status", "resource", "dma_mask_bits", "removable", "vendor", "device", "driver", "uevent"),
    *("aer_dev_correctable", "aer_dev_fatal", "aer_dev_nonfatal", "link/l1_aspm"),
}


class Watched:
    """A host that keeps which files were read, and refuses everything that is no reading of files."""

    def __init__(self, inner: Host) -> None:
        self._inner = inner
        self.read: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name in {"ask", "ask_all", "run", "open_file", "kernel_log"}:
            raise AssertionError(f"a quick gate called {name}")
        return getattr(self._inner, name)

    def read_bytes(self, path: str, limit: int = 65536) -> bytes:
        self.read.append(self._inner.resolve(path) if self._inner.exists(path) else path)
        return self._inner.read_bytes(path, limit)

    def read_text(self, path: str, limit: int = 65536) -> str:
        self.read.append(self._inner.resolve(path) if self._inner.exists(path) else path)
        return self._inner.read_text(path, limit)


@pytest.mark.parametrize(("model", "gpu"), [("rtx4090", "nvidia0"), ("rx7900xtx", "amd0"), ("arc-b580", "intel0")])
def test_only_files_that_the_kernel_answers_by_itself_are_read(model: str, gpu: str) -> None:
    machine = a_machine().with_gpu(model).sleep(gpu)
    for number in (0, 1, 2):
        machine = put(machine, gpu, f"resource{number}_resize", "0000000000007f00\n")
    machine = put(machine, gpu, "config", space())
    folder = folder_of(machine, gpu)
    before = subject_of(machine, level="quick")
    host = Watched(before.host)
    import dataclasses

    gates = [gate for gate in gates_of_level("quick") if gate.id.startswith(("pcie.", "mem.", "topo.baseline"))]
    judgement = judge(dataclasses.replace(before, host=cast("Host", host)), gates=gates)
    assert [each.reason for each in judgement.verdicts if each.status == "ERROR"] == []
    inside = {path.removeprefix(f"{folder}/") for path in host.read if path.startswith(f"{folder}/")}
    assert inside
    assert inside <= HARMLESS
    assert not [path for path in host.read if path.startswith("/dev/")]

"""Built machines with a baseline in them."""

from __future__ import annotations

from pytest_gpucoexist.gates.baseline.record import baseline_of, to_text
from pytest_gpucoexist.gates.baseline.store import SYSTEM_FOLDER, machine_id
from pytest_gpucoexist.probes import discover
from pytest_gpucoexist.testing.builder import MachineBuilder, a_machine

__all__ = ["MACHINE", "OWN_FOLDER", "WITHOUT_AMD", "baseline_path", "baseline_text", "remembering"]

OWN_FOLDER = "/home/kim/.local/state/gpucoexist"
WITHOUT_AMD = (
    a_machine()
    .with_numa_nodes(2)
    .with_gpu("rtx4090")
    .with_file("/etc/machine-id", "0123456789abcdef0123456789abcdef\n")
    .with_file("/sys/class/dmi/id/bios_version", "F13\n")
    .with_environ(HOME="/home/kim")
)
MACHINE = WITHOUT_AMD.with_gpu("rx7900xtx", numa_node=1)
"""An NVIDIA and an AMD card, each on a NUMA node of its own."""


def baseline_text(machine: MachineBuilder) -> str:
    """What `save` writes about a machine that was discovered from its files."""
    host = machine.host()
    return to_text(baseline_of(host, discover(host), machine_id(host)))


def baseline_path(machine: MachineBuilder, folder: str = SYSTEM_FOLDER) -> str:
    """Where a machine's baseline lies."""
    return f"{folder}/baseline-{machine_id(machine.host())}.json"


def remembering(now: MachineBuilder, before: MachineBuilder, folder: str = SYSTEM_FOLDER) -> MachineBuilder:
    """Return `now` with the baseline of `before`."""
    return now.with_file(baseline_path(now, folder), baseline_text(before))

"""What `gpucoexist record` tells about the archive that it wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.reports.layout import lines_below
from pytest_gpucoexist.reports.screen import PLAIN, Screen
from pytest_gpucoexist.reports.words import describe_size, joined, plural, population

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpucoexist.model.machine import Machine
    from pytest_gpucoexist.model.verdicts import VerdictStatus

__all__ = ["differences", "recorded_text"]

REPLACED = (
    "serial numbers, UUIDs, names of host, users, groups and private folders, MAC and private IP addresses, "
    "command lines; equal values stay equal"
)


def recorded_text(
    machine: Machine,
    replayed: Machine,
    *,
    path: str,
    size_bytes: int,
    paths: int,
    helpers: Sequence[str],
    variables: tuple[int, int],
    judged: tuple[Mapping[str, VerdictStatus], Mapping[str, VerdictStatus]] | None = None,
    screen: Screen = PLAIN,
) -> str:
    """Say what the archive holds, what was replaced and left out, and whether it gives the same machine.

    `paths` counts the files, folders and links in it, `helpers` names the vendor libraries whose replies it holds,
    `variables` are the numbers of environment variables that it holds and that there were; `judged` what each gate said
    on the machine, and what it says of the record.
    """
    kept, there = variables
    items = [("kept", f"{plural(paths, 'path')} that discovery and gates looked at")]
    if helpers:
        items.append(("kept", f"what {joined(list(helpers))} replied"))
    if kept:
        items.append(("kept", f"{plural(kept, 'environment variable')} of GPU runtimes"))
    items += [("replaced", REPLACED), ("left out", "every other file of this machine")]
    if there > kept:
        items.append(("left out", plural(there - kept, "other environment variable")))
    changed = differences(machine, replayed)
    items.append(("replayed", "gives the same machine" if not changed else f"differs in {joined(changed)}"))
    if judged is not None:
        items.append(("judged", _judged(*judged)))
    items.append(("look at it", f"gpucoexist show --machine {path}"))
    simulated = "SIMULATED, " if machine.simulated else ""
    title = f"{path}: {simulated}{population(machine.gpus)}, {describe_size(size_bytes)}"
    return lines_below(title, items, screen)


def _judged(before: Mapping[str, VerdictStatus], after: Mapping[str, VerdictStatus]) -> str:
    """Say how much of the judgement a record can repeat."""
    undecided = {"UNKNOWN", "ERROR"}
    decided = [name for name, status in before.items() if status not in {*undecided, "SKIP"}]
    lost = [name for name in decided if after.get(name) in {*undecided, "SKIP"}]
    other = [name for name in decided if name not in lost and after.get(name) != before[name]]
    text = f"{len(decided) - len(lost)} of {plural(len(decided), 'gate')} say as much as on the machine"
    if lost:
        text += f"; cannot tell from it: {joined(lost)}"
    return f"{text}; otherwise: {joined(other)}" if other else text


def differences(machine: Machine, replayed: Machine) -> list[str]:
    """Name what a replay changed, apart from what is replaced on purpose (names, UUIDs, paths)."""
    changed = []
    if [gpu.id for gpu in machine.gpus] != [gpu.id for gpu in replayed.gpus]:
        return ["its GPUs"]
    for one, other in zip(machine.gpus, replayed.gpus, strict=True):
        for field in ("pci_address", "vendor", "kind", "driver", "memory_total_bytes", "arch", "numa_node", "usable"):
            if getattr(one, field) != getattr(other, field):
                changed.append(f"{field} of {one.id}")
    if machine.numa_nodes != replayed.numa_nodes:
        changed.append("NUMA nodes")
    if len(machine.runtimes) != len(replayed.runtimes):
        changed.append("runtimes")
    return changed

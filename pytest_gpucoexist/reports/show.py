"""The machine for people: `gpucoexist show`.

A table of GPUs, one line each where the screen is wide enough, two where it is not; below it why some cannot be used,
then NUMA nodes, drivers, runtimes, masks, processes and everything that did not agree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.reports.layout import bold, grid, lines_below
from pytest_gpucoexist.reports.screen import PLAIN, Screen, render
from pytest_gpucoexist.reports.words import (
    KIND_NAMES,
    UNKNOWN,
    VENDOR_NAMES,
    counted,
    describe_driver,
    describe_gpu_link,
    describe_name,
    describe_node,
    describe_size,
    describe_use,
    plural,
    population,
    ranges,
    why_not,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_gpucoexist.model.machine import Gpu, Machine, Runtime

__all__ = ["machine_text", "machine_title", "reasons_below"]

SIMULATED = "SIMULATED: this is a replayed machine, nothing here was read from this one."

VENDOR_STYLES = {"nvidia": "green", "amd": "red", "intel": "blue", "other": "dim"}
_USE_STYLES = {"no": "yellow", "masked": "yellow", "not granted": "yellow", "unfit": "bold red", UNKNOWN: ""}


def machine_text(machine: Machine, screen: Screen = PLAIN) -> str:
    """Write everything about a machine that a person wants to see first."""
    blocks = [machine_title(machine, screen)]
    if machine.gpus:
        blocks.append(render(_table(machine, screen), screen))
    else:
        blocks.append(screen.say(_no_gpu(machine)))
    blocks += [block for block in _sections(machine, screen) if block]
    return "\n\n".join(blocks)


def machine_title(machine: Machine, screen: Screen = PLAIN) -> str:
    """Write the first line: whose GPUs, how many; SIMULATED where nothing of it is of this machine."""
    parts = [machine.name]
    compute = [gpu for gpu in machine.gpus if gpu.is_compute]
    display = len(machine.gpus) - len(compute)
    parts.append(population(compute))
    if display:
        parts.append(f"{plural(display, 'display function')}")
    if machine.numa_nodes:
        parts.append(plural(len(machine.numa_nodes), "NUMA node"))
    title = bold(" · ".join(parts), screen)
    if machine.simulated:
        title += "\n" + bold(SIMULATED, screen, "bold yellow")
    return title


def _no_gpu(machine: Machine) -> str:
    if machine.pci_functions:
        return f"No GPU among {plural(machine.pci_functions, 'PCI function')}."
    return "No GPU, and no PCI function that could be one."


def _table(machine: Machine, screen: Screen) -> Any:
    """Make one line of each GPU where that fits, else two."""
    from rich.text import Text

    rows = [_cells(gpu, screen) for gpu in machine.gpus]
    titles = ["GPU", "PCI address", "Name", "Kind", "Driver", "Memory", "Arch", "Node", "Link", "Use"]
    widths = [max(len(title), *(cells[i].cell_len for cells in rows)) for i, title in enumerate(titles)]
    if sum(widths) + 2 * (len(titles) - 1) > screen.width:
        titles = ["GPU\nPCI address", "Name\nKind", "Driver\nLink", "Memory\nArch", "Node", "Use"]
        rows = [
            [*(Text("\n").join(pair) for pair in ((a, b), (c, d), (e, i), (f, g))), h, j]
            for a, b, c, d, e, f, g, h, i, j in rows
        ]
    table = grid(screen, *titles, right=("Memory", "Memory\nArch", "Node"))
    for cells in rows:
        table.add_row(*cells)
    return table


def _cells(gpu: Gpu, screen: Screen) -> list[Any]:
    from rich.text import Text

    def cell(text: object, style: str = "") -> Text:
        return Text(screen.say(text), style=style if gpu.is_compute else "dim")

    use = describe_use(gpu)
    link = describe_gpu_link(gpu)
    degraded = " of x" in link or link == "down"
    return [
        cell(gpu.id, f"bold {VENDOR_STYLES[gpu.vendor]}"),
        cell(gpu.key),
        cell(describe_name(gpu)),
        cell(KIND_NAMES.get(gpu.kind, gpu.kind)),
        cell(describe_driver(gpu)),
        cell(describe_size(gpu.memory_total_bytes)),
        cell(gpu.arch or UNKNOWN),
        cell(UNKNOWN if gpu.numa_node is None else gpu.numa_node),
        cell(link, "yellow" if degraded else ""),
        cell(use, _USE_STYLES.get(use, "bold green")),
    ]


def _sections(machine: Machine, screen: Screen) -> Iterable[str]:
    yield reasons_below(machine, screen)
    yield lines_below("NUMA nodes", [(f"node {node.id}", describe_node(node)) for node in machine.numa_nodes], screen)
    drivers = [
        (driver.name, " ".join(filter(None, [driver.version or "version not told", driver.flavour])))
        for driver in machine.drivers
    ]
    yield lines_below("Drivers", drivers, screen)
    for kind, title in (("runtime", "Runtimes"), ("framework", "Frameworks")):
        found = [(item.name, _runtime(item)) for item in machine.runtimes if item.kind == kind]
        yield lines_below(title, found, screen)
    yield lines_below("Masks", _masks(machine), screen)
    yield lines_below("In use by", list(_processes(machine)), screen)
    others = [
        (item.pci_address, f"{item.vendor_id}:{item.device_id} class {item.class_id}, driver {item.driver or 'none'}")
        for item in machine.accelerators
    ]
    yield lines_below("Accelerators that are no GPUs", others, screen)
    yield lines_below(
        "Sources that disagree", [(item.subject, item.message) for item in machine.conflicts], screen, style="yellow"
    )
    yield lines_below("Notes", [("", note) for note in machine.notes], screen)


def _runtime(item: Runtime) -> str:
    vendors = "/".join(VENDOR_NAMES.get(vendor, vendor) for vendor in item.vendors)
    if item.built_for:
        vendors = f"{vendors}, {item.built_for}" if vendors else item.built_for
    if item.kind == "framework" and not item.vendors:
        vendors = ", ".join(filter(None, ["no GPU support", item.built_for]))
    parts = [item.version or "version not told", f"({vendors})" if vendors else "", item.path or ""]
    return " ".join(part for part in parts if part)


def reasons_below(machine: Machine, screen: Screen = PLAIN) -> str:
    """List the GPUs that cannot be used here, each with a reason that a person can act on."""
    reasons: dict[str, list[tuple[int, str]]] = {}
    for place, gpu in enumerate(machine.gpus):
        if why := why_not(gpu, machine):
            reasons.setdefault(why, []).append((place, gpu.id))
    return lines_below("Not usable", [(ranges(gpus), why) for why, gpus in reasons.items()], screen, style="yellow")


def _masks(machine: Machine) -> list[tuple[str, str]]:
    names = {gpu.key: gpu.id for gpu in machine.gpus}
    lines = []
    for mask in machine.masks:
        if mask.devices is None:
            left = "not known what remains"
        else:
            left = ", ".join(names.get(key, key) for key in mask.devices) or "no device remains"
        text = f"{mask.runtime}: {left}"
        if mask.translated_from:
            text += f" (translated from {mask.translated_from})"
        lines.append((f"{mask.variable}={mask.value}", text))
        if mask.warning:
            lines.append(("WARNING", mask.warning))
    return lines


def _processes(machine: Machine) -> Iterable[tuple[str, str]]:
    for gpu in machine.gpus:
        seen = [item for item in gpu.processes or () if item.visible]
        for item in seen:
            yield gpu.id, f"{item.name or 'process'} (PID {item.pid}), {describe_size(item.memory_bytes)}"
        unseen = len(gpu.processes or ()) - len(seen)
        if unseen:
            yield gpu.id, f"{plural(unseen, 'process', 'processes')} not visible from here ({counted(_sources(gpu))})"


def _sources(gpu: Gpu) -> list[str]:
    return [f"by {item.source}" for item in gpu.processes or () if not item.visible]

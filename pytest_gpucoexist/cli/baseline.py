"""`gpucoexist baseline`: save a machine as it should be, show what was saved, say what has changed since."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.cli.common import (
    DONE,
    NOT_SO,
    RECORD_HELP,
    add_asking,
    asked,
    is_utf8,
    open_machine,
    progress,
    screen,
    write,
)
from pytest_gpucoexist.errors import UserError

if TYPE_CHECKING:
    import argparse

    from pytest_gpucoexist.gates.baseline.record import Baseline
    from pytest_gpucoexist.host import Host
    from pytest_gpucoexist.model.machine import Machine

__all__ = ["add_to"]


def add_to(commands: Any) -> None:
    """Add the command."""
    baseline = commands.add_parser("baseline", help="save a machine as it should be, and compare with it later")
    actions = baseline.add_subparsers(title="actions", metavar="ACTION", required=True)
    file_help = "a baseline file; default: this machine's own, in /var/lib/gpucoexist or the user's state folder"

    save = actions.add_parser("save", help="this is how it should be", description=_save.__doc__)
    save.add_argument("file", metavar="FILE", nargs="?", help=file_help)
    save.add_argument("--machine", metavar="PATH|NAME", help=RECORD_HELP)
    add_asking(save)
    save.set_defaults(run=_save)

    show = actions.add_parser("show", help="what was saved", description=_show.__doc__)
    show.add_argument("file", metavar="FILE", nargs="?", help=file_help)
    show.add_argument("--json", action="store_true", help="print the baseline as JSON")
    show.set_defaults(run=_show)

    diff = actions.add_parser("diff", help="what has changed since", description=_diff.__doc__)
    diff.add_argument("file", metavar="FILE", nargs="?", help=file_help)
    diff.add_argument("--machine", metavar="PATH|NAME", help=RECORD_HELP)
    diff.add_argument("--json", action="store_true", help="print the differences as JSON")
    add_asking(diff)
    diff.set_defaults(run=_diff)


def _save(arguments: argparse.Namespace) -> int:
    """Save the machine as its baseline, so that every session compares it with what it finds."""
    from pytest_gpucoexist.gates.baseline.store import save

    host, machine = _look(arguments)
    path = save(host, machine, arguments.file)
    count = len({gpu.pci_address or gpu.key for gpu in machine.gpus})
    write(f"{path}: {count} GPU{'' if count == 1 else 's'} saved\n")
    return DONE


def _show(arguments: argparse.Namespace) -> int:
    """Show what was saved: each GPU with its driver, link, memory and place."""
    from pytest_gpucoexist.gates.baseline.record import to_text

    baseline, path = _saved(arguments.file, open_machine(None))
    write(to_text(baseline) if arguments.json else _table(baseline, path) + "\n")
    return DONE


def _diff(arguments: argparse.Namespace) -> int:
    """Say what has changed since the baseline was saved. Exit 0 nothing, 1 it differs, 2 no baseline."""
    from pytest_gpucoexist.gates.baseline.difference import diff

    host, machine = _look(arguments)
    baseline, path = _saved(arguments.file, host)
    found = diff(baseline, host, machine)
    if arguments.json:
        from pytest_gpucoexist.model.codec import encode
        from pytest_gpucoexist.reports.jsonfile import json_text

        write(json_text({"baseline": path, "differences": encode(found)}, ascii_only=not is_utf8()))
    else:
        say = screen().say
        lines = [say(f"{path}, saved {_when(baseline)}:")]
        lines += [say(f"  {each.kind}: {each.words}") for each in found] or ["  nothing has changed"]
        write("\n".join(lines) + "\n")
    return NOT_SO if found else DONE


def _look(arguments: argparse.Namespace) -> tuple[Host, Machine]:
    from pytest_gpucoexist.probes import discover

    if (arguments.machine or "").endswith(".json"):
        raise UserError(f"cannot use {arguments.machine}: it holds results, not the files that they came from")
    host = open_machine(arguments.machine)
    with progress(arguments):
        return host, discover(host, ask=asked(arguments), deadline_s=arguments.deadline)


def _saved(file: str | None, host: Host) -> tuple[Baseline, str]:
    from pytest_gpucoexist.gates.baseline.store import load, read_baseline

    if file is not None:
        return read_baseline(file), file
    found = load(host)
    if found.baseline is not None and found.path is not None:
        return found.baseline, found.path
    for path, wrong in found.damaged:
        raise UserError(f"cannot use the baseline {path}: {wrong}; save a new one with `gpucoexist baseline save`")
    raise UserError(
        f"no baseline was saved on this machine (looked for {' and '.join(found.searched)});"
        " save one with `gpucoexist baseline save`"
    )


def _table(baseline: Baseline, path: str) -> str:
    from rich import box
    from rich.table import Table

    from pytest_gpucoexist.reports.screen import render

    here = screen()
    table = Table(box=box.SIMPLE, pad_edge=False)
    for column in ("GPU", "name", "driver", "VBIOS", "memory", "link", "node", "card"):
        table.add_column(column)
    for gpu in baseline.gpus:
        driver = " ".join(filter(None, (gpu.driver, gpu.driver_version)))
        memory = "" if gpu.memory_total_bytes is None else f"{gpu.memory_total_bytes / 2**30:.1f} GiB"
        speed = "" if gpu.max_speed_gtps is None else f"{gpu.max_speed_gtps:g} GT/s"
        link = " ".join(filter(None, (speed, f"x{gpu.max_width}" if gpu.max_width else "")))
        node = "" if gpu.numa_node is None else str(gpu.numa_node)
        cells = (gpu.key, gpu.name or "", driver, gpu.vbios_version or "", memory, link, node, gpu.card or "")
        table.add_row(*(here.say(cell) for cell in cells))
    bios = f", firmware {baseline.bios_version}" if baseline.bios_version else ""
    return here.say(f"{path}, saved {_when(baseline)}{bios}") + "\n" + render(table, here)


def _when(baseline: Baseline) -> str:
    from datetime import datetime, timezone

    try:
        return f"{datetime.fromtimestamp(baseline.saved_at, timezone.utc):%Y-%m-%d %H:%M} UTC"
    except (OverflowError, OSError, ValueError):
        return "at a time that makes no sense"

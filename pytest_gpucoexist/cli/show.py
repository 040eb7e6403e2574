"""`gpucoexist show`: the machine as a table, a tree or JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.cli.common import DONE, MACHINE_HELP, add_asking, discovered, is_utf8, screen, write

if TYPE_CHECKING:
    import argparse

__all__ = ["add_to"]


def add_to(commands: Any) -> None:
    """Add the command."""
    show = commands.add_parser("show", help="the machine: table, topology or JSON", description=_show.__doc__)
    show.add_argument("--machine", metavar="PATH|NAME", help=MACHINE_HELP)
    form = show.add_mutually_exclusive_group()
    form.add_argument("--tree", action="store_true", help="draw NUMA nodes, root ports, switches and GPUs")
    form.add_argument("--json", action="store_true", help="print the machine as JSON (schemas/machine.json)")
    add_asking(show)
    show.set_defaults(run=_show)


def _show(arguments: argparse.Namespace) -> int:
    """Show the machine: its GPUs, why some cannot be used, NUMA nodes, drivers, runtimes, masks."""
    machine = discovered(arguments)
    if arguments.json:
        from pytest_gpucoexist.reports.jsonfile import json_text

        write(json_text(machine.to_json(), ascii_only=not is_utf8()))
        return DONE
    if arguments.tree:
        from pytest_gpucoexist.reports.tree import machine_tree as draw
    else:
        from pytest_gpucoexist.reports.show import machine_text as draw
    write(draw(machine, screen()) + "\n")
    return DONE

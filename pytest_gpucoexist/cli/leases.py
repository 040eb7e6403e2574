"""`gpucoexist leases`: who holds which device, who waits for it, and what a lease of this machine is good for."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.cli.common import DONE, RECORD_HELP, add_asking, is_utf8, open_machine, progress, screen, write
from pytest_gpucoexist.errors import UserError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from pytest_gpucoexist.leases.board import Board

__all__ = ["add_to"]

_PERIOD_S = 1.0

_HOW = """\
# Install it, once for this machine:
#     gpucoexist leases --print-tmpfiles | sudo tee /etc/tmpfiles.d/gpucoexist.conf
#     sudo systemd-tmpfiles --create gpucoexist.conf
# Containers take part when they see the same folder:
#     docker run --mount type=bind,source={folder},target={folder} ...
"""


def add_to(commands: Any) -> None:
    """Add the command."""
    leases = commands.add_parser("leases", help="who holds which device, who waits", description=_leases.__doc__)
    leases.add_argument("--machine", metavar="PATH|NAME", help=RECORD_HELP)
    leases.add_argument(
        "--lease-dir", metavar="DIR", help="the folder where leases are kept, as gpu_lease_dir; default: the best one"
    )
    leases.add_argument("--watch", action="store_true", help="show it again and again, until interrupted")
    form = leases.add_mutually_exclusive_group()
    form.add_argument(
        "--json", action="store_true", help="print it as JSON (schemas/leases.json); a line each, to watch"
    )
    form.add_argument(
        "--print-tmpfiles",
        action="store_true",
        help="print what makes a folder for the leases of all users (tmpfiles.d), and stop",
    )
    add_asking(leases)
    leases.set_defaults(run=_leases)


def _leases(arguments: argparse.Namespace) -> int:
    """Show who holds which device since when, who waits for what, and against whom a lease of this machine protects."""
    if arguments.print_tmpfiles:
        from pytest_gpucoexist.leases.places import ADMIN_FOLDER, TMPFILES

        write(TMPFILES + _HOW.format(folder=ADMIN_FOLDER))
        return DONE
    if (arguments.machine or "").endswith(".json"):
        raise UserError(f"cannot use {arguments.machine}: leases belong to a machine or a recording of one")
    read, close = _reader(arguments)
    try:
        if arguments.watch:
            _watch(read, as_json=arguments.json)
        else:
            with progress(arguments):
                board = read()
            _show(board, as_json=arguments.json)
    except KeyboardInterrupt:
        if not arguments.watch:
            raise
    finally:
        close()
    return DONE


def _reader(arguments: argparse.Namespace) -> tuple[Callable[[], Board], Callable[[], None]]:
    """Return what reads the board, and what ends its helpers."""
    from pytest_gpucoexist.host import local_host
    from pytest_gpucoexist.leases.board import read_board
    from pytest_gpucoexist.leases.occupied import MachineOccupancy
    from pytest_gpucoexist.leases.places import find_place
    from pytest_gpucoexist.probes import discover

    host = open_machine(arguments.machine)
    machine = discover(host)
    # As a session does, also for a replayed machine, whose own environment is a recorded one.
    folder = arguments.lease_dir or local_host().environ.get("PYTEST_GPU_LEASE_DIR") or None
    place = find_place(host, folder)
    occupancy = None
    if not arguments.no_vendor:
        occupancy = MachineOccupancy(host, lambda: machine, place.folder, deadline_s=arguments.deadline)
        if arguments.watch:
            occupancy.prepare([gpu.key for gpu in machine.gpus])
    # The time of this moment, not that of a recording: records are of now.
    import time

    def read() -> Board:
        return read_board(host, machine, place, time.time(), occupancy)

    return read, (lambda: None) if occupancy is None else occupancy.close


def _show(board: Board, *, as_json: bool) -> None:
    if as_json:
        from pytest_gpucoexist.reports.jsonfile import json_text

        write(json_text(board.to_json(), ascii_only=not is_utf8()))
    else:
        from pytest_gpucoexist.cli.leasetext import board_text

        write(board_text(board, screen()) + "\n")


def _watch(read: Callable[[], Board], *, as_json: bool) -> None:
    """Show the board until interrupted: in place on a terminal, else what has changed, a line each."""
    if as_json:
        _watch_json(read)
    elif sys.stdout.isatty():
        _watch_screen(read)
    else:
        _watch_lines(read)


def _watch_screen(read: Callable[[], Board]) -> None:
    import time

    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from pytest_gpucoexist.cli.leasetext import board_text

    with Live(console=Console(highlight=False), auto_refresh=False, screen=True) as live:
        while True:
            # Written as text for this width, so that it looks as without --watch.
            live.update(Text.from_ansi(board_text(read(), screen())), refresh=True)
            time.sleep(_PERIOD_S)


def _watch_lines(read: Callable[[], Board]) -> None:
    import time
    from datetime import datetime

    from pytest_gpucoexist.cli.leasetext import board_lines

    here = screen()
    known: dict[str, str] = {}
    while True:
        now = board_lines(read())
        ended = [f"no more: {text}" for key, text in known.items() if key not in now]
        for text in [*(text for key, text in now.items() if known.get(key) != text), *ended]:
            write(here.say(f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S} {text}") + "\n")
        known = now
        sys.stdout.flush()
        time.sleep(_PERIOD_S)


def _watch_json(read: Callable[[], Board]) -> None:
    import json
    import time

    known = None
    while True:
        board = read().to_json()
        what = {key: value for key, value in board.items() if key != "read_at_s"}
        if what != known:
            write(json.dumps(board, ensure_ascii=not is_utf8(), allow_nan=False) + "\n")
            sys.stdout.flush()
            known = what
        time.sleep(_PERIOD_S)

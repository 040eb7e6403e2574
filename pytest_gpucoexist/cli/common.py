"""What the commands share: exit codes, opening a machine, asking its drivers, writing output."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pytest_gpucoexist.errors import RecordingError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from pytest_gpucoexist.host import Host
    from pytest_gpucoexist.model.machine import Machine
    from pytest_gpucoexist.reports.screen import Screen

__all__ = [
    "DONE",
    "FAILED",
    "INTERRUPTED",
    "MACHINE_HELP",
    "NOT_SO",
    "RECORD_HELP",
    "add_asking",
    "add_deadline",
    "asked",
    "discovered",
    "is_utf8",
    "open_machine",
    "progress",
    "screen",
    "seconds",
    "write",
]

DONE, NOT_SO, FAILED, INTERRUPTED = 0, 1, 2, 130
"""`NOT_SO`: it was done, and the answer is no: unfit, tests that ran nowhere, a machine that changed."""

VENDORS = ("amd", "nvidia")
"""Vendors whose management libraries are asked, in processes of their own."""

RECORD_HELP = "a recorded machine: demo, a folder or an archive; default: this machine"
MACHINE_HELP = "a recorded machine: demo, a folder, an archive, or the .json of `show --json`; default: this machine"


def add_asking(parser: argparse.ArgumentParser) -> None:
    """Add the options that say whether vendor libraries are called, and for how long."""
    parser.add_argument("--no-vendor", action="store_true", help="read files only, call no vendor library")
    add_deadline(parser)


def add_deadline(parser: argparse.ArgumentParser) -> None:
    """Add the option that says how long vendor libraries may take."""
    parser.add_argument(
        "--deadline", metavar="S", type=seconds, default=5.0, help="seconds for vendor libraries (default 5)"
    )


def seconds(text: str) -> float:
    """Read a number of seconds for an option. Raises ArgumentTypeError."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds between 0 and 3600")
    return number


def discovered(arguments: argparse.Namespace) -> Machine:
    """Discover the machine that `--machine` names, or read it. Raises RecordingError."""
    if (arguments.machine or "").endswith(".json"):
        return _from_json(arguments.machine)
    from pytest_gpucoexist.probes import discover

    host = open_machine(arguments.machine)
    with progress(arguments):
        return discover(host, ask=asked(arguments), deadline_s=arguments.deadline)


def asked(arguments: argparse.Namespace) -> Collection[str]:
    """Return the vendors whose libraries are called."""
    return () if arguments.no_vendor else VENDORS


def open_machine(name: str | None) -> Host:
    """Open this machine or a recorded one. Raises RecordingError that says what is good."""
    if name is None:
        from pytest_gpucoexist.host import local_host

        return local_host()
    if name == "demo":
        from pytest_gpucoexist.testing.demo import demo_host

        return demo_host()
    if not os.path.exists(name):
        raise RecordingError(
            f"--machine: there is no {name}; give demo, a folder, an archive or a .json of show --json"
        )
    from pytest_gpucoexist.host import open_recording

    return open_recording(name)


def _from_json(path: str) -> Machine:
    """Read what `show --json` printed. It is of another moment at best: simulated."""
    import json
    from dataclasses import replace

    from pytest_gpucoexist.errors import DataError
    from pytest_gpucoexist.model.machine import Machine

    try:
        with open(path, "rb") as file:
            machine = Machine.from_json(json.loads(file.read()))
    except OSError as error:
        raise RecordingError(f"--machine: cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError, DataError) as error:
        raise RecordingError(f"--machine: {path} holds no machine as show --json prints it: {error}") from error
    return replace(machine, simulated=True)


@contextmanager
def progress(arguments: argparse.Namespace) -> Iterator[None]:
    """Say on a terminal what takes long, and take it back."""
    shown = sys.stderr.isatty() and not getattr(arguments, "no_vendor", False)
    if shown:
        text = f"gpucoexist: asking the drivers, at most {arguments.deadline:g} s ..."
        print(text, end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if shown:
            print("\r" + " " * len(text) + "\r", end="", file=sys.stderr, flush=True)


def screen() -> Screen:
    """Describe the standard output."""
    from pytest_gpucoexist.reports.screen import screen_for

    return screen_for(sys.stdout, os.environ)


def is_utf8() -> bool:
    """Whether the standard output takes every character."""
    return (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "") == "utf8"


def write(text: str) -> None:
    """Print; a character that the encoding lacks becomes a question mark, not an error."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))

"""The command `gpucoexist`: look at a machine, judge it, record one, merge the reports of several runners.

Exit codes: 0 done (doctor: fit); 1 doctor: unfit, `merge --fail-on-gaps`: a test ran nowhere, `baseline diff`: it
differs; 2 it could not be done, and one line on stderr says what to do; 130 interrupted. A reader that closes the
pipe early (`gpucoexist show | head`) is no error.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, NoReturn

from pytest_gpucoexist._version import __version__
from pytest_gpucoexist.cli import baseline, doctor, leases, merge, record, show
from pytest_gpucoexist.cli.common import DONE, FAILED, INTERRUPTED
from pytest_gpucoexist.errors import GpuCoexistError, UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as every other error of the command."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; only `--help` and `--version` leave by SystemExit."""
    if sys.stdout is None:  # started with its standard output closed
        _forget_output()
    try:
        arguments = _parser().parse_args(argv)
        code: int = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        _forget_output()
        return DONE
    except OSError as error:
        # What a command reads has its own errors: this is standard output, a disk that is full.
        _forget_output()
        print(f"gpucoexist: cannot write the output: {error.strerror or error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("gpucoexist: interrupted", file=sys.stderr)
        return INTERRUPTED
    except GpuCoexistError as error:
        from pytest_gpucoexist.reports.screen import screen_for

        print(f"gpucoexist: {screen_for(sys.stderr, os.environ).say(error)}", file=sys.stderr)
        return FAILED


def _forget_output() -> None:
    """Send what is left nowhere: the interpreter flushes at its end, and would raise again."""
    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="gpucoexist",
        description="Look at the GPUs of a machine as pytest-gpucoexist sees them.",
        epilog="Exit codes: 0 done or fit, 1 unfit (doctor) or tests ran nowhere (merge --fail-on-gaps), "
        "2 it could not be done.",
    )
    parser.add_argument("--version", action="version", version=f"gpucoexist {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for each in (show, doctor, leases, baseline, record, merge):
        each.add_to(commands)
    return parser

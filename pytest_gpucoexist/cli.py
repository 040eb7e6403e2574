"""The command `gpucoexist`: look at a machine, record one, merge the reports of several runners.

Exit codes: 0 done; 1 `merge --fail-on-gaps` and a test ran nowhere; 2 it could not be done, and one line on stderr
says what to do; 130 interrupted. A reader that closes the pipe early (`gpucoexist show | head`) is no error.
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from pytest_gpucoexist._version import __version__
from pytest_gpucoexist.errors import GpuCoexistError, RecordingError, ReportError, UserError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from pytest_gpucoexist.host import Host
    from pytest_gpucoexist.model.machine import Machine
    from pytest_gpucoexist.reports.screen import Screen

__all__ = ["main"]

DONE, GAPS, FAILED, INTERRUPTED = 0, 1, 2, 130

VENDORS = ("amd", "nvidia")
"""Vendors whose management libraries are asked, in processes of their own."""

ARCHIVES = (".tar.gz", ".tar.xz", ".tar.bz2", ".tar")

_MACHINE_HELP = "a recorded machine: demo, a folder, an archive, or the .json of `show --json`; default: this machine"


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
        epilog="Exit codes: 0 done, 1 tests ran nowhere (merge --fail-on-gaps), 2 it could not be done.",
    )
    parser.add_argument("--version", action="version", version=f"gpucoexist {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    show = commands.add_parser("show", help="the machine: table, topology or JSON", description=_show.__doc__)
    show.add_argument("--machine", metavar="PATH|NAME", help=_MACHINE_HELP)
    form = show.add_mutually_exclusive_group()
    form.add_argument("--tree", action="store_true", help="draw NUMA nodes, root ports, switches and GPUs")
    form.add_argument("--json", action="store_true", help="print the machine as JSON (schemas/machine.json)")
    _add_asking(show)
    show.set_defaults(run=_show)

    record = commands.add_parser("record", help="an archive that replays anywhere", description=_record.__doc__)
    record.add_argument("file", metavar="FILE", help="archive to write: .tar.gz, .tar.xz or .tar.bz2")
    record.add_argument("--machine", metavar="PATH|NAME", help=_MACHINE_HELP)
    _add_asking(record)
    record.set_defaults(run=_record)

    merge = commands.add_parser("merge", help="reports of several runners as one", description=_merge.__doc__)
    merge.add_argument(
        "reports", metavar="FILE.json", nargs="+", help="reports that --gpu-report=FILE.json has written"
    )
    merge.add_argument("-o", "--output", metavar="FILE", help="write .json, .md or .html in place of a table")
    merge.add_argument("--fail-on-gaps", action="store_true", help="exit 1 if a test ran nowhere")
    merge.set_defaults(run=_merge)
    return parser


def _add_asking(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-vendor", action="store_true", help="read files only, call no vendor library")
    parser.add_argument(
        "--deadline", metavar="S", type=_seconds, default=5.0, help="seconds for vendor libraries (default 5)"
    )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds between 0 and 3600")
    return seconds


def _show(arguments: argparse.Namespace) -> int:
    """Show the machine: its GPUs, why some cannot be used, NUMA nodes, drivers, runtimes, masks."""
    machine = _machine(arguments)
    if arguments.json:
        from pytest_gpucoexist.reports.jsonfile import json_text

        _write(json_text(machine.to_json(), ascii_only=not _is_utf8()))
        return DONE
    if arguments.tree:
        from pytest_gpucoexist.reports.tree import machine_tree as draw
    else:
        from pytest_gpucoexist.reports.show import machine_text as draw
    _write(draw(machine, _screen()) + "\n")
    return DONE


def _record(arguments: argparse.Namespace) -> int:
    """Record the machine as an archive that replays to the same JSON, personal details replaced."""
    from pytest_gpucoexist.host.recording import RecordingHost, write_recording
    from pytest_gpucoexist.probes import discover
    from pytest_gpucoexist.reports.recorded import recorded_text

    name = _check_archive(arguments.file)
    if (arguments.machine or "").endswith(".json"):
        raise RecordingError(f"cannot record {arguments.machine}: it holds results, not the files that they came from")
    host = RecordingHost(_host(arguments.machine))
    with _progress(arguments):
        machine = discover(host, ask=_asked(arguments), deadline_s=arguments.deadline)
        write_recording(host, arguments.file, name=name)
        replayed = discover(_host(arguments.file), ask=_asked(arguments), deadline_s=arguments.deadline)
    tree, manifest = host.recorded()
    text = recorded_text(
        machine,
        replayed,
        path=arguments.file,
        size_bytes=os.path.getsize(arguments.file),
        paths=len(list(tree.walk())),
        helpers=[helper for helper, reply in manifest.helpers.items() if reply.status == "ok"],
        variables=(len(manifest.environ), len(host.environ)),
        screen=_screen(),
    )
    _write(text + "\n")
    return DONE


def _check_archive(path: str) -> str:
    """Refuse at once what could not be written after a long look, and return the name without its suffix."""
    folder, name = os.path.split(os.path.abspath(path))
    stem = next((name[: -len(suffix)] for suffix in ARCHIVES if name.endswith(suffix)), None)
    if not stem:
        raise RecordingError(f"cannot write {path}: a record is an archive, {', '.join(ARCHIVES)}")
    if not os.path.isdir(folder):
        raise RecordingError(f"cannot write {path}: there is no folder {folder}; create it first")
    return stem


def _merge(arguments: argparse.Namespace) -> int:
    """Merge reports of several runners: every test id, where it really ran, or why nowhere."""
    from pytest_gpucoexist.reports.files import check_suffix, write_merged
    from pytest_gpucoexist.reports.jsonfile import read_report
    from pytest_gpucoexist.reports.merge import merge_reports
    from pytest_gpucoexist.reports.words import plural

    if arguments.output is not None:
        check_suffix(arguments.output)
        if any(os.path.realpath(arguments.output) == os.path.realpath(path) for path in arguments.reports):
            raise ReportError(f"{arguments.output} is one of the reports to merge; give -o another name")
    merged = merge_reports([(path, read_report(path)) for path in arguments.reports])
    if arguments.output is None:
        from pytest_gpucoexist.reports.merged_text import merged_text

        _write(merged_text(merged, _screen()) + "\n")
    else:
        write_merged(merged, arguments.output)
        counts = f"{plural(len(merged.tests), 'test')}, {len(merged.gaps):,} ran nowhere"
        _write(f"{arguments.output}: {counts}\n")
    return GAPS if arguments.fail_on_gaps and merged.gaps else DONE


def _machine(arguments: argparse.Namespace) -> Machine:
    if (arguments.machine or "").endswith(".json"):
        return _from_json(arguments.machine)
    from pytest_gpucoexist.probes import discover

    host = _host(arguments.machine)
    with _progress(arguments):
        return discover(host, ask=_asked(arguments), deadline_s=arguments.deadline)


def _asked(arguments: argparse.Namespace) -> Collection[str]:
    return () if arguments.no_vendor else VENDORS


def _host(name: str | None) -> Host:
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
def _progress(arguments: argparse.Namespace) -> Iterator[None]:
    """Say on a terminal what takes long, and take it back."""
    shown = sys.stderr.isatty() and not arguments.no_vendor
    if shown:
        text = f"gpucoexist: asking the drivers, at most {arguments.deadline:g} s ..."
        print(text, end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if shown:
            print("\r" + " " * len(text) + "\r", end="", file=sys.stderr, flush=True)


def _screen() -> Screen:
    from pytest_gpucoexist.reports.screen import screen_for

    return screen_for(sys.stdout, os.environ)


def _is_utf8() -> bool:
    return (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "") == "utf8"


def _write(text: str) -> None:
    """Print; a character that the encoding lacks becomes a question mark, not an error."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))

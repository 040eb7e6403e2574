"""`gpucoexist record`: an archive of a machine that replays anywhere."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.cli.common import DONE, MACHINE_HELP, add_asking, asked, open_machine, progress, screen, write
from pytest_gpucoexist.errors import RecordingError

if TYPE_CHECKING:
    import argparse

    from pytest_gpucoexist.host import Host
    from pytest_gpucoexist.model.machine import Machine
    from pytest_gpucoexist.model.verdicts import Level, VerdictStatus

__all__ = ["add_to"]

ARCHIVES = (".tar.gz", ".tar.xz", ".tar.bz2", ".tar")


def add_to(commands: Any) -> None:
    """Add the command."""
    record = commands.add_parser("record", help="an archive that replays anywhere", description=_record.__doc__)
    record.add_argument("file", metavar="FILE", help="archive to write: .tar.gz, .tar.xz or .tar.bz2")
    record.add_argument("--machine", metavar="PATH|NAME", help=MACHINE_HELP)
    add_asking(record)
    record.set_defaults(run=_record)


def _record(arguments: argparse.Namespace) -> int:
    """Record the machine as an archive that replays to the same JSON and judgement, personal details replaced."""
    from pytest_gpucoexist.host.recording import RecordingHost, write_recording
    from pytest_gpucoexist.probes import discover
    from pytest_gpucoexist.reports.recorded import recorded_text

    name = _check_archive(arguments.file)
    if (arguments.machine or "").endswith(".json"):
        raise RecordingError(f"cannot record {arguments.machine}: it holds results, not the files that they came from")
    host = RecordingHost(open_machine(arguments.machine))
    with progress(arguments):
        machine = discover(host, ask=asked(arguments), deadline_s=arguments.deadline)
        before = _judged(host, machine, arguments)
        write_recording(host, arguments.file, name=name)
        again = open_machine(arguments.file)
        replayed = discover(again, ask=asked(arguments), deadline_s=arguments.deadline)
        after = _judged(again, replayed, arguments)
    tree, manifest = host.recorded()
    text = recorded_text(
        machine,
        replayed,
        path=arguments.file,
        size_bytes=os.path.getsize(arguments.file),
        paths=len(list(tree.walk())),
        helpers=[helper for helper, reply in manifest.helpers.items() if reply.status == "ok"],
        variables=(len(manifest.environ), len(host.environ)),
        judged=(before, after),
        screen=screen(),
    )
    write(text + "\n")
    return DONE


def _judged(host: Host, machine: Machine, arguments: argparse.Namespace) -> dict[str, VerdictStatus]:
    """Ask the gates, so that what they read is kept, and return what each said. Without vendors: those of files."""
    from pytest_gpucoexist.gates.runner import judge
    from pytest_gpucoexist.gates.subject import Subject

    level: Level = "quick" if arguments.no_vendor else "standard"
    return judge(Subject(host=host, machine=machine, level=level, deadline_s=arguments.deadline)).by_gate()


def _check_archive(path: str) -> str:
    """Refuse at once what could not be written after a long look, and return the name without its suffix."""
    folder, name = os.path.split(os.path.abspath(path))
    stem = next((name[: -len(suffix)] for suffix in ARCHIVES if name.endswith(suffix)), None)
    if not stem:
        raise RecordingError(f"cannot write {path}: a record is an archive, {', '.join(ARCHIVES)}")
    if not os.path.isdir(folder):
        raise RecordingError(f"cannot write {path}: there is no folder {folder}; create it first")
    return stem

"""`gpucoexist record`: an archive of a machine that replays anywhere."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.cli.common import DONE, MACHINE_HELP, add_asking, asked, open_machine, progress, screen, write
from pytest_gpucoexist.errors import RecordingError

if TYPE_CHECKING:
    import argparse

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
    """Record the machine as an archive that replays to the same JSON, personal details replaced."""
    from pytest_gpucoexist.host.recording import RecordingHost, write_recording
    from pytest_gpucoexist.probes import discover
    from pytest_gpucoexist.reports.recorded import recorded_text

    name = _check_archive(arguments.file)
    if (arguments.machine or "").endswith(".json"):
        raise RecordingError(f"cannot record {arguments.machine}: it holds results, not the files that they came from")
    host = RecordingHost(open_machine(arguments.machine))
    with progress(arguments):
        machine = discover(host, ask=asked(arguments), deadline_s=arguments.deadline)
        write_recording(host, arguments.file, name=name)
        replayed = discover(open_machine(arguments.file), ask=asked(arguments), deadline_s=arguments.deadline)
    tree, manifest = host.recorded()
    text = recorded_text(
        machine,
        replayed,
        path=arguments.file,
        size_bytes=os.path.getsize(arguments.file),
        paths=len(list(tree.walk())),
        helpers=[helper for helper, reply in manifest.helpers.items() if reply.status == "ok"],
        variables=(len(manifest.environ), len(host.environ)),
        screen=screen(),
    )
    write(text + "\n")
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

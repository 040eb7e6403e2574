"""`gpucoexist doctor`: judge a machine outside pytest, explain a gate, judge a saved kernel log."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.cli.common import (
    DONE,
    FAILED,
    NOT_SO,
    RECORD_HELP,
    add_deadline,
    is_utf8,
    open_machine,
    progress,
    screen,
    seconds,
    write,
)
from pytest_gpucoexist.errors import UserError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from pytest_gpucoexist.gates.registry import Gate
    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import Machine
    from pytest_gpucoexist.model.verdicts import Judgement, Pair

__all__ = ["add_to"]

LEVELS = ("quick", "standard", "transfer", "full")


def add_to(commands: Any) -> None:
    """Add the command."""
    doctor = commands.add_parser("doctor", help="is this machine fit for GPU tests?", description=_doctor.__doc__)
    doctor.add_argument("--machine", metavar="PATH|NAME", help=RECORD_HELP)
    doctor.add_argument(
        "--level",
        choices=LEVELS,
        default="standard",
        help="quick: files and environment only; standard: vendor libraries and programs too (default);"
        " transfer: verified and timed copies, some 3 s for each device; full: longer ones, peers of AMD too",
    )
    doctor.add_argument(
        "--budget", metavar="SECONDS", type=seconds, default=60.0, help="for the copies of level full (default: 60)"
    )
    doctor.add_argument("--gate", metavar="GLOB", action="append", help="only gates whose id matches; can be repeated")
    doctor.add_argument("--require", metavar="LIST", help="what must work here, as --gpu-require: cuda:2,rocm")
    doctor.add_argument("--json", action="store_true", help="print the judgement as JSON (schemas/judgement.json)")
    doctor.add_argument("-v", "--verbose", action="store_true", help="show what passed and what does not apply, too")
    form = doctor.add_mutually_exclusive_group()
    form.add_argument("--list", action="store_true", help="list every gate and stop")
    form.add_argument("--explain", metavar="ID", help="what a gate reads, why it matters, what to do, its source")
    form.add_argument(
        "--kernel-log", metavar="FILE|-", help="judge a saved kernel log alone (dmesg, journalctl, syslog)"
    )
    add_deadline(doctor)
    doctor.set_defaults(run=_doctor)


def _doctor(arguments: argparse.Namespace) -> int:
    """Judge the machine: what is wrong, with which device, and what to do. Exit 0 fit, 1 unfit, 2 could not judge."""
    if arguments.list:
        return _list(arguments)
    if arguments.explain is not None:
        return _explain(arguments.explain)
    if arguments.kernel_log is not None:
        return _kernel_log(arguments)
    return _judge(arguments)


def _judge(arguments: argparse.Namespace) -> int:
    from dataclasses import replace

    from pytest_gpucoexist.gates.catalogue import gates_of_level
    from pytest_gpucoexist.gates.runner import judge
    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.probes import discover

    if (arguments.machine or "").endswith(".json"):
        raise UserError(f"cannot judge {arguments.machine}: it holds results, not the files that gates read")
    gates = _chosen(arguments)
    host = open_machine(arguments.machine)
    subject = Subject(
        host=host,
        machine=discover(host),
        level=arguments.level,
        deadline_s=arguments.deadline,
        promised=_promised(arguments.require),
    )
    with progress(arguments):
        judgement = judge(subject, gates=gates)
    unmet = _unmet(subject, judgement)
    notes: tuple[str, ...] = ()
    if arguments.level in {"transfer", "full"}:
        from pytest_gpucoexist.cli.trying import REPLAYED, after_trials

        # By all gates, whatever --gate leaves: what one of them takes out is not touched.
        first = judgement if not arguments.gate else judge(subject, gates=gates_of_level("standard"))
        tried = after_trials(subject, first, arguments.budget)
        if tried is None:
            notes = (REPLAYED,)
        else:
            subject = tried
            # Anew: copies leave their marks in the kernel's log and in counters.
            judgement = judge(subject, gates=gates)
            unmet = _unmet(subject, judgement)
    if unmet:
        judgement = replace(judgement, fit=False)
    if arguments.json:
        from pytest_gpucoexist.reports.jsonfile import json_text

        judgement = replace(judgement, matrix=_matrix(subject.machine))
        write(json_text(judgement.to_json(), ascii_only=not is_utf8()))
    else:
        from pytest_gpucoexist.gates.container.detect import place_words
        from pytest_gpucoexist.reports.verdicts import judgement_text

        text = judgement_text(
            judgement,
            subject.machine,
            screen(),
            verbose=arguments.verbose,
            place=place_words(subject),
            notes=(*notes, *unmet),
        )
        write(text + "\n")
    return _code(judgement)


def _matrix(machine: Machine) -> tuple[Pair, ...]:
    from dataclasses import replace

    from pytest_gpucoexist.gates.numa.relation import matrix
    from pytest_gpucoexist.model.verdicts import Pair

    keys = {gpu.id: gpu.key for gpu in machine.gpus}
    pairs = (Pair(**pair) for pair in matrix(machine))
    return tuple(replace(pair, a=keys.get(pair.a, pair.a), b=keys.get(pair.b, pair.b)) for pair in pairs)


def _unmet(subject: Subject, judgement: Judgement) -> tuple[str, ...]:
    """Say which promises the machine does not keep, its unfit devices left out."""
    from dataclasses import replace

    from pytest_gpucoexist.model.plan import unmet_promises
    from pytest_gpucoexist.model.quarantine import quarantined

    machine = replace(quarantined(subject.machine, judgement.unfit), simulated=False)
    return unmet_promises(tuple(subject.promised.items()), machine)


def _code(judgement: Judgement) -> int:
    if judgement.fit is None:
        return FAILED
    return DONE if judgement.fit else NOT_SO


def _promised(text: str | None) -> dict[str, int]:
    from pytest_gpucoexist.model.promises import parse_promises

    return dict(parse_promises(text, "--require"))


def _chosen(arguments: argparse.Namespace) -> list[Gate]:
    """Return the gates of the level that `--gate` leaves. Raises UserError when that is none."""
    from fnmatch import fnmatchcase

    from pytest_gpucoexist.gates.catalogue import all_gates, gates_of_level

    level = arguments.level
    gates = gates_of_level(level)
    for pattern in arguments.gate or ():
        if not any(fnmatchcase(gate.id, pattern) for gate in gates):
            later = [gate for gate in all_gates() if fnmatchcase(gate.id, pattern)]
            where = f" at level {level}; {later[0].id} is of level {later[0].level}" if later else ""
            raise UserError(f"--gate: no gate matches {pattern!r}{where}; see gpucoexist doctor --list")
    if arguments.gate:
        gates = [gate for gate in gates if any(fnmatchcase(gate.id, pattern) for pattern in arguments.gate)]
    return gates


def _list(arguments: argparse.Namespace) -> int:
    from pytest_gpucoexist.gates.catalogue import all_gates
    from pytest_gpucoexist.gates.describe import describe
    from pytest_gpucoexist.reports.gatepages import gates_list

    gates = all_gates()
    if arguments.gate:
        gates = _matching(gates, arguments.gate)
    described = [describe(gate) for gate in gates]
    if arguments.json:
        from pytest_gpucoexist.reports.jsonfile import json_text

        write(json_text(described, ascii_only=not is_utf8()))
    else:
        write(gates_list(described, screen()) + "\n")
    return DONE


def _matching(gates: Sequence[Gate], patterns: Sequence[str]) -> list[Gate]:
    from fnmatch import fnmatchcase

    found = [gate for gate in gates if any(fnmatchcase(gate.id, pattern) for pattern in patterns)]
    if not found:
        raise UserError(f"--gate: no gate matches {', '.join(patterns)}; see gpucoexist doctor --list")
    return found


def _explain(name: str) -> int:
    from difflib import get_close_matches

    from pytest_gpucoexist.gates.catalogue import all_gates
    from pytest_gpucoexist.gates.describe import describe, unbuilt
    from pytest_gpucoexist.reports.gatepages import gate_page

    gates = {gate.id: gate for gate in all_gates()}
    if name not in gates:
        if name in (reasons := unbuilt()):
            raise UserError(f"--explain: {name} is not built: {reasons[name]}")
        near = get_close_matches(name, gates, n=3, cutoff=0.5)
        raise UserError(
            f"--explain: no gate is called {name!r}"
            + (f"; did you mean {', '.join(near)}?" if near else "; see gpucoexist doctor --list")
        )
    write(gate_page(describe(gates[name]), screen()) + "\n")
    return DONE


def _kernel_log(arguments: argparse.Namespace) -> int:
    """Judge a saved log. Exit 1 when it holds a failure, 2 when there is nothing to judge."""
    judged = _judged_log(arguments.kernel_log)
    if arguments.json:
        from pytest_gpucoexist.reports.jsonfile import json_text

        write(json_text(judged, ascii_only=not is_utf8()))
    else:
        from pytest_gpucoexist.reports.logtable import log_text

        write(log_text(judged["findings"], screen(), left_out=judged.get("left_out", 0)) + "\n")
    return NOT_SO if any(found["severity"] == "fail" for found in judged["findings"]) else DONE


def _judged_log(name: str) -> dict[str, Any]:
    """Judge a file or standard input. Raises UserError when it cannot be read or is blank."""
    from pytest_gpucoexist.kernellog.report import judge_file

    try:
        if name == "-":
            judged = judge_file(sys.stdin.buffer)
        else:
            with open(name, "rb") as file:
                judged = judge_file(file)
    except OSError as error:
        raise UserError(f"--kernel-log: cannot read {name}: {error.strerror or error}") from None
    if judged is None:
        raise UserError(f"--kernel-log: {'standard input' if name == '-' else name} is empty: nothing to judge")
    return judged

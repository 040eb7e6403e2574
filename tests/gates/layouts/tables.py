"""Expected verdicts as a file that people can read: a row for each gate, a column for each machine.

The file is written by `python -m tests.gates.layouts.write` and read by the tests. A letter is the worst verdict of a
gate: P pass, W warn, F fail, S skip, U unknown, E error. The second line has, for each machine, the least share of
the gates that apply (all but skipped) which must be decided: pass or warn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.runner import judge
from pytest_gpucoexist.gates.subject import Subject
from pytest_gpucoexist.probes import discover

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pytest_gpucoexist.host.base import Host
    from pytest_gpucoexist.model.verdicts import Judgement

__all__ = ["Expected", "decided_share", "judged_whole", "letters_of", "read_tables", "write_tables"]

_LETTERS = {"PASS": "P", "WARN": "W", "FAIL": "F", "SKIP": "S", "UNKNOWN": "U", "ERROR": "E"}
_STEP = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """A machine's column: letters by gate, and the least share of decided gates."""

    letters: Mapping[str, str]
    least_decided: float


def judged_whole(host: Host) -> Judgement:
    """Ask every gate of level `standard`, as `gpucoexist doctor` does.

    The deadline is long: a table must not depend on a busy computer.
    """
    machine = discover(host, ask=("amd", "nvidia"))
    return judge(Subject(host=host, machine=machine, level="standard", deadline_s=60.0))


def letters_of(judgement: Judgement) -> dict[str, str]:
    """Return the letter of each gate."""
    return {name: _LETTERS[status] for name, status in judgement.by_gate().items()}


def decided_share(letters: Mapping[str, str]) -> float:
    """Return the share of decided gates among those that apply."""
    applied = [letter for letter in letters.values() if letter != "S"]
    return sum(letter in "PWF" for letter in applied) / len(applied) if applied else 0.0


def write_tables(path: Path, machines: Mapping[str, Callable[[], Host]]) -> None:
    """Judge every machine and write the file."""
    columns = {name: letters_of(judged_whole(machine())) for name, machine in machines.items()}
    gates = sorted({gate for letters in columns.values() for gate in letters})
    width = max(map(len, [*gates, "least decided"]))
    lines = [f"# {number:2} {name}" for number, name in enumerate(columns)]
    lines.append("gate".ljust(width) + "".join(f"{number:5}" for number in range(len(columns))))
    shares = [_step_below(decided_share(letters)) for letters in columns.values()]
    lines.append("least decided".ljust(width) + "".join(f"{share:5.2f}" for share in shares))
    for gate in gates:
        lines.append(gate.ljust(width) + "".join(f"{letters.get(gate, '-'):>5}" for letters in columns.values()))
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def read_tables(path: Path) -> dict[str, Expected]:
    """Read what `write_tables` wrote, by the machine's name; nothing where there is no file."""
    if not path.is_file():
        return {}
    lines = path.read_text(encoding="utf-8").splitlines()
    names = [line.split(maxsplit=2)[2] for line in lines if line.startswith("# ")]
    _numbers, shares, *rows = [line for line in lines if not line.startswith("# ")]
    least = [float(word) for word in shares.split()[2:]]
    letters: list[dict[str, str]] = [{} for _ in names]
    for row in rows:
        gate, *cells = row.split()
        for column, cell in zip(letters, cells, strict=True):
            if cell != "-":
                column[gate] = cell
    return {
        name: Expected(letters=column, least_decided=share)
        for name, column, share in zip(names, letters, least, strict=True)
    }


def _step_below(share: float) -> float:
    return max(0.0, int(share / _STEP + 1e-9) * _STEP)

"""Write the page of all gates from the registry and from the marks of the tests that prove them.

`python docs/gates.py docs/reference/gates.md`
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pytest_gpucoexist.gates.catalogue import all_gates
from pytest_gpucoexist.gates.describe import describe, unbuilt
from pytest_gpucoexist.model.verdicts import LEVELS
from pytest_gpucoexist.reports.markdown_text import text
from tests.gates.proofs import GROUNDS, collect_proofs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

VENDOR_NAMES = {"nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel"}

HEAD = """\
<!-- Written by docs/gates.py from the registry and the tests; change those. -->
# Gates

What each gate reads, what must hold, why, and what to do; the same as `gpucoexist doctor --explain ID`.
How to read a verdict, to ignore one, to write one: [Judge a machine](../howto/judge.md). Why they are as they are:
[Gates](../explanation/gates.md).

*Level*: `quick` reads files and environment; `standard` asks vendor libraries and programs too; `transfer` and `full`
copy data, to see whether it arrives and how fast. A gate that *blocks* takes its devices out of the session; the
others only say what they found.

*Shown on*: where tests make the gate pass and fail. **r** a recording of a real machine, **t** text or a tree as a
kernel or driver prints it, **f** a fake driver under the vendor's own client, **v** the virtual workstation, **h** the
computer that runs the tests, **n** numbers that others measured.
"""

LETTERS = {"recording": "r", "tree": "t", "fake": "f", "vm": "v", "host": "h", "values": "n"}
BAD = ("FAIL", "WARN")


def page() -> str:
    """Write the whole page."""
    gates = [describe(gate) for gate in all_gates()]
    shown: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for name, status, ground in collect_proofs():
        shown[name][status].add(ground)
    lines = [HEAD, *_counts(gates)]
    for group in dict.fromkeys(gate["group"] for gate in gates):
        members = [gate for gate in gates if gate["group"] == group]
        lines += [f"## {group}", "", *_table(members, shown)]
        for gate in members:
            lines += _gate(gate)
    lines += ["## Checks that are no gates of their own", "", "| check | why |", "|---|---|"]
    lines += [f"| `{name}` | {text(reason)} |" for name, reason in unbuilt().items()]
    return "\n".join(lines) + "\n"


def _counts(gates: Sequence[Mapping[str, Any]]) -> list[str]:
    built = [gate for gate in gates if gate["built"]]
    levels = [f"{sum(gate['level'] == level for gate in built)} of level `{level}`" for level in LEVELS]
    blocking = sum(gate["blocking"] for gate in built)
    return [f"{len(built)} gates: {', '.join(levels)}; {blocking} block.", ""]


def _table(gates: Sequence[Mapping[str, Any]], shown: Mapping[str, Mapping[str, set[str]]]) -> Iterator[str]:
    yield "| gate | | level | at worst | passes on | fails on |"
    yield "|---|---|---|---|---|---|"
    for gate in gates:
        worst = "**blocks**" if gate["blocking"] else gate["severity"]
        proofs = shown.get(gate["id"], {})
        passes = _letters(proofs.get("PASS", set()))
        fails = _letters({ground for status in BAD for ground in proofs.get(status, set())})
        yield f"| `{gate['id']}` | {text(gate['title'])} | {gate['level']} | {worst} | {passes} | {fails} |"
    yield ""


def _letters(grounds: set[str]) -> str:
    return " ".join(LETTERS[ground] for ground in GROUNDS if ground in grounds)


def _gate(gate: Mapping[str, Any]) -> Iterator[str]:
    vendors = ", ".join(VENDOR_NAMES[vendor] for vendor in gate["vendors"]) or "any host"
    yield f"### {gate['id']}"
    yield ""
    yield f"{text(gate['title'])} ({vendors})."
    yield ""
    for title, name in (
        ("reads", "reads"),
        ("must hold", "criterion"),
        ("why", "why"),
        ("what to do", "action"),
        ("source", "source"),
    ):
        yield f"- *{title}*: {text(gate[name])}"
    for name, default in gate["limits"].items():
        yield f"- *limit*: `{gate['id']}.{name} = {default:g}`"
    yield ""


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")

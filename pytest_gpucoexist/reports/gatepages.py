"""The list of gates and the page of one, for people. Gates come as plain data (`gates.describe`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.reports.layout import add_row, bold, grid, lines_below
from pytest_gpucoexist.reports.screen import PLAIN, Screen, render
from pytest_gpucoexist.reports.words import VENDOR_NAMES, joined

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["gate_page", "gates_list"]


def gates_list(gates: Sequence[Mapping[str, Any]], screen: Screen = PLAIN) -> str:
    """List gates by group: id, level, what a failure means, and what the gate is about."""
    blocks = []
    width = max((len(gate["id"]) for gate in gates), default=0) + 2
    for group in dict.fromkeys(gate["group"] for gate in gates):
        table = grid(screen, "", "", "", "", widths=(width, 9, 7), headings=False)
        for gate in gates:
            if gate["group"] == group:
                add_row(
                    table,
                    screen,
                    (f"  {gate['id']}", "" if gate["built"] else "dim"),
                    (gate["level"], "dim"),
                    ("blocks" if gate["blocking"] else gate["severity"], "bold" if gate["blocking"] else ""),
                    (gate["title"] if gate["built"] else f"{gate['title']} (not yet)", "" if gate["built"] else "dim"),
                )
        blocks.append(bold(group, screen) + "\n" + render(table, screen))
    built = sum(gate["built"] for gate in gates)
    blocking = sum(gate["blocking"] for gate in gates)
    end = f"{built} gates, {blocking} of them block; {len(gates) - built} come with later levels"
    return "\n\n".join([*blocks, screen.say(end)])


def gate_page(gate: Mapping[str, Any], screen: Screen = PLAIN) -> str:
    """Write what a gate reads, what must hold, why it matters, what to do, and who has seen it."""
    vendors = joined([VENDOR_NAMES[vendor] for vendor in gate["vendors"]]) if gate["vendors"] else "any host"
    failing = "takes its devices out" if gate["blocking"] else f"is said, as {gate['severity']}; nothing is taken out"
    items = [
        ("about", f"{gate['group']}; {vendors}"),
        ("level", gate["level"] if gate["built"] else f"{gate['level']} (not run by this version yet)"),
        ("reads", gate["reads"]),
        ("must hold", gate["criterion"]),
        ("why", gate["why"]),
        ("a failure", failing),
        ("what to do", gate["action"]),
        ("source", gate["source"]),
    ]
    for name, default in gate["limits"].items():
        items.append(("limit", f"{name} = {default:g} (gpu_gate_limits = {gate['id']}.{name} = …)"))
    return lines_below(f"{gate['id']}: {gate['title']}", items, screen)

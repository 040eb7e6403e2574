"""What a planned run did with its devices: a few lines, a table, a chart of bars."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.model.arguments import format_bytes
from pytest_gpucoexist.reports.html_page import folded, table, text
from pytest_gpucoexist.reports.markdown_text import code, table as markdown_table, text as markdown_text
from pytest_gpucoexist.reports.words import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_gpucoexist.model.machine import Machine
    from pytest_gpucoexist.model.timeline import DeviceTime, Held, Timeline

__all__ = ["timeline_html", "timeline_lines", "timeline_markdown"]

_SHOWN = 3
"""Waits in the terminal: enough to see what stands in the way."""

_LISTED = 20
"""Waits in a report that people read."""

_WORTH_SAYING_S = 0.5
"""Shorter waits are the grain of any schedule."""

_BARS = 2_000
"""Bars of a chart, the longest: more would be thinner than a pixel, and make a slow page."""


def timeline_lines(timeline: Timeline, machine: Machine | None) -> list[str]:
    """Say how busy each device was and which tests waited for what, in a few lines of a terminal."""
    name = _namer(machine)
    busy = ", ".join(f"{name(each.key)} {_share(each, timeline)}" for each in timeline.devices)
    lines = [f"--gpu-dist: {_spread(timeline)}; busy: {busy}"]
    waits = [wait for wait in timeline.waits if wait.seconds >= _WORTH_SAYING_S]
    for wait in waits[:_SHOWN]:
        behind = f", held by {wait.holders[0]}" if wait.holders else ""
        more = f" and {len(wait.holders) - 1} more" if len(wait.holders) > 1 else ""
        lines.append(f"  waited {wait.seconds:.1f} s: {wait.nodeid}{behind}{more}")
    if len(waits) > _SHOWN:
        lines.append(f"  and {plural(len(waits) - _SHOWN, 'shorter wait')}")
    return lines


def timeline_markdown(timeline: Timeline, machine: Machine | None) -> list[str]:
    """Write a table of devices, and one of waits."""
    name = _namer(machine)
    lines = [
        _sentence(_spread(timeline)),
        "",
    ]
    lines += markdown_table(
        ("GPU", "Busy", "Seconds", "Tests"),
        (
            (markdown_text(name(each.key)), _share(each, timeline), f"{each.busy_s:.1f}", str(len(each.held)))
            for each in timeline.devices
        ),
    )
    waits = [wait for wait in timeline.waits if wait.seconds >= _WORTH_SAYING_S][:_LISTED]
    if waits:
        lines += markdown_table(
            ("Waited", "Test", "Held by"),
            (
                (f"{wait.seconds:.1f} s", code(wait.nodeid), "<br>".join(code(each) for each in wait.holders[:_SHOWN]))
                for wait in waits
            ),
        )
    return lines


def timeline_html(timeline: Timeline, machine: Machine | None) -> Iterator[str]:
    """Draw a row of bars for each device, and list the waits."""
    name = _namer(machine)
    vendors = {} if machine is None else {gpu.key: gpu.vendor for gpu in machine.gpus}
    yield (f"<p>{text(_sentence(_spread(timeline)))}. A bar is a test; a lower one had only a share of the memory.</p>")
    shown = _longest(timeline)
    rows = [_row(each, timeline, shown, name(each.key), vendors.get(each.key, "other")) for each in timeline.devices]
    yield f'<div class="times" role="list" aria-label="Devices over time">{"".join(rows)}{_axis(timeline)}</div>'
    hidden = sum(len(each.held) for each in timeline.devices) - len(shown)
    if hidden > 0:
        yield f'<p class="meta">{text(plural(hidden, "short bar"))} left out; a .json report has them all.</p>'
    waits = [wait for wait in timeline.waits if wait.seconds >= _WORTH_SAYING_S][:_LISTED]
    if waits:
        cells = [
            [
                f"{wait.seconds:.1f} s",
                f'<span class="id">{text(wait.nodeid)}</span>',
                "".join(f'<div class="id">{text(each)}</div>' for each in wait.holders[:_SHOWN]),
            ]
            for wait in waits
        ]
        content = table(["Waited", "Test", "Held by"], cells, label="Tests that waited", numbers=("Waited",))
        yield folded(text(f"What waited for what ({plural(len(waits), 'wait')})"), content)


def _row(device: DeviceTime, timeline: Timeline, shown: set[int], name: str, vendor: str) -> str:
    bars = "".join(_bar(held, timeline) for held in device.held if id(held) in shown)
    share = _share(device, timeline)
    label = f"{name}: {share} busy, {plural(len(device.held), 'test')}"
    return (
        f'<div class="time" role="listitem" aria-label="{text(label)}"><span class="vendor {vendor}">{text(name)}'
        f'<span class="sub">{share} busy</span></span><span class="bars {vendor}">{bars}</span></div>'
    )


def _bar(held: Held, timeline: Timeline) -> str:
    length_s = timeline.length_s or 1.0
    left, width = 100 * held.start_s / length_s, 100 * (held.end_s - held.start_s) / length_s
    memory = "" if held.memory_bytes is None else f", {format_bytes(held.memory_bytes)}"
    said = f"{held.nodeid}, {held.worker}: {held.start_s:.2f} to {held.end_s:.2f} s{memory}"
    css = "" if held.memory_bytes is None else ' class="part"'
    return f'<i{css} style="left:{left:.3f}%;width:{max(width, 0.02):.3f}%" title="{text(said)}"></i>'


def _axis(timeline: Timeline) -> str:
    marks = "".join(f"<span>{timeline.length_s * part / 4:.1f} s</span>" for part in range(5))
    return f'<div class="time" aria-hidden="true"><span></span><span class="axis">{marks}</span></div>'


def _longest(timeline: Timeline) -> set[int]:
    bars = [held for device in timeline.devices for held in device.held]
    bars.sort(key=lambda held: held.start_s - held.end_s)
    return {id(held) for held in bars[:_BARS]}


def _spread(timeline: Timeline) -> str:
    return f"leases on {plural(timeline.workers, 'worker')}, {timeline.length_s:.1f} s from the first to the last"


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:]


def _share(device: DeviceTime, timeline: Timeline) -> str:
    return f"{100 * device.busy_s / timeline.length_s:.0f} %" if timeline.length_s else "0 %"


def _namer(machine: Machine | None) -> Callable[[str], str]:
    ids = {} if machine is None else {gpu.key: gpu.id for gpu in machine.gpus}
    return lambda key: ids.get(key, key)

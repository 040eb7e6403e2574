"""The report of a session as one self-contained HTML file."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pytest_gpucoexist.reports.html_gates import judgement_html
from pytest_gpucoexist.reports.html_page import TONES, badge, bullets, folded, page, section, table, text
from pytest_gpucoexist.reports.summary import (
    OUTCOME_WORDS,
    none_ran,
    ran_simulated,
    short_counts,
    tests_by_device,
    unmet_groups,
)
from pytest_gpucoexist.reports.timeline import timeline_html
from pytest_gpucoexist.reports.words import (
    KIND_NAMES,
    UNKNOWN,
    describe_arch,
    describe_driver,
    describe_gpu_link,
    describe_name,
    describe_size,
    describe_time,
    describe_use,
    plural,
    sold_as,
    why_not,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pytest_gpucoexist.model.machine import Gpu, Machine
    from pytest_gpucoexist.reports.model import DeviceUse, Outcome, SessionReport, TestRecord

__all__ = ["report_html"]

_COUNT_TONES = {
    "ran on a GPU": "good",
    "ran simulated": "warn",
    "failed": "bad",
    "not run for want of hardware": "warn",
}
_ORDER: tuple[Outcome, ...] = ("failed", "error", "xpassed", "passed", "xfailed", "skipped")
_FOLDED_FROM = 50
"""A group of more passed or skipped tests than this is folded away at first."""

SIMULATED = "SIMULATED: this session used a replayed machine. Nothing in it says anything about real hardware."


def report_html(report: SessionReport) -> str:
    """Write the report of a session as an HTML page."""
    machine = report.machine
    title = "GPU test report" if machine is None else f"GPU test report: {machine.name}"
    alarm = none_ran(report.tests)
    return page(
        title,
        f"<header>\n<h1>{text(title)}</h1>\n<p class='meta'>{_meta(report)}</p>\n</header>",
        f'<p class="banner warn">{text(SIMULATED)}</p>' if report.simulated else "",
        f'<p class="banner bad" role="alert">{text(alarm)}</p>' if alarm and not report.simulated else "",
        _counts(report),
        section("Not run for want of hardware", *_unmet(report)),
        section("Devices", _devices(machine, report.tests)) if machine is not None and machine.gpus else "",
        section("Gates", *judgement_html(report.judgement, machine)) if report.judgement and machine else "",
        section("Devices over time", *timeline_html(report.timeline, machine)) if report.timeline else "",
        section("Tests that need a GPU", *_gpu_tests(report.tests)),
        section("Tests that need no GPU", _other_tests(report.tests)),
        section("Warnings about this machine", _warnings(machine)) if machine is not None else "",
        section("Notes", bullets(report.notes)),
        footer=f"Written by pytest-gpucoexist {text(report.version)}.",
    )


def _meta(report: SessionReport) -> str:
    parts = [describe_time(report.created)]
    if report.exit_status is not None:
        parts.append(f"exit status {report.exit_status}")
    if report.promised:
        parts.append(f"promised: {report.promised}")
    return text(" · ".join(parts))


def _counts(report: SessionReport) -> str:
    items = []
    for label, count in short_counts(report):
        if label == "ran simulated" and not count:
            continue
        tone = _COUNT_TONES.get(label, "") if count else ""
        items.append(f'<li class="{tone}"><b>{count:,}</b>{text(label)}</li>')
    return f'<ul class="counts" aria-label="Summary">{"".join(items)}</ul>'


def _unmet(report: SessionReport) -> Iterator[str]:
    for group in unmet_groups(report.tests):
        summary = (
            f"{badge(OUTCOME_WORDS[group.outcome], 'warn')} {text(group.reason)} "
            f"<span class='meta'>({plural(len(group.nodeids), 'test')})</span>"
        )
        yield folded(summary, bullets(group.nodeids, "id"))


def _devices(machine: Machine, tests: Sequence[TestRecord]) -> str:
    used = tests_by_device(tests)
    titles = ["GPU", "Name", "Driver", "Memory", "Arch", "Link", "Usable", "Tests"]
    rows = [_device(gpu, machine, used[gpu.key]) for gpu in machine.gpus]
    return table(titles, rows, label="Devices of the machine", css="devices", numbers=("Memory", "Tests"))


def _device(gpu: Gpu, machine: Machine, tests: int) -> list[str]:
    use = describe_use(gpu)
    tone = "good" if gpu.usable.cuda or gpu.usable.rocm else "warn"
    why = why_not(gpu, machine)
    kind = KIND_NAMES.get(gpu.kind, gpu.kind)
    uuid = f'<span class="sub id">{text(gpu.uuid)}</span>' if gpu.uuid and gpu.uuid != gpu.key else ""
    node = "" if gpu.numa_node is None else f'<span class="sub keep">NUMA node {gpu.numa_node}</span>'
    return [
        f'<span class="vendor {gpu.vendor}">{text(gpu.id)}</span><span class="sub id keep">{text(gpu.key)}</span>',
        f'{text(describe_name(gpu))} <span class="meta">{text(kind)}</span>{uuid}',
        f'<span class="keep">{text(describe_driver(gpu))}</span>',
        text(describe_size(gpu.memory_total_bytes)),
        f'<span class="keep">{text(describe_arch(gpu))}</span>',
        f'<span class="keep">{text(describe_gpu_link(gpu))}</span>{node}',
        (UNKNOWN if use == UNKNOWN else badge(use, "warn" if why else tone))
        + (f'<span class="sub">{text(why)}</span>' if why else ""),
        f"{tests:,}" if tests else UNKNOWN,
    ]


def _gpu_tests(tests: Iterable[TestRecord]) -> Iterator[str]:
    groups: dict[Outcome, list[TestRecord]] = {outcome: [] for outcome in _ORDER}
    for record in tests:
        if record.requirement is not None:
            groups[record.outcome].append(record)
    titles = ["Test", "Needs", "Device", "Time"]
    for outcome, records in groups.items():
        if not records:
            continue
        summary = f"{badge(outcome, TONES[outcome])} {plural(len(records), 'test')}"
        content = table(titles, map(_gpu_test, records), label=f"Tests that {outcome}", css="tests", numbers=("Time",))
        yield folded(summary, content, is_open=TONES[outcome] in {"bad", "warn"} or len(records) <= _FOLDED_FROM)


def _gpu_test(record: TestRecord) -> list[str]:
    where = "".join(_device_line(device) for device in record.devices if record.outcome != "skipped")
    if not where:
        where = text(OUTCOME_WORDS[record.gpu_outcome or "not_run"])
    elif ran_simulated(record) and not any(device.simulated for device in record.devices):
        where = badge("SIMULATED", "warn") + where
    if record.numa_node is not None:
        where += f'<span class="sub">NUMA node {record.numa_node}</span>'
    reason = f'<span class="sub">{text(record.reason)}</span>' if record.reason else ""
    worker = f'<span class="sub">{text(record.worker)}</span>' if record.worker else ""
    time = UNKNOWN if record.outcome == "skipped" else f"{record.duration_s:.2f} s"
    return [f'<span class="id">{text(record.nodeid)}</span>{reason}', text(record.requirement), where, time + worker]


def _device_line(device: DeviceUse) -> str:
    simulated = badge("SIMULATED", "warn") + " " if device.simulated else ""
    name = " ".join(filter(None, [sold_as(device.name or ""), device.driver, device.driver_version]))
    if device.share_bytes is not None:
        name = ", ".join(filter(None, [f"{describe_size(device.share_bytes)} of its memory", name]))
    place = f'<div>{simulated}<b>{text(device.id)}</b> <span class="id">{text(device.key)}</span></div>'
    return f'{place}<span class="sub">{text(name)}</span>'


def _other_tests(tests: Iterable[TestRecord]) -> str:
    others = [record for record in tests if record.requirement is None]
    if not others:
        return ""
    counts = Counter(record.outcome for record in others)
    badges = " ".join(badge(f"{counts[name]:,} {name}", TONES[name]) for name in _ORDER if counts[name])
    bad = [record.nodeid for record in others if record.outcome in {"failed", "error"}]
    return f"<p>{badges}</p>" + (folded("Failed", bullets(bad, "id"), is_open=True) if bad else "")


def _warnings(machine: Machine) -> str:
    lines = [f"{mask.variable}={mask.value}: {mask.warning}" for mask in machine.masks if mask.warning]
    lines += [f"{conflict.subject}: {conflict.message}" for conflict in machine.conflicts]
    return bullets([*lines, *machine.notes])

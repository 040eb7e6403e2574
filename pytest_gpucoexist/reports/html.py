"""The report of a session, or of several runners, as one self-contained HTML file."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pytest_gpucoexist.reports.html_page import badge, folded, page, section, table, text
from pytest_gpucoexist.reports.junit import describe_device
from pytest_gpucoexist.reports.summary import OUTCOME_WORDS, none_ran, ran_simulated, short_counts, unmet_groups
from pytest_gpucoexist.reports.words import (
    KIND_NAMES,
    UNKNOWN,
    describe_arch,
    describe_driver,
    describe_link,
    describe_name,
    describe_size,
    describe_use,
    plural,
    why_not,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pytest_gpucoexist.model.machine import Gpu, Machine
    from pytest_gpucoexist.reports.merge import MergedReport, MergedTest
    from pytest_gpucoexist.reports.model import DeviceUse, SessionReport, TestRecord

__all__ = ["merged_html", "report_html"]

_TONES = {"passed": "good", "failed": "bad", "error": "bad", "skipped": "", "xfailed": "", "xpassed": "warn"}
_COUNT_TONES = {
    "ran on a GPU": "good",
    "ran simulated": "warn",
    "failed": "bad",
    "not run for want of hardware": "warn",
}
_ORDER = ("failed", "error", "xpassed", "passed", "xfailed", "skipped")
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
        section("Tests that need a GPU", *_gpu_tests(report.tests)),
        section("Tests that need no GPU", _other_tests(report.tests)),
        section("Warnings about this machine", _warnings(machine)) if machine is not None else "",
        section("Notes", _list(report.notes)),
        footer=f"Written by pytest-gpucoexist {text(report.version)}.",
    )


def _meta(report: SessionReport) -> str:
    parts = [report.created]
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
        yield folded(summary, _list(group.nodeids, "id"))


def _devices(machine: Machine, tests: Sequence[TestRecord]) -> str:
    used = Counter(device.key for record in tests if record.outcome != "skipped" for device in record.devices)
    titles = ["GPU", "Name", "Driver", "Memory", "Arch", "NUMA node", "PCIe link", "Usable", "Tests"]
    rows = [_device(gpu, machine, used[gpu.key]) for gpu in machine.gpus]
    return table(titles, rows, label="Devices of the machine", numbers=("Memory", "NUMA node", "Tests"))


def _device(gpu: Gpu, machine: Machine, tests: int) -> list[str]:
    use = describe_use(gpu)
    tone = "good" if gpu.usable.cuda or gpu.usable.rocm else "warn"
    why = why_not(gpu, machine)
    kind = KIND_NAMES.get(gpu.kind, gpu.kind)
    uuid = f'<span class="sub id">{text(gpu.uuid)}</span>' if gpu.uuid and gpu.uuid != gpu.key else ""
    return [
        f'<span class="vendor {gpu.vendor}">{text(gpu.id)}</span><span class="sub id keep">{text(gpu.key)}</span>',
        f'{text(describe_name(gpu))} <span class="meta">{text(kind)}</span>{uuid}',
        text(describe_driver(gpu)),
        text(describe_size(gpu.memory_total_bytes)),
        f'<span class="keep">{text(describe_arch(gpu))}</span>',
        text(UNKNOWN if gpu.numa_node is None else gpu.numa_node),
        f'<span class="keep">{text(describe_link(gpu.link))}</span>',
        (UNKNOWN if use == UNKNOWN else badge(use, "warn" if why else tone))
        + (f'<span class="sub">{text(why)}</span>' if why else ""),
        f"{tests:,}" if tests else UNKNOWN,
    ]


def _gpu_tests(tests: Iterable[TestRecord]) -> Iterator[str]:
    groups: dict[str, list[TestRecord]] = {outcome: [] for outcome in _ORDER}
    for record in tests:
        if record.requirement is not None:
            groups[record.outcome].append(record)
    titles = ["Test", "Needs", "Ran on", "Time"]
    for outcome, records in groups.items():
        if not records:
            continue
        summary = f"{badge(outcome, _TONES[outcome])} {plural(len(records), 'test')}"
        content = table(titles, map(_gpu_test, records), label=f"Tests that {outcome}", numbers=("Time",))
        yield folded(summary, content, is_open=_TONES[outcome] in {"bad", "warn"} or len(records) <= _FOLDED_FROM)


def _gpu_test(record: TestRecord) -> list[str]:
    where = "".join(_device_line(device) for device in record.devices if record.outcome != "skipped")
    if not where:
        where = text(OUTCOME_WORDS[record.gpu_outcome or "not_run"])
    elif ran_simulated(record) and not any(device.simulated for device in record.devices):
        where = badge("SIMULATED", "warn") + where
    if record.numa_node is not None:
        where += f'<span class="sub">bound to NUMA node {record.numa_node}</span>'
    reason = f'<span class="sub">{text(record.reason)}</span>' if record.reason else ""
    worker = f'<span class="sub">{text(record.worker)}</span>' if record.worker else ""
    time = UNKNOWN if record.outcome == "skipped" else f"{record.duration_s:.2f} s"
    return [f'<span class="id">{text(record.nodeid)}</span>{reason}', text(record.requirement), where, time + worker]


def _device_line(device: DeviceUse) -> str:
    simulated = badge("SIMULATED", "warn") + " " if device.simulated else ""
    name = " ".join(filter(None, [device.name, device.driver, device.driver_version]))
    address = text(device.key)
    return f'<div>{simulated}<b>{text(device.id)}</b> <span class="id">{address}</span></div><span class="sub">{text(name)}</span>'


def _other_tests(tests: Iterable[TestRecord]) -> str:
    others = [record for record in tests if record.requirement is None]
    if not others:
        return ""
    counts = Counter(record.outcome for record in others)
    badges = " ".join(badge(f"{counts[name]:,} {name}", _TONES[name]) for name in _ORDER if counts[name])
    bad = [record.nodeid for record in others if record.outcome in {"failed", "error"}]
    return f"<p>{badges}</p>" + (folded("Failed", _list(bad, "id"), is_open=True) if bad else "")


def _warnings(machine: Machine) -> str:
    lines = [f"{mask.variable}={mask.value}: {mask.warning}" for mask in machine.masks if mask.warning]
    lines += [f"{conflict.subject}: {conflict.message}" for conflict in machine.conflicts]
    return _list([*lines, *machine.notes])


def _list(items: Sequence[str], css: str = "") -> str:
    if not items:
        return ""
    return '<ul class="plain">' + "".join(f'<li class="{css}">{text(item)}</li>' for item in items) + "</ul>"


def merged_html(merged: MergedReport) -> str:
    """Write what several runners did as an HTML page; tests that ran nowhere come first."""
    title = f"GPU tests on {plural(len(merged.runners), 'runner')}"
    gaps, rest = merged.gaps, [test for test in merged.tests if test.runs]
    alarm = f"{plural(len(gaps), 'test')} ran nowhere." if gaps else ""
    runners = [
        [
            f"<b>{text(runner.label)}</b>" + (f" {badge('SIMULATED', 'warn')}" if runner.simulated else ""),
            text(", ".join(runner.gpus) or "no GPU"),
            text(UNKNOWN if runner.exit_status is None else runner.exit_status),
            f'<span class="keep">{text(runner.created)}</span><span class="sub id">{text(runner.source)}</span>',
        ]
        for runner in merged.runners
    ]
    titles = ["Test", "Ran on", "Elsewhere"]
    return page(
        title,
        f"<header>\n<h1>{text(title)}</h1>\n</header>",
        f'<p class="banner bad" role="alert">{text(alarm)}</p>' if alarm else "",
        section("Runners", table(["Runner", "GPUs", "Exit status", "Session"], runners, label="Runners")),
        section("Ran nowhere", table(["Test", "Why"], map(_gap, gaps), label="Tests that ran nowhere") if gaps else ""),
        section("Ran", table(titles, map(_merged_test, rest), label="Tests that ran") if rest else ""),
        footer="Written by gpucoexist merge.",
    )


def _gap(test: MergedTest) -> list[str]:
    return [_merged_id(test), _absences(test)]


def _merged_test(test: MergedTest) -> list[str]:
    runs = "".join(
        f"<div>{badge(run.outcome, _TONES[run.outcome])} {text(run.runner)}</div>"
        + "".join(f'<span class="sub">{text(describe_device(device))}</span>' for device in run.devices)
        for run in test.runs
    )
    return [_merged_id(test), runs, _absences(test)]


def _merged_id(test: MergedTest) -> str:
    needs = f'<span class="sub">needs {text(test.requirement)}</span>' if test.requirement else ""
    return f'<span class="id">{text(test.nodeid)}</span>{needs}'


def _absences(test: MergedTest) -> str:
    return "".join(
        f"<div>{badge(OUTCOME_WORDS.get(item.outcome, item.outcome))} {text(item.runner)}</div>"
        + (f'<span class="sub">{text(item.reason)}</span>' if item.reason else "")
        for item in test.absences
    )

"""The HTML page: complete, self-contained, escaped."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.model.machine import Conflict, Machine
from pytest_gpucoexist.reports.html import report_html
from pytest_gpucoexist.reports.html_merged import merged_html
from pytest_gpucoexist.reports.merge import merge_reports
from tests.reports import machines, sessions

if TYPE_CHECKING:
    from pytest_gpucoexist.reports.model import SessionReport

VOID = {"meta", "br"}


class Page(HTMLParser):
    """What a browser sees: elements, attributes, text; a tag that is not closed is an error."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def simulated() -> SessionReport:
    tests = tuple(
        replace(test, devices=tuple(replace(device, simulated=True) for device in test.devices))
        for test in sessions.workstation_session().tests
    )
    return replace(sessions.workstation_session(), tests=tests, simulated=True, machine=machines.workstation())


def pages() -> list[str]:
    report = sessions.workstation_session()
    return [
        report_html(report),
        report_html(simulated()),
        report_html(sessions.session(machine=None)),
        report_html(sessions.session(sessions.unmet("a"), machine=Machine(name="bare"))),
        merged_html(merge_reports([("a.json", report), ("b.json", simulated())])),
        merged_html(merge_reports([("a.json", sessions.session(sessions.record("a"), machine=None))])),
    ]


@pytest.mark.parametrize("number", range(6))
def test_it_needs_nothing_from_elsewhere(number: int) -> None:
    page = Page(pages()[number])
    assert {tag for tag, _attributes in page.tags} & {"script", "link", "img", "iframe", "object", "form"} == set()
    for _tag, attributes in page.tags:
        assert {"src", "href", "onclick", "onload", "style"} & set(attributes) == set()
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.all("meta")
    assert "url(" not in pages()[number]
    assert "@import" not in pages()[number]


@pytest.mark.parametrize("number", range(6))
def test_it_is_accessible(number: int) -> None:
    page = Page(pages()[number])
    assert page.all("html") == [{"lang": "en"}]
    assert len(page.all("h1")) == 1
    assert len(page.all("title")) == 1
    assert len(page.all("main")) == 1
    assert all(attributes.get("scope") == "col" for attributes in page.all("th"))
    assert all(attributes.get("aria-label") for attributes in page.all("table"))
    assert "prefers-color-scheme: dark" in pages()[number]


def test_everything_of_a_session_is_there() -> None:
    report = sessions.workstation_session()
    text = Page(report_html(report)).text
    for record in report.tests:
        if record.requirement is not None:
            assert record.nodeid in text
            assert record.requirement in text
    assert report.machine is not None
    for gpu in report.machine.gpus:
        assert gpu.id in text
        assert gpu.key in text
    for word in (
        "5 ran on a GPU",
        "2 failed",
        "3 not run for want of hardware",
        "4 need no GPU",
        "exit status 1",
        "promised: cuda:2,rocm",
        "hidden by CUDA_VISIBLE_DEVICES=0",
        "user not in group render (gid 105)",
        "NUMA node 0",
        "gpus: NVML counts 3 NVIDIA GPUs, PCI 2",
        "2 tests were rerun",
        "tests/test_shapes.py::test_strides",
        "pytest-gpucoexist 0.1.0",
    ):
        assert word in text, word


def test_failures_come_first() -> None:
    text = Page(report_html(sessions.workstation_session())).text
    assert text.index("failed 1 test") < text.index("passed 3 tests") < text.index("skipped 3 tests")


@pytest.mark.parametrize("hostile", ["<script>alert(1)</script>", '"><img src=x onerror=y>', "</style>&amp;\x1b[0m"])
def test_no_text_can_leave_its_place(hostile: str) -> None:
    machine = sessions.real_machine()
    gpu = replace(machine.gpus[0], name=hostile, id=hostile, driver=hostile, arch=hostile, uuid=hostile)
    conflict = Conflict(subject=hostile, kind="x", message=hostile)
    record = sessions.gpu_record(
        hostile, "nvidia0", reason=hostile, worker=hostile, requirement=hostile, outcome="failed"
    )
    device = replace(record.devices[0], id=hostile, key=hostile, name=hostile)
    report = sessions.session(
        replace(record, devices=(device,)),
        sessions.unmet(hostile, reason=hostile),
        sessions.record(hostile, "failed"),
        machine=replace(machine, name=hostile, gpus=(gpu,), conflicts=(conflict,)),
        promised=hostile,
        created=hostile,
        version=hostile,
        notes=(hostile,),
    )
    for page in (report_html(report), merged_html(merge_reports([(f"{hostile}.json", report)]))):
        assert hostile not in page
        assert "\x1b" not in page
        seen = {tag for tag, _attributes in Page(page).tags}
        assert seen & {"script", "img"} == set()


def test_simulated_cannot_be_missed() -> None:
    text = Page(report_html(simulated())).text
    assert "SIMULATED: this session used a replayed machine" in text
    assert "0 ran on a GPU" in text
    assert "5 ran simulated" in text
    assert "SIMULATED nvidia0" in text
    assert "SIMULATED" not in Page(report_html(sessions.workstation_session())).text


def test_stand_ins_are_marked_even_when_their_devices_are_not() -> None:
    report = sessions.session(sessions.gpu_record("a", "nvidia0", gpu_outcome="simulated"), simulated=True)
    assert "SIMULATED nvidia0" in Page(report_html(report)).text


def test_a_session_in_which_none_ran_says_so() -> None:
    page = Page(report_html(sessions.session(sessions.unmet("a"))))
    assert "1 GPU test selected and NONE ran on a GPU: 1 missing" in page.text
    assert {"class": "banner bad", "role": "alert"} in page.all("p")


def test_long_groups_are_folded_and_failures_are_not() -> None:
    many = [sessions.gpu_record(f"t::{n}", "nvidia0") for n in range(51)]
    failed = [sessions.gpu_record(f"f::{n}", "nvidia0", outcome="failed") for n in range(51)]
    details = Page(report_html(sessions.session(*many, *failed))).all("details")
    assert details == [{"open": None}, {}]


def test_a_test_that_never_had_a_device() -> None:
    text = Page(report_html(sessions.session(sessions.record("a", "error", requirement="1 GPU")))).text
    assert "1 GPU not run" in text


def test_a_test_shows_the_name_that_its_device_is_sold_under_and_its_share() -> None:
    record = sessions.gpu_record("a", "nvidia0")
    device = replace(record.devices[0], name="Navi 31 [Radeon RX 7900 XTX]", driver=None, share_bytes=4 * 1024**3)
    page = report_html(sessions.session(replace(record, devices=(device,))))
    assert "4 GiB of its memory, Radeon RX 7900 XTX" in page
    assert "Navi 31" not in page


def test_merged_page_begins_with_what_ran_nowhere() -> None:
    text = Page(merged_html(merge_reports([("a.json", sessions.workstation_session())]))).text
    assert "4 tests ran nowhere." in text
    assert text.index("Ran nowhere") < text.index("Tests that need a GPU") < text.index("Tests that need no GPU")
    assert "1 test that did not fail" not in text
    assert "2 tests that did not fail" in text


def test_merged_page_without_gaps_has_no_alarm() -> None:
    report = sessions.session(sessions.gpu_record("a", "nvidia0"), sessions.record("b", "failed"))
    page = Page(merged_html(merge_reports([("a.json", report)])))
    assert "ran nowhere" not in page.text
    assert "Tests that need no GPU" in page.text

"""The matrix: readable in 80 columns and in ASCII, and every mark is what the gates have said."""

from __future__ import annotations

import pytest

pytest.importorskip("jsonschema", reason="needs jsonschema")

from pytest_gpucoexist.model.trials import HOST, Untried
from pytest_gpucoexist.model.verdicts import Evidence, Judgement, Verdict
from pytest_gpucoexist.probes import discover
from pytest_gpucoexist.reports.html_gates import judgement_html
from pytest_gpucoexist.reports.markdown_gates import judgement_markdown
from pytest_gpucoexist.reports.screen import Screen
from pytest_gpucoexist.reports.transfers import cells, matrix_lines
from tests.gates.transfer.tried import AMD, NV0, NV1, sample, trials, two_and_one, verified, wrong
from tests.reports.schemas import problems

NAMES = {NV0: "nvidia0", NV1: "nvidia1", AMD: "amd0"}


def judgement(**more: object) -> Judgement:
    tried = trials(
        sample("h2d", 23.85),
        sample("d2h", 26.55),
        sample("h2d", 3.78, NV1),
        sample("staged", 10.0, source=NV0, target=AMD, route="staged"),
        verified("staged", NV0, AMD, route="staged"),
        verified("staged", AMD, NV0, wrong(), route="staged"),
        verified("p2p", NV0, NV1, route="peer"),
        untried=(Untried(kind="p2p", source=NV1, target=NV0, reason="no time", status="UNKNOWN"),),
    )
    slow = Verdict(
        id="bw.h2d",
        group="transfer-bandwidth",
        status="FAIL",
        evidence=(Evidence(source=f"{HOST} -> {NV1}", found="3.78 GB/s"),),
    )
    return Judgement(level="transfer", fit=True, verdicts=(slow,), trials=tried)


def test_marks() -> None:
    found = cells(judgement())
    assert found[HOST, NV0] == ("23.9", "PASS")
    assert found[NV0, HOST] == ("26.6", "PASS") or found[NV0, HOST] == ("26.5", "PASS")
    assert found[HOST, NV1] == ("3.78", "FAIL")
    assert found[NV0, AMD] == ("10", "PASS")
    assert found[AMD, NV0] == ("", "FAIL")
    assert found[NV0, NV1] == ("", "PASS")
    assert found[NV1, NV0] == ("", "UNKNOWN")
    assert (AMD, HOST) not in found


def test_rows_are_from_and_columns_to() -> None:
    lines = matrix_lines(judgement(), NAMES, Screen(width=80, unicode=False))
    assert lines[1].split() == ["from", "\\", "to", "host", "nvidia0", "nvidia1", "amd0"]
    assert lines[2].split() == ["host", "-", "23.9", "+", "3.78", "X", "-"]
    assert lines[4].split() == ["nvidia1", "-", "-", "?", "-", "-"]
    assert lines[5].split()[0] == "amd0"
    assert all(len(line) <= 80 and line.isascii() for line in lines)
    assert "✗" in "".join(matrix_lines(judgement(), NAMES, Screen(width=80)))


def test_many_devices_are_shown_in_pieces() -> None:
    many = [sample("h2d", 20.0, f"0000:{n:02x}:00.0") for n in range(12)]
    names = {each.target: f"nvidia{n}" for n, each in enumerate(many)}
    lines = matrix_lines(Judgement(level="transfer", fit=True, trials=trials(*many)), names, Screen(width=80))
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert text.count("from \\ to") == 2
    assert all(name in text for name in names.values())


def test_json_has_every_sample() -> None:
    whole = judgement()
    assert Judgement.from_json(whole.to_json()) == whole
    assert problems("judgement", whole.to_json()) == []


def test_reports_for_people_show_the_matrix() -> None:
    machine = discover(two_and_one().host())
    names = [gpu.id for gpu in machine.gpus if gpu.is_compute]
    page, markdown = "".join(judgement_html(judgement(), machine)), "\n".join(judgement_markdown(judgement(), machine))
    for whole in (page, markdown):
        assert all(name in whole for name in names)
        assert "3.78 ✗" in whole
    assert "from" not in "".join(judgement_markdown(Judgement(level="quick", fit=True), machine))

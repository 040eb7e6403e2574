"""What gates said, in a terminal, HTML, Markdown and GitHub's commands."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from pytest_gpucoexist.model.verdicts import Evidence, Fix, Judgement, Verdict
from pytest_gpucoexist.reports.html_gates import judgement_html
from pytest_gpucoexist.reports.markdown_gates import judgement_markdown
from pytest_gpucoexist.reports.screen import Screen
from pytest_gpucoexist.reports.verdicts import judgement_text, verdict_lines
from pytest_gpucoexist.session.github import SHOWN, workflow_commands
from tests.machines import dual

KEY = "0000:41:00.0"

FAILURE = Verdict(
    id="drv.bound_driver",
    group="driver",
    status="FAIL",
    severity="fail",
    blocking=True,
    devices=(KEY,),
    reason="nouveau holds it",
    evidence=(Evidence(source="/sys/driver", found="nouveau", expected="nvidia"),),
    action="keep nouveau out",
    fix=(
        Fix(path="/etc/modprobe.d/with-a-long-name.conf", lines=("blacklist nouveau", "options nouveau modeset=0")),
        Fix(lines=("sudo update-initramfs -u -k all --with-many-words",)),
    ),
)


def judgement(*verdicts: Verdict) -> Judgement:
    return Judgement(level="quick", fit=False, verdicts=verdicts, unfit={KEY: "drv.bound_driver: nouveau holds it"})


def test_a_narrow_terminal_without_unicode_keeps_the_lines_to_copy_whole() -> None:
    lines = verdict_lines(FAILURE, {KEY: "nvidia0"}, Screen(width=40, unicode=False))
    assert lines == [
        "FAIL    drv.bound_driver",
        "        nvidia0 (0000:41:00.0)  blocks",
        "        nouveau holds it",
        "        - /sys/driver: nouveau (expected",
        "          nvidia)",
        "        -> keep nouveau out",
        "          add to",
        "            /etc/modprobe.d/with-a-long-",
        "            name.conf:",
        "              blacklist nouveau",
        "              options nouveau modeset=0",
        "          run:",
        "              sudo update-initramfs -u -k all --with-many-words",
    ]


def test_what_to_do_is_not_said_beside_the_same_line_to_run() -> None:
    verdict = replace(FAILURE, action="export A=1", fix=(Fix(lines=("export A=1",)),))
    text = verdict_lines(verdict, {KEY: "nvidia0"}, Screen(width=80))
    assert [line.strip() for line in text[-2:]] == ["run:", "export A=1"]
    assert not any("→" in line for line in text)


def test_a_long_quotation_is_cut_and_the_number_of_others_is_said() -> None:
    long = replace(FAILURE, evidence=(Evidence(source="log", found="x" * 3000),) * 9)
    text = "\n".join(verdict_lines(long, {}))
    assert text.count("x") < 6 * 600
    assert "… and 3 more; --json shows all" in text
    page = "".join(judgement_html(judgement(long), dual()))
    assert "… and 3 more" in page
    assert page.count("x") < 6 * 600


def test_html_shows_what_to_add_and_where() -> None:
    page = "".join(judgement_html(judgement(FAILURE), dual()))
    assert "add to /etc/modprobe.d/with-a-long-name.conf:</span>" in page
    assert "<pre>blacklist nouveau&#10;options nouveau modeset=0</pre>" in page
    assert "run:</span><pre>sudo update" in page
    assert "/sys/driver: nouveau (expected nvidia)" in page
    assert 'class="badge bad">blocks' in page


def test_html_shows_why_a_gate_broke() -> None:
    broken = Verdict(id="suite.broken", group="driver", status="ERROR", detail="Traceback:\n  <module>\nKeyError: 1\n")
    page = "".join(judgement_html(judgement(broken), dual()))
    assert "<pre>Traceback:&#10;  &lt;module&gt;&#10;KeyError: 1</pre>" in page


def test_nothing_that_is_said_ends_a_cell_or_a_quote_of_markdown() -> None:
    odd = replace(FAILURE, reason="a | b\n# c <b> @octocat", action="`x` | *y*")
    lines = judgement_markdown(judgement(odd), dual())
    (row,) = [line for line in lines if line.startswith("| FAIL")]
    assert len(re.findall(r"(?<!\\)\|", row)) == 6
    assert r"\<b\> \@octocat" in row
    assert "> **Unfit: nvidia0**" in lines


def test_workflow_commands_are_one_line_each_and_no_more_than_are_shown() -> None:
    odd = replace(FAILURE, id="suite.odd", reason="50 % :: of\n::error::nothing", action="")
    (command,) = workflow_commands(judgement(odd), dual())
    assert command == "::error title=GPU gate suite.odd (nvidia0)::50 %25 :: of%0A::error::nothing"
    warning = replace(FAILURE, status="WARN")
    commands = workflow_commands(judgement(*[warning] * 30, *[FAILURE] * 30), dual())
    assert [line.split()[0] for line in commands] == ["::error"] * SHOWN + ["::warning"] * SHOWN


@pytest.mark.parametrize("verbose", [False, True])
def test_an_ignored_failure_says_why_and_asks_for_nothing(verbose: bool) -> None:
    text = judgement_text(judgement(replace(FAILURE, ignored="a riser")), dual(), verbose=verbose)
    assert "ignored: a riser" in text
    assert "keep nouveau out" not in text
    assert "blocks" not in text

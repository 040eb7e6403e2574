"""Runtime status and power state, in the kernel's words."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given, settings, strategies as st

from pytest_gpucoexist.testing.builder import a_machine
from tests.gates.boards import folder_of, with_files
from tests.gates.judging import judged, verdict

proves = pytest.mark.proves
ONE = a_machine().with_gpu("rx7900xtx")


@pytest.mark.parametrize(
    ("status", "verdict_status", "words"),
    [
        pytest.param("active", "PASS", "active", marks=proves("pwr.runtime_status_first", "PASS", on="tree")),
        ("suspended", "PASS", "suspended"),
        ("unsupported", "PASS", "unsupported"),
        pytest.param("error", "FAIL", "gave up", marks=proves("pwr.runtime_status_first", "FAIL", on="tree")),
        ("asleep", "UNKNOWN", "makes no sense"),
        ("", "UNKNOWN", "makes no sense"),
    ],
)
def test_runtime_status(status: str, verdict_status: str, words: str) -> None:
    """The words of `runtime_status_show`, drivers/base/power/sysfs.c."""
    said = verdict(with_files(ONE, "amd0", {"power/runtime_status": status}), "pwr.runtime_status_first")
    assert (said.status, words in said.reason, said.blocking) == (verdict_status, True, False), said


def test_what_the_kernel_may_do_is_recorded() -> None:
    machine = with_files(ONE, "amd0", {"power/control": "auto"})
    said = verdict(machine, "pwr.runtime_status_first")
    assert said.reason == "active; the kernel may suspend it when idle"
    assert said.evidence[0].found == "active, control auto"


@pytest.mark.parametrize(
    ("state", "status", "verdict_status", "words"),
    [
        pytest.param("D0", "active", "PASS", "in D0", marks=proves("pwr.power_state", "PASS", on="tree")),
        ("D3cold", "suspended", "PASS", "asleep, in D3cold"),
        pytest.param("D3cold", "active", "FAIL", "stuck in D3cold", marks=proves("pwr.power_state", "FAIL", on="tree")),
        pytest.param("D3hot", "unsupported", "WARN", "nothing says that it sleeps"),
        ("unknown", "active", "UNKNOWN", "'unknown'"),
        ("D9", "active", "UNKNOWN", "'D9'"),
    ],
)
def test_power_state(state: str, status: str, verdict_status: str, words: str) -> None:
    """The names of `pci_power_names`; system76/firmware-open#259 is the board that stays in D3cold."""
    machine = with_files(ONE, "amd0", {"power_state": state, "power/runtime_status": status})
    said = verdict(machine, "pwr.power_state")
    assert (said.status, words in said.reason) == (verdict_status, True), said


def test_files_that_cannot_be_read() -> None:
    folder = folder_of(ONE, "amd0")
    machine = with_files(ONE, "amd0", {"power_state": "D0"}).with_error(f"{folder}/power_state", errno.EIO)
    machine = machine.with_error(f"{folder}/power/runtime_status", errno.EACCES)
    assert {each.status for each in judged(machine, "pwr.power_state", "pwr.runtime_status_first").verdicts} == {
        "UNKNOWN"
    }


def test_an_old_kernel_shows_no_power_state() -> None:
    assert verdict(ONE, "pwr.power_state").status == "SKIP"


@given(st.text(max_size=12), st.text(max_size=12))
@settings(max_examples=60)
def test_no_garbage_passes(state: str, status: str) -> None:
    machine = with_files(ONE, "amd0", {"power_state": state, "power/runtime_status": status})
    said = judged(machine, "pwr.power_state", "pwr.runtime_status_first").verdicts
    assert not {each.status for each in said} & {"ERROR", "PASS", "FAIL"} or {state.strip(), status.strip()} & {
        *("D0", "active", "suspended", "suspending", "resuming", "unsupported", "error"),
    }

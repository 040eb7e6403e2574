"""Hooks of other plugins: every one is heard, in turn, and a broken probe breaks nothing."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.session.state import GPU_SESSION

if TYPE_CHECKING:
    from collections.abc import Callable

    Run = Callable[..., pytest.RunResult]

VETO = """
    from dataclasses import replace

    def pytest_gpucoexist_machine(config, machine):
        return replace(machine, gpus=tuple(gpu for gpu in machine.gpus if gpu.id != "{}"))
"""


def test_vetoes_of_two_plugins_both_count(pytester: pytest.Pytester, session: Run) -> None:
    pytester.makepyfile(veto_one=VETO.format("nvidia0"), veto_two=VETO.format("nvidia1"))
    pytester.makepyfile("def test_machine(gpu_machine): print('GPUS', *(gpu.id for gpu in gpu_machine.gpus))")
    pytester.syspathinsert()
    result = session("-s", "-p", "veto_one", "-p", "veto_two", "--gpu-machine=demo", on=None)
    result.stdout.fnmatch_lines(["*GPUS amd0*amd1*"])
    result.stdout.no_fnmatch_line("*GPUS*nvidia*")


def test_report_is_handed_on_and_a_wrong_answer_is_named(pytester: pytest.Pytester, session: Run) -> None:
    adds = """
    from dataclasses import replace

    def pytest_gpucoexist_report(config, report):
        return replace(report, notes=(*report.notes, "{}"))
    """
    pytester.makepyfile(note_one=adds.format("one"), note_two=adds.format("two"))
    pytester.makepyfile("import pytest\n@pytest.mark.cuda\ndef test_it(): pass")
    pytester.syspathinsert()
    options = ("-p", "note_one", "-p", "note_two", "--gpu-report=report.json", "--gpu-simulate")
    session(*options, "--gpu-machine=demo", on=None).assert_outcomes(passed=1)
    assert json.loads((pytester.path / "report.json").read_text())["notes"][-2:] == ["two", "one"]

    pytester.makeconftest("def pytest_gpucoexist_report(config, report): return ['a note']")
    result = session(*options, "--gpu-machine=demo", on=None)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["ERROR: pytest_gpucoexist_report in *conftest.py returned*return a SessionReport or*"])


PROBES = """
    from pytest_gpucoexist.model.readings import Observation, Reading

    class Breaks:
        def pytest_gpucoexist_probes(self, config, host):
            raise ZeroDivisionError("a probe of somebody")

    class Lies:
        def pytest_gpucoexist_probes(self, config, host):
            return ["0000:01:00.0"]

    class Unmergeable:
        def pytest_gpucoexist_probes(self, config, host):
            return [Observation(probe="bad", pci_address=7)]

    class Adds:
        def pytest_gpucoexist_probes(self, config, host):
            assert host.is_dir("/sys/bus/pci/devices") if hasattr(host, "is_dir") else host.name
            uuid = Reading(field="name", source="npu", value="An NPU")
            return [Observation(probe="npu", uuid="NPU-1", readings=(uuid,), creates=True)]

    def pytest_configure(config):
        for each in {}:
            config.pluginmanager.register(each(), each.__name__)
"""

SHOW = """
    def test_it(gpu_machine):
        print("GPUS", *(gpu.uuid for gpu in gpu_machine.gpus))
        for conflict in gpu_machine.conflicts:
            print("CONFLICT", conflict.message)
        assert len(gpu_machine.gpus) >= 4
"""


def test_probe_of_a_plugin_adds_a_device(pytester: pytest.Pytester, session: Run) -> None:
    pytester.makeconftest(PROBES.replace("{}", "[Adds]"))
    pytester.makepyfile(SHOW)
    result = session("-s", "--gpu-machine=demo", on=None)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*GPUS*NPU-1*"])


def test_broken_probe_is_a_conflict_and_the_others_are_heard(pytester: pytest.Pytester, session: Run) -> None:
    pytester.makeconftest(PROBES.replace("{}", "[Adds, Lies, Breaks]"))
    pytester.makepyfile(SHOW)
    result = session("-s", "--gpu-machine=demo", on=None)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        [
            "*GPUS*NPU-1*",
            "CONFLICT the probe of Breaks broke*ZeroDivisionError: a probe of somebody",
            "CONFLICT the probe of Lies broke*'0000:01:00.0' is no Observation",
        ]
    )


def test_observation_that_cannot_be_merged_costs_only_what_plugins_tell(
    pytester: pytest.Pytester, session: Run
) -> None:
    pytester.makeconftest(PROBES.replace("{}", "[Adds, Unmergeable]"))
    pytester.makepyfile(SHOW)
    result = session("-s", "--gpu-machine=demo", on=None)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["CONFLICT the probe of other plugins broke*"])
    result.stdout.no_fnmatch_line("*NPU-1*")


def test_threads_that_ask_at_once_start_one_discovery(pytester: pytest.Pytester) -> None:
    """As in a controller of xdist: a thread serves the workers while the main thread writes a summary."""
    gpu_session = pytester.parseconfigure("-p", "gpucoexist", "--gpu-machine=demo").stash[GPU_SESSION]
    look, counted, entered, go = gpu_session._look, [], threading.Event(), threading.Event()

    def slow(ask: tuple[str, ...]) -> object:
        counted.append(ask)
        entered.set()
        go.wait(60)
        return look(ask)

    gpu_session._look = slow  # type: ignore[method-assign,assignment]
    threads = [threading.Thread(target=gpu_session.machine) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert entered.wait(60)
    assert not gpu_session._lock.acquire(blocking=False), "the others wait for the one that looks"
    go.set()
    for thread in threads:
        thread.join(60)
    assert counted == [()]

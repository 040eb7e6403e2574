"""Suites of others give the same outcome for every test with the plugin loaded as without, and are left alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.compat.suites import SUITES, Suite, audited, difference, outcomes, run_suite

AUDIT = Path(__file__).parent / "audit"


@pytest.fixture(scope="session")
def suites_folder() -> Path:
    """Where the suites are unpacked, each with an environment `env-NAME` beside it."""
    folder = os.environ.get("GPUCOEXIST_SUITES")
    if not folder:
        pytest.skip("needs GPUCOEXIST_SUITES: a folder with the unpacked suites of others (.ci/run suites makes it)")
    return Path(folder)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["serial", "parallel"])
@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name)
def test_same_outcomes_and_hands_off(suite: Suite, mode: str, suites_folder: Path, tmp_path: Path) -> None:
    (source,) = suites_folder.glob(f"{suite.folder}-[0-9]*/")
    python = suites_folder / f"env-{suite.name}" / "bin" / "python"
    arguments = suite.serial if mode == "serial" else (*suite.parallel, "-n", "2")
    runs = {"without": ("-p", "no:gpucoexist"), "loaded": ()}
    pairs = []
    for attempt in range(3):
        found = {}
        for name, extra in runs.items():
            report = tmp_path / f"{name}{attempt}.xml"
            environment = audited(tmp_path / f"{name}.log", AUDIT, tmp_path)
            found[name] = run_suite(python, source, (*arguments, *extra), report, environment)
        pairs.append((outcomes(tmp_path / f"without{attempt}.xml"), outcomes(tmp_path / f"loaded{attempt}.xml")))
        print(f"{suite.name}, {mode}: {sum(map(len, pairs[-1][0].values()))} tests")
        assert len(pairs[-1][0]) > 100, found["without"].stdout[-3000:]
        if not difference(pairs):
            break
    assert difference(pairs) == {}, found["loaded"].stdout[-3000:]
    assert attempt > 0 or found["loaded"].returncode == found["without"].returncode
    noted = (tmp_path / "loaded.log").read_text(encoding="utf-8").splitlines()
    processes = {line.split()[0] for line in noted}
    assert len(processes) >= (1 if mode == "serial" else 3), "the audit hook was not in every process"
    assert any(line.endswith(" loaded") for line in noted), "the plugin was not there"
    assert [line for line in noted if not line.endswith((" start", " loaded"))] == []


def test_a_test_that_the_plugin_changes_is_told_from_one_that_is_unsteady() -> None:
    passed, failed = ("passed",), ("failure",)
    steady = {"a": passed, "b": failed}
    assert difference([(steady, steady)]) == {}
    assert set(difference([(steady, {"a": failed, "b": failed})])) == {"a"}
    assert set(difference([(steady, {"b": failed})])) == {"a"}
    unsteady = [({"a": failed}, {"a": passed}), ({"a": passed}, {"a": passed})]
    assert set(difference(unsteady[:1])) == {"a"}
    assert difference(unsteady) == {}
    assert set(difference([({"a": passed}, {"a": failed})] * 3)) == {"a"}


def test_the_audit_sees_a_plugin_that_looks(tmp_path: Path) -> None:
    """Without this the empty log of the others would say nothing."""
    (tmp_path / "test_it.py").write_text("def test_looks(gpu_machine):\n    pass\n")
    log = tmp_path / "audit.log"
    done = run_suite(
        Path(sys.executable), tmp_path, ("-c", os.devnull), tmp_path / "x.xml", audited(log, AUDIT, tmp_path)
    )
    assert done.returncode == 0, done.stdout
    noted = {line.split(maxsplit=1)[1] for line in log.read_text(encoding="utf-8").splitlines()}
    assert {"start", "loaded"} <= noted
    assert any(line.startswith(("open /sys/", "os.listdir /sys/", "os.scandir /sys/")) for line in noted), noted


@pytest.mark.parametrize(
    ("call", "line"),
    [
        ("os.environ['X'] = '1'", "os.putenv"),
        ("os.environ.pop('X', None)", "os.unsetenv"),
        ("os.sched_setaffinity(0, os.sched_getaffinity(0))", "os.sched_setaffinity"),
        ("open('/sys/kernel/mm')", "open /sys/kernel/mm"),
        ("ctypes.CDLL(None)", "ctypes.dlopen"),
        ("subprocess.run(['true'])", "subprocess.Popen"),
    ],
)
def test_the_audit_blames_the_plugin_alone(call: str, line: str, tmp_path: Path) -> None:
    text = f"import ctypes, os, subprocess\nos.environ['X'] = '0'\ntry:\n    {call}\nexcept OSError:\n    pass\n"
    for folder in ("pytest_gpucoexist", "another"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "code.py").write_text(text)
    log = tmp_path / "audit.log"
    environment = audited(log, AUDIT, tmp_path)
    noted = []
    for folder in ("another", "pytest_gpucoexist"):
        log.unlink(missing_ok=True)
        subprocess.run([sys.executable, str(tmp_path / folder / "code.py")], env=environment, check=True)
        noted.append([text.split(maxsplit=1)[1] for text in log.read_text(encoding="utf-8").splitlines()])
    assert noted[0] == ["start"]
    assert any(text.startswith(line) for text in noted[1]), noted[1]

"""Suites of others give the same outcome for every test with the plugin loaded as without, and are left alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.compat.suites import SUITES, Suite, outcomes, run_suite

pytestmark = pytest.mark.slow

AUDIT = Path(__file__).parent / "audit"


@pytest.fixture(scope="session")
def suites_folder() -> Path:
    """Where `.ci/run` unpacked the suites and made their environments (`env-plain`, `env-science`)."""
    folder = os.environ.get("GPUCOEXIST_SUITES")
    if not folder:
        pytest.skip("needs GPUCOEXIST_SUITES: a folder with the unpacked suites of others (.ci/run makes it)")
    return Path(folder)


def _source(folder: Path, suite: Suite) -> Path:
    (found,) = folder.glob(f"{suite.folder}-[0-9]*/")
    return found


def _environment(log: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV", "GPUCOEXIST"))}
    return {**kept, "PYTHONPATH": str(AUDIT), "GPUCOEXIST_AUDIT_LOG": str(log), "PYTHONHASHSEED": "0"}


@pytest.mark.parametrize("mode", ["serial", "parallel"])
@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name)
def test_same_outcomes_and_hands_off(suite: Suite, mode: str, suites_folder: Path, tmp_path: Path) -> None:
    source = _source(suites_folder, suite)
    python = suites_folder / f"env-{suite.python}" / "bin" / "python"
    arguments = suite.serial if mode == "serial" else (*suite.parallel, "-n", "2")
    log = tmp_path / "audit.log"
    plain = run_suite(
        python, source, (*arguments, "-p", "no:gpucoexist"), tmp_path / "plain.xml", _environment(tmp_path / "x")
    )
    loaded = run_suite(python, source, arguments, tmp_path / "loaded.xml", _environment(log))
    before, after = outcomes(tmp_path / "plain.xml"), outcomes(tmp_path / "loaded.xml")
    assert len(before) > 20, plain.stdout[-3000:]
    different = {name: (before.get(name), after.get(name)) for name in before.keys() | after.keys()}
    different = {name: pair for name, pair in different.items() if pair[0] != pair[1] and name not in suite.unsteady}
    assert not different, loaded.stdout[-3000:]
    assert loaded.returncode == plain.returncode
    noted = log.read_text(encoding="utf-8").splitlines()
    processes = {line.split()[0] for line in noted}
    assert len(processes) >= (1 if mode == "serial" else 3), "the audit hook was not in every process"
    assert [line for line in noted if not line.endswith(" start")] == []

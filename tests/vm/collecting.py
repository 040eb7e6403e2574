"""Show each test of the guest as a test of the session outside."""

from __future__ import annotations

import base64
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.host import open_recording
from pytest_gpucoexist.probes import discover
from tests.vm.build.layers import build_image, cache_folder, write_project
from tests.vm.build.programs import BuildError, missing
from tests.vm.running.workstation import GuestError, Workstation

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["GUEST", "GuestModule", "GuestTest", "GuestTestError", "workstation_key"]

GUEST = Path(__file__).parent / "guest"


class GuestTestError(Exception):
    """A test failed in the guest; its text is the guest's report."""


class GuestModule(pytest.Module):
    """A file of tests that run in the guest. Outside they are only collected."""

    def collect(self) -> Iterable[GuestTest]:
        """Make a test of each function that pytest finds, with its marks."""
        for found in super().collect():
            assert isinstance(found, pytest.Function), f"{found.nodeid}: tests of the guest are plain functions"
            test = GuestTest.from_parent(self, name=found.name)
            test.take(found)
            yield test


class GuestTest(pytest.Item):
    """One test of the guest. Running it means waiting for its result."""

    def take(self, function: pytest.Function) -> None:
        """Take over what is known of a test at collection."""
        self.function = function
        self.own_markers.extend(function.own_markers)
        self.keywords.update(function.keywords)
        self.add_marker(pytest.mark.slow)

    def runtest(self) -> None:
        """Wait for the result and act it out here."""
        result = _workstation(self).result(self.nodeid)
        for title, text in result["sections"]:
            self.add_report_section("call", f"guest: {title}", text)
        self.user_properties.append(("guest_seconds", result["seconds"]))
        if result["outcome"] == "skipped":
            raise GuestTestError(f"skipped in the guest, where everything must be there: {result['text']}")
        if result["outcome"] != "passed":
            raise GuestTestError(f"in its {result['when']}:\n{result['text']}")
        if result["recording"] is not None:
            _compare_replay(result["recording"])
        said = {tuple(verdict) for verdict in result["verdicts"]}
        for mark in self.iter_markers("proves"):
            if tuple(mark.args) not in said or mark.kwargs.get("on") != "vm":
                raise GuestTestError(f"{mark} was claimed; gates said {sorted(said)}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Show the guest's own words, not a traceback of waiting for them."""
        if isinstance(excinfo.value, GuestTestError | GuestError | BuildError):
            return f"{type(excinfo.value).__name__}: {excinfo.value}"
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Point at the function."""
        return self.function.reportinfo()  # type: ignore[return-value]


def _compare_replay(recording: dict[str, str]) -> None:
    """Replay here what was recorded in the guest: its machine must be the one that the guest's own replay showed."""
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "workstation.tar.gz"
        archive.write_bytes(base64.b64decode(recording["archive"]))
        replayed = discover(open_recording(str(archive))).to_json()
    told = json.loads(recording["machine"])
    differing = [name for name in {*told, *replayed} if told.get(name) != json.loads(json.dumps(replayed)).get(name)]
    if differing:
        raise GuestTestError(f"replayed outside the guest, its recording differs in {sorted(differing)}")


class _Booting:
    """Boot one machine for the session when the first of its tests runs; remember why it could not."""

    def __init__(self, selected: list[str]) -> None:
        self._selected = selected
        self._workstation: Workstation | None = None
        self._error: Exception | None = None
        self._folder = Path(tempfile.mkdtemp(prefix="gpucoexist-vm-"))

    def workstation(self) -> Workstation:
        if self._error is None and self._workstation is None:
            try:
                self._workstation = self._boot()
            except (BuildError, GuestError) as error:
                self._error = error
        if self._error is not None:
            raise self._error
        assert self._workstation is not None
        return self._workstation

    def _boot(self) -> Workstation:
        cache = cache_folder()
        cache.mkdir(parents=True, exist_ok=True)
        image = build_image(cache)
        project = write_project(image, self._folder, self._selected)
        return Workstation(self._folder, image.kernel, [image.base, project])

    def close(self) -> None:
        if self._workstation is not None:
            self._workstation.close()
        shutil.rmtree(self._folder, ignore_errors=True)


workstation_key = pytest.StashKey[_Booting]()


def _workstation(item: pytest.Item) -> Workstation:
    if not os.environ.get("GPUCOEXIST_VM"):
        pytest.skip("needs GPUCOEXIST_VM=1: boots a virtual machine and downloads what it is made of (.ci/run vm)")
    if hasattr(item.config, "workerinput"):
        pytest.skip("needs a session without pytest-xdist: one machine runs all tests")
    lacking = missing()
    if lacking is not None:
        pytest.skip(lacking)
    stash = item.config.stash
    if workstation_key not in stash:
        selected = [each.nodeid for each in item.session.items if isinstance(each, GuestTest)]
        stash[workstation_key] = _Booting(selected)
        item.config.add_cleanup(stash[workstation_key].close)
    return stash[workstation_key].workstation()

"""Run suites with `--gpu-dist=auto` on real workers of pytest-xdist, and read what happened."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.fixtures.running import loaded

if TYPE_CHECKING:
    import pytest

__all__ = ["Planned"]

# Every test writes who it is and when it had its devices; times are of one clock for all processes of a machine.
_CONFTEST = """
import json, os, time
import pytest

def write(name, **entry):
    with open(os.path.join(os.path.dirname(__file__), name), "a") as file:
        file.write(json.dumps(entry) + "\\n")

@pytest.fixture(autouse=True)
def _recorded(request):
    keys = [gpu.id for gpu in request.getfixturevalue("gpus")] if "gpus" in request.fixturenames else []
    start = time.monotonic_ns()
    yield
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    write("ran", test=request.node.name, worker=worker, keys=keys, start=start, end=time.monotonic_ns())
"""


class Planned:
    """A suite in a folder of its own, on the machine that is built in."""

    def __init__(self, pytester: pytest.Pytester, **files: str) -> None:
        """Write `files` (a name without `.py`, its text)."""
        self.pytester = pytester
        conftest = files.pop("conftest", "")
        pytester.makepyfile(conftest=_CONFTEST + conftest, **files)

    def run(self, *args: str, workers: int = 2, cache: bool = False, xdist: bool = False) -> pytest.RunResult:
        """Run it in processes of its own; `workers` 0: without xdist."""
        plugins = loaded(xdist=bool(workers or xdist))
        if not cache:
            plugins += ["-p", "no:cacheprovider"]
        many = ["-n", str(workers)] if workers else []
        common = ["-p", "no:hypothesispytest", "--gpu-machine=demo", "--gpu-simulate", "--gpu-dist=auto", "-ra"]
        return self.pytester.runpytest_subprocess(*plugins, *common, *many, *args, timeout=120)

    def read(self, name: str = "ran") -> list[dict[str, Any]]:
        """Read what tests wrote with `write(name, …)`."""
        path = self.pytester.path / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def ran(self) -> list[str]:
        """Return the names of the tests that came to their end, sorted."""
        return sorted(entry["test"] for entry in self.read())

"""Start several pytest processes as a launcher does: the same command, with its variables. Nobody waits for ever."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.fixtures.machines import as_text, workstation
from tests.fixtures.running import loaded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import pytest

    from pytest_gpucoexist.model.machine import Machine

__all__ = ["LIMIT_S", "Ended", "Ranks", "environ_of_ranks", "open_mpi", "slurm", "torchrun"]

LIMIT_S = 100

# Of the session around a test, ranks keep how plugins load, and the folder of leases, which is the test's own.
_KEPT = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD", "PYTEST_GPU_LEASE_DIR"}

# The machine is read from JSON, and the conftest says that it is no replay; each test may say what it got.
_CONFTEST = """
import json, os
from dataclasses import replace
import pytest

def pytest_gpucoexist_machine(config, machine):
    return replace(machine, simulated=False)

@pytest.fixture
def say(request):
    def say(**what):
        what |= {"test": request.node.name, "rank": int(os.environ.get("RANK") or os.environ["THE_RANK"])}
        with open(os.path.join(os.path.dirname(__file__), "said"), "a") as file:
            file.write(json.dumps(what) + "\\n")
    return say
"""


def environ_of_ranks() -> dict[str, str]:
    """Return the environment in which a launcher starts: nothing of the session, or the job, around the test."""
    prefixes = ("PYTEST", "SLURM", "COV")
    return {name: value for name, value in os.environ.items() if name in _KEPT or not name.startswith(prefixes)}


def torchrun(rank: int, size: int, job: str) -> dict[str, str]:
    """Return what torchrun sets for a rank of one node."""
    return {
        "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size),
        "GROUP_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": job,
        "TORCHELASTIC_RESTART_COUNT": "0",
    }  # fmt: skip


def open_mpi(rank: int, size: int, job: str) -> dict[str, str]:
    """Return what Open MPI's mpirun sets for a rank of one node."""
    return {
        "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(size), "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(size), "PMIX_NAMESPACE": job,
    }  # fmt: skip


def slurm(rank: int, size: int, job: str) -> dict[str, str]:
    """Return what srun sets for a task of a step on one node."""
    return {
        "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank), "SLURM_NODEID": "0", "SLURM_STEP_NUM_TASKS": str(size),
        "SLURM_STEP_TASKS_PER_NODE": str(size), "SLURM_JOB_ID": job, "SLURM_STEP_ID": "0",
    }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a rank ended."""

    status: int
    text: str

    @property
    def outcomes(self) -> str:
        """Pytest's last line without its time: `1 passed, 2 skipped`."""
        last = [line for line in self.text.splitlines() if " in " in line and line.startswith("=")]
        return last[-1].strip("= ").rpartition(" in ")[0] if last else ""


class Ranks:
    """A suite, a machine, and the processes of a job."""

    def __init__(self, pytester: pytest.Pytester, machine: Machine | None = None, *, conftest: str = "") -> None:
        """Write what all ranks read."""
        self.pytester = pytester
        pytester.makeconftest(_CONFTEST + conftest)
        (pytester.path / "machine.json").write_text(as_text(machine or workstation()))

    @property
    def path(self) -> Path:
        """The folder of the suite."""
        return self.pytester.path

    @property
    def said(self) -> list[dict[str, object]]:
        """What the tests said, in the order of its arrival."""
        import json

        path = self.path / "said"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def start(
        self,
        size: int,
        *args: str,
        launcher: Callable[[int, int, str], dict[str, str]] = torchrun,
        each: Callable[[int], Sequence[str]] = lambda _rank: (),
        environ: Mapping[str, str] | None = None,
        machine: str = "machine.json",
    ) -> list[subprocess.Popen[str]]:
        """Start the ranks; `each` gives further arguments of one rank."""
        job = uuid.uuid4().hex
        command = [sys.executable, "-m", "pytest", *loaded(xdist=False), "-ra", f"--gpu-machine={machine}", *args]
        command += ["-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
        return [
            subprocess.Popen(
                [*command, *each(rank)],
                cwd=self.path,
                env={**environ_of_ranks(), **(environ or {}), "THE_RANK": str(rank), **launcher(rank, size, job)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(size)
        ]

    def wait(self, processes: Sequence[subprocess.Popen[str]]) -> list[Ended]:
        """Wait for all of them. One that hangs is ended, and fails the test."""
        ended = []
        try:
            for process in processes:
                text, _ = process.communicate(timeout=LIMIT_S)
                ended.append(Ended(status=process.returncode, text=text))
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                    process.communicate()
        return ended

    def run(self, size: int, *args: str, **how: object) -> list[Ended]:
        """Start and wait."""
        return self.wait(self.start(size, *args, **how))  # type: ignore[arg-type]

"""Real launchers of MPI: what they set is what ranks are known by. The tests themselves need no MPI."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from tests.fixtures.machines import NVIDIA0, NVIDIA1
from tests.ranks.running import LIMIT_S, Ranks, environ_of_ranks

LAUNCHERS = {
    "Open MPI": ("mpirun.openmpi", "openmpi-bin", ["--allow-run-as-root", "--oversubscribe"]),
    "MPICH": ("mpiexec.mpich", "mpich", []),
}

PLUGINS = ["-p", "gpucoexist", "-p", "no:cacheprovider", "-p", "no:hypothesispytest"]


@pytest.mark.slow
@pytest.mark.parametrize("name", LAUNCHERS)
def test_ranks_of_mpi(pytester: pytest.Pytester, name: str) -> None:
    command, package, options = LAUNCHERS[name]
    if not os.environ.get("GPUCOEXIST_SLURM"):
        pytest.skip("needs GPUCOEXIST_SLURM=1: launchers of clusters are there")
    if shutil.which(command) is None:
        pytest.skip(f"needs {command}: apt-get install {package}")
    ranks = Ranks(pytester, conftest="")
    (ranks.path / "conftest.py").write_text(
        (ranks.path / "conftest.py")
        .read_text()
        .replace(
            'os.environ.get("RANK") or os.environ["THE_RANK"]',
            'os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"]',
        )
    )
    ranks.pytester.makepyfile(
        """
        import pytest

        @pytest.mark.cuda
        def test_one(gpu, say): say(keys=[gpu.pci_address])

        @pytest.mark.cuda(count=2)
        def test_two(gpus): raise AssertionError
        """
    )
    done = subprocess.run(
        [command, *options, "-n", "2", sys.executable, "-m", "pytest", *PLUGINS, "-rs", "--gpu-machine=machine.json"],
        cwd=ranks.path,
        env={**environ_of_ranks(), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"2 ranks of {name} decide and lease devices together" in done.stdout
    assert done.stdout.count("needs 4 NVIDIA GPUs with CUDA") >= 2
    assert {each["rank"]: each["keys"] for each in ranks.said} == {0: [NVIDIA0], 1: [NVIDIA1]}

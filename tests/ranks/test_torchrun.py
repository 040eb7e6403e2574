"""A real torchrun with real collectives: torch's CPU build and gloo, four ranks, the demo machine.

It lives in an environment of its own, named by `GPUCOEXIST_TORCH_PYTHON`; pytest and this package come by the path.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import ROOT
from tests.ranks.running import environ_of_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

RANKS = 4
LIMIT_S = 240

CONFTEST = """
import datetime, json, os
import pytest, torch
import torch.distributed as dist

@pytest.fixture(scope="session")
def job():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=200))
    yield dist
    dist.destroy_process_group()

@pytest.fixture
def sum_of_ranks(job, request):
    def sum_of_ranks(**told):
        value = torch.tensor([job.get_rank()])
        job.all_reduce(value)
        told |= {"test": request.node.name, "rank": job.get_rank(), "sum": int(value)}
        with open(os.path.join(os.path.dirname(__file__), "said"), "a") as file:
            file.write(json.dumps(told) + "\\n")
    return sum_of_ranks
"""

SUITE = """
import os, pytest

@pytest.mark.gpu(memory="1 GiB")
def test_one_each(gpu, sum_of_ranks): sum_of_ranks(keys=[gpu.key])

@pytest.mark.cuda
def test_too_few(gpu, sum_of_ranks): sum_of_ranks()

@pytest.mark.gpu(vendor="intel")
def test_missing(gpu, sum_of_ranks): sum_of_ranks()

def test_cpu(sum_of_ranks): sum_of_ranks()

@pytest.mark.gpu
def test_whole_devices(gpu, sum_of_ranks): sum_of_ranks()

@pytest.mark.gpu(count=2)
def test_two_each(gpus, sum_of_ranks): sum_of_ranks()

@pytest.mark.gpu(memory="1 GiB")
class TestScope:
    @pytest.mark.parametrize("n", range(2))
    def test_wider(self, class_gpu, n, sum_of_ranks): sum_of_ranks(keys=[class_gpu.key])

@pytest.mark.gpu(memory="1 GiB")
def test_again(gpu, sum_of_ranks): sum_of_ranks(keys=[gpu.key])
"""


@pytest.fixture(scope="module")
def python() -> str:
    found = os.environ.get("GPUCOEXIST_TORCH_PYTHON")
    if not found:
        pytest.skip("needs a Python with torch's CPU build: set GPUCOEXIST_TORCH_PYTHON to it")
    return found


class Torchrun:
    """A folder with a suite, and a job in it."""

    def __init__(self, folder: Path, python: str, suite: str) -> None:
        """Write the suite."""
        self.folder = folder
        self._python = python
        (folder / "conftest.py").write_text(CONFTEST)
        (folder / "test_job.py").write_text(suite)

    def run(self, *args: str) -> tuple[int, Sequence[str]]:
        """Run it, and return the status of torchrun and what each rank printed. Ends all of it when it hangs."""
        packages = Path(pytest.__file__).resolve().parents[1]
        environ = environ_of_ranks()
        environ |= {"PYTHONPATH": os.pathsep.join([str(ROOT), str(packages)]), "OMP_NUM_THREADS": "1"}
        environ |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        logs = self.folder / "logs"
        torchrun = [self._python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
        torchrun += [f"--log-dir={logs}", "--redirects=3", "-m", "pytest", "-p", "gpucoexist", "-p", "no:cacheprovider"]
        torchrun += ["-ra", "--gpu-machine=demo", "--gpu-simulate", *args]
        with subprocess.Popen(torchrun, cwd=self.folder, env=environ, start_new_session=True) as process:
            try:
                status = process.wait(LIMIT_S)
            except BaseException:
                os.killpg(process.pid, 9)
                raise
        found = {path.parent.name: path.read_text() for path in sorted(logs.rglob("stdout.log"))}
        return status, [found[str(rank)] for rank in range(RANKS)]

    @property
    def said(self) -> dict[str, dict[int, dict[str, object]]]:
        """What each test told, by its rank."""
        told: dict[str, dict[int, dict[str, object]]] = {}
        path = self.folder / "said"
        for line in path.read_text().splitlines() if path.exists() else ():
            each = json.loads(line)
            told.setdefault(each["test"], {})[each["rank"]] = each
        return told


@pytest.mark.slow
def test_all_ranks_decide_alike_and_none_hangs(tmp_path: Path, python: str) -> None:
    job = Torchrun(tmp_path, python, SUITE)
    status, printed = job.run("--junitxml=junit.xml", "--gpu-report=report.json")
    assert status == 0, "\n".join(printed)
    for text in printed:
        assert "5 passed, 4 skipped" in text, text
        assert "needs 4 NVIDIA GPUs with CUDA (1 NVIDIA GPU with CUDA for each of 4 ranks on this node); found" in text
    said = job.said
    assert said.keys() == {"test_one_each", "test_cpu", "test_wider[0]", "test_wider[1]", "test_again"}
    for ranks in said.values():
        assert ranks.keys() == set(range(RANKS))
        assert {each["sum"] for each in ranks.values()} == {sum(range(RANKS))}
    for test in ("test_one_each", "test_wider[0]", "test_again"):
        keys = [str(said[test][rank]["keys"]) for rank in range(RANKS)]
        assert keys[:2] == keys[2:], "the demo machine has three devices: ranks share two, by their shares"
        assert len(set(keys)) == 2
    wider = [{rank: each["keys"] for rank, each in said[f"test_wider[{n}]"].items()} for n in (0, 1)]
    assert wider[0] == wider[1]
    names = {"report.json", *(f"report.rank{rank}.json" for rank in range(1, RANKS))}
    names |= {"junit.xml", *(f"junit.rank{rank}.xml" for rank in range(1, RANKS))}
    assert {path.name for path in tmp_path.iterdir() if path.suffix in {".json", ".xml"}} == names
    for rank, name in enumerate(["report.json", *(f"report.rank{rank}.json" for rank in range(1, RANKS))]):
        tests = {test["nodeid"]: test for test in json.loads((tmp_path / name).read_text())["tests"]}
        assert [each["key"] for each in tests["test_job.py::test_one_each"]["devices"]] == said["test_one_each"][rank][
            "keys"
        ]


@pytest.mark.slow
def test_missing_hardware_fails_on_all_ranks_where_it_is_to_fail(tmp_path: Path, python: str) -> None:
    status, printed = Torchrun(tmp_path, python, SUITE).run("--gpu-missing=fail")
    assert status != 0
    for text in printed:
        assert "5 passed, 4 errors" in text, text


@pytest.mark.slow
def test_a_rank_that_fails_early_does_not_leave_the_others_in_a_collective(tmp_path: Path, python: str) -> None:
    """With `-x` the rank that failed would be gone, and the others in the next collective for ever."""
    suite = (
        SUITE + "\n\n@pytest.mark.gpu(memory='1 GiB')\ndef test_fails_on_one(): assert os.environ['RANK'] != '2'\n\n"
    )
    suite += "def test_after(sum_of_ranks): sum_of_ranks()\n"
    job = Torchrun(tmp_path, python, suite)
    status, printed = job.run("-x", "--deselect=test_job.py::test_two_each")
    assert status != 0
    assert "test_after" not in job.said
    assert "1 failed" in printed[2], printed[2]

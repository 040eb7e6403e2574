"""Workers and ranks in allocations of a real Slurm, on loopback: `GPUCOEXIST_SLURM=1` starts it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.machines import as_text, workstation
from tests.fixtures.running import loaded, needs_xdist

if TYPE_CHECKING:
    from pathlib import Path

    from tests.slurm.cluster import Cluster

pytestmark = needs_xdist

# What each node has, as a discovery there would say; the masks are those that Slurm exported, parsed by our own code.
CONFTEST = """
import json, os
from dataclasses import replace
import pytest
from pytest_gpucoexist.model.machine import Machine
from pytest_gpucoexist.model.visibility.apply import apply_masks

HERE = os.path.dirname(__file__)

def pytest_gpucoexist_machine(config, machine):
    node = os.environ.get("SLURMD_NODENAME", "nothing")
    with open(os.path.join(HERE, node + ".json")) as file:
        found = Machine.from_json(json.load(file))
    return apply_masks(os.environ, replace(found, asked=machine.asked))

@pytest.fixture
def say(request):
    names = ("SLURMD_NODENAME", "SLURM_STEP_GPUS", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    def say(gpu=None):
        told = {name: os.environ.get(name) for name in names}
        told |= {"test": request.node.name, "key": gpu and gpu.key, "rank": os.environ.get("SLURM_PROCID")}
        with open(os.path.join(HERE, "said"), "a") as file:
            file.write(json.dumps(told) + "\\n")
    return say
"""

TESTS = """
import pytest

@pytest.mark.cuda
@pytest.mark.parametrize("n", range(3))
def test_cuda(gpu, n, say, tmp_path): say(gpu)

@pytest.mark.rocm
@pytest.mark.parametrize("n", range(3))
def test_rocm(gpu, n, say, tmp_path): say(gpu)

def test_cpu(): pass
"""


class Project:
    """A suite that runs from outside of every allocation."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        """Write the suite, and the machine of each node."""
        self.folder = folder
        self.cluster = cluster
        (folder / "conftest.py").write_text(CONFTEST)
        (folder / "test_vendors.py").write_text(TESTS)
        station = workstation()
        green = [gpu for gpu in station.gpus if gpu.vendor == "nvidia"]
        red = [gpu for gpu in station.gpus if gpu.vendor == "amd"]
        red.append(replace(red[0], id="amd1", pci_address="0000:c2:00.0", uuid="GPU-8d4f2a6b1c3e5f71"))
        for name, gpus in {"green": green, "red": red, "mixed": [*green, *red], "nothing": []}.items():
            (folder / f"{name}.json").write_text(as_text(replace(station, name=name, gpus=tuple(gpus))))

    def command(self, *args: str) -> list[str]:
        """Return a pytest in this environment."""
        return [
            sys.executable,
            "-m",
            "pytest",
            *loaded(),
            "-p",
            "no:cacheprovider",
            "-p",
            "no:hypothesispytest",
            "-rA",
            *args,
        ]

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command where clients of Slurm find the cluster."""
        environ = {name: value for name, value in self.cluster.environ.items() if name != "PYTEST_CURRENT_TEST"}
        return self.cluster.run(*command, check=False, cwd=self.folder, env=environ, timeout=90)

    @property
    def said(self) -> list[dict[str, str | None]]:
        """What the tests told, in the order of its arrival."""
        path = self.folder / "said"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def project(tmp_path: Path, cluster: Cluster) -> Project:
    return Project(tmp_path, cluster)


def allocation(gres: str, *more: str, count: int = 1) -> list[str]:
    """Return a worker in an allocation of its own, as an option of pytest."""
    return ["--tx", f"{count}*popen//python=srun --gres=gpu:{gres} {' '.join(more)} -n1 {sys.executable}"]


@pytest.mark.parametrize("nodes", [("mixed", "mixed"), ("green", "red")], ids=["one-node", "two-nodes"])
def test_each_test_lands_on_a_worker_of_its_vendor_and_sees_its_device(
    project: Project, nodes: tuple[str, str]
) -> None:
    """On one node Slurm numbers the GPUs across vendors: ROCm would see none of what Slurm's own masks name."""
    nvidia, amd = allocation("nvidia:1", "-w", nodes[0]), allocation("amd:1", "-w", nodes[1])
    ended = project.run(*project.command("--gpu-dist=auto", *nvidia, *amd))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "7 passed" in ended.stdout, ended.stdout
    assert sorted(str(each["test"])[:9] for each in project.said) == ["test_cuda"] * 3 + ["test_rocm"] * 3
    for each in project.said:
        rocm = str(each["test"]).startswith("test_rocm")
        assert each["SLURMD_NODENAME"] == nodes[rocm]
        assert each["key"] == ("0000:c1:00.0" if rocm else "0000:41:00.0")
        # What a runtime in this worker reads: its own first device.
        assert each["ROCR_VISIBLE_DEVICES" if rocm else "CUDA_VISIBLE_DEVICES"] == "0"
    if nodes == ("mixed", "mixed"):
        trap = {each["SLURM_STEP_GPUS"] for each in project.said if str(each["test"]).startswith("test_rocm")}
        assert trap == {"2"}, "Slurm counts differently now: the trap that this test is about is not there"


def test_workers_of_one_type_have_different_devices(project: Project) -> None:
    ended = project.run(*project.command("-d", *allocation("nvidia:1", "-w", "green", count=2), "-k", "cuda"))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert {each["key"] for each in project.said} == {"0000:41:00.0", "0000:42:00.0"}


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (("--gres=gpu:nosuch:1",), "Requested node configuration is not available"),
        (("--gres=gpu:amd:1", "-w", "green"), "Requested node configuration is not available"),
        (("-w", "nowhere"), "Invalid node name specified"),
    ],
    ids=["gres", "gres-of-another-node", "node"],
)
def test_what_is_not_available_ends_with_the_words_of_slurm(
    project: Project, what: tuple[str, ...], words: str
) -> None:
    bad = ["--tx", f"popen//python=srun {' '.join(what)} -n1 {sys.executable}"]
    ended = project.run(*project.command("-d", *allocation("nvidia:1"), *bad))
    assert ended.returncode == 69, ended.stdout + ended.stderr
    assert f"srun: error: Unable to allocate resources: {words}" in ended.stderr
    assert "no worker from Slurm: gw1: `srun -u " in ended.stdout
    assert "INTERNALERROR" not in ended.stdout
    assert project.said == []


def test_what_is_taken_is_not_waited_for_with_immediate(project: Project) -> None:
    """srun queues, as it should, unless it is told not to."""
    held = subprocess.Popen(["srun", "--gres=gpu:nvidia:2", "-w", "green", "sleep", "300"], env=project.cluster.environ)
    try:
        until = time.monotonic() + 30
        while "sleep" not in project.cluster.run("squeue", "--noheader", "--states=R", "--format=%j").stdout:
            assert time.monotonic() < until
            time.sleep(0.1)
        ended = project.run(*project.command("-d", *allocation("nvidia:1", "-w", "green", "--immediate=1")))
        assert ended.returncode == 69, ended.stdout + ended.stderr
        assert "srun: error: Unable to allocate resources" in ended.stderr
    finally:
        held.terminate()
        held.wait()


def test_a_worker_that_slurm_cancels_is_replaced(project: Project) -> None:
    """The crash is reported on the test that ran; the replacement is in an allocation of its own again."""
    (project.folder / "test_vendors.py").write_text(
        """
import os, pytest, subprocess

@pytest.mark.cuda
def test_cancelled(gpu, say):
    say(gpu)
    subprocess.run(["scancel", "--signal=KILL", os.environ["SLURM_JOB_ID"]])
    import time; time.sleep(60)

@pytest.mark.cuda
def test_after(gpu, say): say(gpu)
"""
    )
    ended = project.run(*project.command("-d", *allocation("nvidia:1", "-w", "green")))
    assert "1 failed, 1 passed" in ended.stdout, ended.stdout + ended.stderr
    assert "crashed while running 'test_vendors.py::test_cancelled'" in ended.stdout
    assert [each["test"] for each in project.said] == ["test_cancelled", "test_after"]


def test_tasks_of_a_step_are_ranks(project: Project) -> None:
    """Two tasks, each with a device of its own that Slurm confines to none: distinct devices, and one decision."""
    (project.folder / "test_vendors.py").write_text(
        """
import pytest

@pytest.mark.cuda
def test_one(gpu, say): say(gpu)

@pytest.mark.cuda(count=2)
def test_two(gpus): raise AssertionError
"""
    )
    ended = project.run("srun", "-w", "green", "--gres=gpu:nvidia:2", "-n2", *project.command())
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("1 passed, 1 skipped") == 2, ended.stdout
    assert "2 ranks of Slurm decide and lease devices together" in ended.stdout
    assert {each["rank"]: each["key"] for each in project.said} == {"0": "0000:41:00.0", "1": "0000:42:00.0"}


def test_each_node_decides_for_its_own_tasks(project: Project) -> None:
    """What `docs/howto/ranks.md` says is not done: nodes with different hardware decide differently."""
    (project.folder / "test_vendors.py").write_text(
        """
import pytest

@pytest.mark.cuda
def test_one(gpu, say): say(gpu)
"""
    )
    ended = project.run("srun", "-N2", "-w", "green,red", "-n4", "--ntasks-per-node=2", *project.command())
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("1 passed in") == 2, ended.stdout
    assert ended.stdout.count("1 skipped in") == 2, ended.stdout
    assert "4 ranks of Slurm decide and lease devices together, 2 of them on this node; other nodes" in ended.stdout
    assert {each["SLURMD_NODENAME"] for each in project.said} == {"green"}


def test_workers_take_parts_of_an_allocation_that_is_there(project: Project) -> None:
    """As in a batch script: pytest runs in the allocation, each worker is a step with a part of it."""
    part = ["--tx", f"2*popen//python=srun --exact -n1 --gres=gpu:nvidia:1 {sys.executable}"]
    allocated = ["salloc", "-n2", "-w", "green", "--gres=gpu:nvidia:2"]
    ended = project.run(*allocated, *project.command("--gpu-dist=auto", *part, "-k", "cuda", "--basetemp=temp"))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "3 passed" in ended.stdout, ended.stdout
    assert {each["key"] for each in project.said} == {"0000:41:00.0", "0000:42:00.0"}
    assert "ranks of Slurm" not in ended.stdout


def test_nothing_is_left_in_the_queue(cluster: Cluster) -> None:
    until = time.monotonic() + 30
    while cluster.run("squeue", "--noheader").stdout and time.monotonic() < until:
        time.sleep(0.2)
    assert cluster.run("squeue", "--noheader").stdout == ""

"""--pdb and --trace: a person who looks around holds the device, and it comes back when he has seen enough."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.beside.running import NVIDIA1

if TYPE_CHECKING:
    from tests.beside.running import Suite

needs_affinity = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="on macOS and Windows: no affinity")

# The demo machine as if it were this computer, with CPUs that are here: the lowest CPU of this process on every node.
AS_IF_REAL = """
from dataclasses import replace

CPUS = os.sched_getaffinity(0)

def pytest_gpucoexist_machine(config, machine):
    nodes = tuple(replace(node, cpulist=str(min(CPUS))) for node in machine.numa_nodes)
    return replace(machine, simulated=False, numa_nodes=nodes)

def held(request):
    return dict(request.config.stash[GPU_SESSION].leaser.held())
"""

SUITE = """
    import os
    import pytest
    from conftest import CPUS, held, note

    @pytest.mark.cuda(memory="40 GiB")
    def test_fails(request, gpu, numa_node):
        cpus = sorted(os.sched_getaffinity(0))
        note("inside", [held(request), cpus])
        assert 0

    @pytest.mark.cuda(memory="40 GiB")
    def test_after(request, gpu):
        note("after", [held(request), sorted(os.sched_getaffinity(0))])
        assert os.sched_getaffinity(0) == CPUS

    def test_none(request):
        assert held(request) == {}
    """

LOOK = 'p "HELD", sorted(held(request))\np "CPUS", sorted(os.sched_getaffinity(0)) == [min(CPUS)]\n'


@pytest.fixture
def watched(suite: Suite) -> Suite:
    conftest = suite.path / "conftest.py"
    conftest.write_text(conftest.read_text() + AS_IF_REAL)
    suite.pytester.makepyfile(SUITE)
    return suite


@needs_affinity
def test_in_the_debugger_the_device_is_held_and_after_it_free(watched: Suite) -> None:
    result = watched.run(
        "--pdb", "--gpu-report=report.json", on=("--gpu-machine=demo",), stdin=f"{LOOK}continue\n".encode()
    )
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines([f"*('HELD', [[]'{NVIDIA1}'])*", "*('CPUS', True)*"])
    (inside,), (after,) = watched.noted("inside"), watched.noted("after")
    assert list(inside[0]) == [NVIDIA1]
    assert inside[1] == [min(os.sched_getaffinity(0))]
    assert next(iter(after[0].values())).endswith("::test_after")
    assert watched.held() == {}
    assert {name: test["outcome"] for name, test in watched.records().items()} == {
        "test_fails": "failed",
        "test_after": "passed",
        "test_none": "passed",
    }


def test_leaving_the_debugger_ends_the_run_and_frees_the_device(suite: Suite) -> None:
    suite.pytester.makepyfile(
        """
        from conftest import GPU_SESSION

        def test_fails(request, cuda_gpu):
            held = dict(request.config.stash[GPU_SESSION].leaser.held())
            assert 0

        def test_after(cuda_gpu): pass
        """
    )
    result = suite.run("--pdb", "--gpu-report=report.json", stdin=b'p "HELD", len(held)\nquit\n')
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*('HELD', 1)*", "*Quitting debugger*"])
    assert suite.held() == {}
    assert suite.records()["test_fails"]["outcome"] == "failed"


def test_tracing_holds_the_device(suite: Suite) -> None:
    suite.pytester.makepyfile(
        """
        def test_it(request, cuda_gpu):
            held = request.config.stash
        """
    )
    look = b"from pytest_gpucoexist import current_gpu\np 'HAS', current_gpu() == cuda_gpu\ncontinue\n"
    result = suite.run("--trace", stdin=look)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*('HAS', True)*"])
    assert suite.held() == {}

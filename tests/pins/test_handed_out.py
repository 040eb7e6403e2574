"""`numa_node` and `gpu_env` as a suite sees them."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

import pytest

from pytest_gpucoexist.model.machine import NumaNode
from tests.fixtures.machines import workstation
from tests.fixtures.running import Suite

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: CPU affinity and memory policy")


@pytest.fixture
def suite(pytester: pytest.Pytester) -> Suite:
    return Suite(
        pytester,
        conftest="""
import pytest

@pytest.fixture
def binding(request):
    return lambda: dict(request.node.user_properties).get("gpu_numa_binding")
""",
    )


@linux
def test_bound_for_the_test_and_put_back(suite: Suite) -> None:
    one = min(os.sched_getaffinity(0))
    suite.use(replace(workstation(), numa_nodes=(NumaNode(id=0, cpulist=str(one)),)))
    suite.pytester.makepyfile(
        f"""
        import os
        import pytest

        everything = os.sched_getaffinity(0)

        @pytest.mark.cuda
        def test_fails(numa_node):
            assert os.sched_getaffinity(0) == {{{one}}}
            os.sched_setaffinity(0, everything)
            raise AssertionError

        def test_as_before():
            assert os.sched_getaffinity(0) == everything

        def test_device_only(cuda_gpu):
            assert os.sched_getaffinity(0) == everything

        @pytest.mark.cuda
        def test_kept(numa_node, binding):
            assert numa_node == 0 and binding().startswith("node 0: bound CPUs {one}")

        @pytest.mark.rocm
        def test_absent(numa_node, binding):
            assert numa_node == 1 and binding() == "nothing bound; NUMA node 1 is not on this host"
            assert os.sched_getaffinity(0) == everything
        """
    )
    suite.run("--junitxml=junit.xml").assert_outcomes(passed=4, failed=1)
    junit = (suite.pytester.path / "junit.xml").read_text()
    assert 'name="gpu_numa_binding" value="nothing bound; NUMA node 1 is not on this host"' in junit


def test_unknown_node_binds_nothing(suite: Suite) -> None:
    suite.use(workstation(nvidia0={"numa_node": -1}))
    suite.pytester.makepyfile(
        """
        def test_it(numa_node, cuda_gpu, binding):
            assert numa_node is None
            assert binding() == "nothing bound; the machine does not say the NUMA node of 0000:41:00.0"
        """
    )
    suite.run().assert_outcomes(passed=1)


def test_simulated_node_binds_nothing(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMULATED", "1")
    suite.pytester.makepyfile(
        """
        import pytest

        @pytest.mark.rocm
        def test_it(numa_node, binding):
            assert numa_node == 1
            assert binding() == "nothing bound; workstation is simulated: its nodes are not those of this host"
        """
    )
    suite.run("--gpu-simulate").assert_outcomes(passed=1)


def test_environment_shows_exactly_the_leased_devices(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("UNRELATED", "stays")
    suite.pytester.makepyfile(
        """
        import os
        import pytest

        @pytest.mark.cuda(arch="8.6")
        def test_cuda(gpu_env, monkeypatch):
            assert gpu_env["CUDA_VISIBLE_DEVICES"] == "1" and gpu_env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
            assert gpu_env["HIP_VISIBLE_DEVICES"] not in ("", "1")
            assert gpu_env["UNRELATED"] == "stays"
            assert "CUDA_VISIBLE_DEVICES" not in os.environ

        @pytest.mark.rocm
        def test_rocm(gpu_env):
            assert gpu_env["HIP_VISIBLE_DEVICES"] == "0" or gpu_env["ROCR_VISIBLE_DEVICES"] == "0"
            assert gpu_env["CUDA_VISIBLE_DEVICES"] not in ("0", "1", "0,1")

        @pytest.fixture
        def changed(monkeypatch):
            monkeypatch.setenv("SET_BY_A_FIXTURE", "seen")

        @pytest.mark.cuda
        def test_of_this_moment(changed, gpu_env):
            assert gpu_env["SET_BY_A_FIXTURE"] == "seen"
        """
    )
    suite.run().assert_outcomes(passed=3)


def test_mask_style(suite: Suite) -> None:
    suite.pytester.makepyfile(
        """
        import pytest

        @pytest.mark.cuda(arch="8.6")
        def test_uuid(gpu_env, gpu):
            assert gpu_env["CUDA_VISIBLE_DEVICES"] == gpu.uuid
        """
    )
    suite.run("--gpu-mask-style=uuid").assert_outcomes(passed=1)
    suite.run("--gpu-mask-style=index").assert_outcomes(failed=1)


def test_variables_to_unset_are_gone() -> None:
    from pytest_gpucoexist.model.visibility import write_masks
    from pytest_gpucoexist.session.pins.env import environment_for

    machine = workstation()
    gpu = machine.gpu("amd0")
    assert gpu is not None
    caller = {"HIP_VISIBLE_DEVICES": "0", "ROCR_VISIBLE_DEVICES": "0", "GPU_DEVICE_ORDINAL": "0", "PATH": "/bin"}
    written = write_masks([gpu], machine, "auto", caller)
    environment = environment_for([gpu], machine, caller)
    assert environment == {
        **{name: value for name, value in caller.items() if name not in written},
        **{name: value for name, value in written.items() if value is not None},
    }
    assert caller["PATH"] == environment["PATH"]

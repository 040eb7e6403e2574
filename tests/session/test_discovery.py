"""From options to a machine: the demo, recordings, this computer; and what is asked of vendor libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist import probes
from pytest_gpucoexist.session import discovery
from pytest_gpucoexist.testing.demo import demo_host
from tests.machines import dual, machine, nvidia

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pytest_gpucoexist.model.machine import Machine

    Session = Callable[..., pytest.RunResult]

BOTH_WAYS = pytest.mark.parametrize("way", [(), ("-n2",)], ids=["serial", "xdist"])


@BOTH_WAYS
def test_the_demo_machine(session: Session, pytester: pytest.Pytester, way: tuple[str, ...]) -> None:
    pytester.makepyfile(
        """
        import pytest
        def test_nvidia(cuda_gpu): assert cuda_gpu.vendor == "nvidia"
        def test_amd(rocm_gpu): assert rocm_gpu.vendor == "amd"
        def test_pair(gpu_pair): pass
        @pytest.mark.cuda(count=2, memory="1 GiB", arch=">=5.0", same_node=True)
        def test_two(gpus): assert len({gpu.key for gpu in gpus}) == 2
        @pytest.mark.cuda(count=3)
        def test_skipped(): pass
        """
    )
    result = session(*way, "--gpu-machine=demo", "--gpu-simulate", on=None)
    result.assert_outcomes(passed=4, skipped=1)
    result.stdout.fnmatch_lines(["gpucoexist: SIMULATED machine 'demo'*", "1 test (missing): needs 3 NVIDIA GPUs*"])


@BOTH_WAYS
def test_a_test_for_each_device(session: Session, pytester: pytest.Pytester, way: tuple[str, ...]) -> None:
    pytester.makepyfile(
        """
        import pytest
        def test_each(each_gpu, gpu): assert gpu == each_gpu
        @pytest.mark.cuda
        def test_cuda(each_gpu): assert each_gpu.vendor == "nvidia"
        @pytest.mark.rocm(count=7)
        def test_nowhere(each_gpu): raise AssertionError
        """
    )
    result = session(*way, "-v", "--gpu-simulate")
    result.assert_outcomes(passed=5, skipped=1)
    for name in ("test_each[nvidia0]", "test_each[nvidia1]", "test_each[amd0]", "test_cuda[nvidia1]"):
        result.stdout.fnmatch_lines([f"*{name.replace('[', '[[]')}*PASSED*" if not way else f"*PASSED*{name[:9]}*"])


def test_a_recording(session: Session, pytester: pytest.Pytester, shared: object) -> None:
    pytester.makepyfile("def test_it(gpu): pass")
    result = session(f"--gpu-machine={shared}/machines/vm-2node-switch.tar.gz", "--gpu-plan", on=None)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["Plan for vm-2node-switch (SIMULATED*"])


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """What discovery asks of vendor libraries, on a machine whose files tell everything but what NVML knows."""
    calls: list[tuple[str, ...]] = []

    def discover(host: object, *, ask: Collection[str] = (), deadline_s: float = 5.0, extra: object = None) -> Machine:
        assert extra == {}
        calls.append((*ask, f"{deadline_s}"))
        return machine(nvidia(memory_total_bytes=24 * 1024**3 if ask else None)) if calls else dual()

    monkeypatch.setattr(probes, "discover", discover)
    monkeypatch.setattr(discovery, "_host", lambda *_: demo_host())
    return calls


def test_vendor_libraries_are_called_once_for_all_tests_that_need_them(
    session: Session, pytester: pytest.Pytester, asked: list[tuple[str, ...]]
) -> None:
    pytester.makeini("[pytest]\ngpu_helper_deadline = 1.5")
    pytester.makepyfile(
        """
        import pytest
        @pytest.mark.cuda(memory="1 GiB")
        def test_memory(): pass
        @pytest.mark.cuda
        def test_cuda(): pass
        """
    )
    session(on=None).assert_outcomes(passed=2)
    assert asked == [("1.5",), ("nvidia", "1.5")]


def test_without_gpu_tests_nothing_is_discovered(
    session: Session, pytester: pytest.Pytester, asked: list[tuple[str, ...]]
) -> None:
    pytester.makepyfile("def test_it(): pass")
    session(on=None).assert_outcomes(passed=1)
    assert asked == []


def test_files_are_enough_for_what_files_tell(
    session: Session, pytester: pytest.Pytester, asked: list[tuple[str, ...]]
) -> None:
    pytester.makepyfile("import pytest\n@pytest.mark.rocm(memory='1 GiB')\ndef test_it(): pass")
    session(on=None).assert_outcomes(skipped=1)
    assert asked == [("5.0",)]

"""`gpu_transfer` in sessions, on simulated devices and on drivers without hardware; and the example that shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("execnet", reason="needs execnet")
pytest.importorskip("numpy", reason="needs NumPy")

from tests.conftest import ROOT
from tests.session.test_vendor_processes import nothing_left, on_fakes, simulated

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fakes.machine import FakeMachine

__all__ = ["nothing_left", "on_fakes", "simulated"]


@pytest.fixture(params=["simulated", "on_fakes"])
def run(request: pytest.FixtureRequest) -> Callable[..., pytest.RunResult]:
    chosen: Callable[..., pytest.RunResult] = request.getfixturevalue(request.param)
    return chosen


def test_the_example(run: Callable[..., pytest.RunResult], pytester: pytest.Pytester) -> None:
    for path in (ROOT / "examples/cross_vendor").glob("*.py"):
        (pytester.path / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    result = run("", "test_cross_vendor.py")
    result.assert_outcomes(passed=4)


def test_buffers_of_one_device_and_of_two(run: Callable[..., pytest.RunResult]) -> None:
    result = run(
        """
import numpy as np
from pytest_gpucoexist.errors import TransferError

@pytest.mark.cuda(count=2)
def test_it(gpus, gpu_process, gpu_transfer):
    one, other = gpus
    data = np.arange(1000)
    first = gpu_transfer.device_buffer(data.nbytes, one)
    second = gpu_transfer.device_buffer(data.nbytes, one)
    third = gpu_transfer.device_buffer(data.nbytes, other)
    gpu_transfer.from_host(data, first)
    assert gpu_transfer.copy(first, second).route == "local"
    assert gpu_transfer.copy(second, third).route == "staged"
    assert (gpu_transfer.to_host(third, data.dtype) == data).all()
    assert gpu_transfer.prove_peers(one, other)
    process = gpu_process(one, other)
    with pytest.raises(TransferError):
        gpu_transfer.copy(first, third, 10**9)
    fourth, fifth = (gpu_transfer.device_buffer(data.nbytes, process, gpu=gpu) for gpu in gpus)
    gpu_transfer.from_host(data, fourth)
    assert gpu_transfer.copy(fourth, fifth).route == "peer"
    assert (gpu_transfer.to_host(fifth, data.dtype) == data).all()
"""
    )
    result.assert_outcomes(passed=1)


def test_what_a_driver_does_wrong_fails_the_test(
    on_fakes: Callable[..., pytest.RunResult], fake_gpus: FakeMachine
) -> None:
    order = fake_gpus.order("amd.0.copy.h2d", "torn", at=2)
    result = on_fakes(
        """
def test_it(gpu_pair, gpu_transfer):
    gpu_transfer.verify(*gpu_pair, sizes=[8191])

def test_again(gpu_pair, gpu_transfer):
    assert gpu_transfer.verify(*gpu_pair, sizes=[8191]).wrong == ()
"""
    )
    assert order.struck == 1
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["0000:41:00.0 -> 0000:81:00.0 (staged):", "  8191 bytes (second hop): *"])


def test_a_peer_that_lies_is_not_used(on_fakes: Callable[..., pytest.RunResult], fake_gpus: FakeMachine) -> None:
    fake_gpus.order("nvidia.0.copy.peer.1", "zeros", each=True)
    result = on_fakes(
        """
@pytest.mark.cuda(count=2)
def test_it(gpus, gpu_process, gpu_transfer):
    assert not gpu_transfer.prove_peers(*gpus)
    process = gpu_process(*gpus)
    first, second = (gpu_transfer.device_buffer(100, process, gpu=gpu) for gpu in gpus)
    assert gpu_transfer.copy(first, second).route == "staged"
"""
    )
    result.assert_outcomes(passed=1)


def test_without_numpy(simulated: Callable[..., pytest.RunResult], monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "numpy", None)
    result = simulated(
        """
def test_it(gpu_pair, gpu_transfer):
    pass
"""
    )
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*gpu_transfer needs NumPy, which is not installed: pip install 'pytest-gpucoexist*"])

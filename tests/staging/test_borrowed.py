"""Arrays that functions make in a vendor's process are sources and targets of copies; what cannot be one is said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("numpy", reason="needs NumPy")
pytest.importorskip("execnet", reason="needs execnet")

import numpy as np

from pytest_gpucoexist.errors import TransferError, VendorCallError
from pytest_gpucoexist.processes.opening import open_process
from pytest_gpucoexist.staging.endpoint import open_endpoint
from pytest_gpucoexist.staging.memory import from_host, to_host
from pytest_gpucoexist.staging.service import Staging
from tests.staging import called
from tests.staging.conftest import AMD, NVIDIA

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["open_process"]


@pytest.fixture
def staging() -> Iterator[Staging]:
    with Staging() as service:
        yield service


@pytest.fixture
def simulated(opener: Callable[..., Any]) -> list[Any]:
    return [open_endpoint(opener([gpu]), gpu, simulated=True) for gpu in (NVIDIA[0], AMD[0])]


@pytest.mark.parametrize("make", [called.numbers, called.capsule])
def test_an_array_of_one_process_arrives_in_one_of_another(simulated: list[Any], staging: Staging, make: Any) -> None:
    one, other = simulated
    with one.borrow(make, 1000) as given, other.borrow(called.numbers, 1000) as taken:
        assert (given.size_bytes, given.kind) == (
            4000,
            "tests.staging.called.Capsule" if make is called.capsule else "numpy.ndarray",
        )
        other.run(called.set_to, taken, 0.0)
        assert other.run(called.total, taken) == 0.0
        staging.copy(given, taken)
        assert other.run(called.total, taken) == float(np.arange(1000, dtype=np.float32).sum())
        from_host(staging, np.ones(500, dtype=np.float32), taken)
        assert other.run(called.total, taken) == float(500 + np.arange(500, 1000).sum())
        assert to_host(staging, given).view(np.float32).tolist() == list(range(1000))


@pytest.mark.parametrize(
    ("function", "arguments", "words"),
    [
        (called.apart, (10,), r"numpy\.ndarray of shape \(10,\) is not contiguous"),
        (called.nothing, (), r"shape \(0, 3\) is empty"),
        (called.a_list, (), r"builtins\.list has neither __cuda_array_interface__ nor __dlpack__"),
    ],
)
def test_what_is_no_array_to_copy(simulated: list[Any], function: Any, arguments: Any, words: str) -> None:
    with pytest.raises(TransferError, match=words):
        simulated[0].borrow(function, *arguments)


def test_a_function_that_raises(simulated: list[Any]) -> None:
    with pytest.raises(VendorCallError, match=r"ValueError: on purpose") as caught:
        simulated[0].borrow(called.broken)
    assert "in broken" in caught.value.remote_traceback
    assert simulated[0].run(called.a_list) == [1, 2]


def test_memory_that_somebody_else_allocated_with_the_driver(
    opener: Callable[..., Any], fake_cuda: dict[str, str], staging: Staging
) -> None:
    endpoint = open_endpoint(opener([NVIDIA[0]], fake_cuda), NVIDIA[0])
    with endpoint.borrow(called.cuda_memory, 1000) as given, endpoint.allocate(4000) as taken:
        staging.copy(given, taken)
        assert to_host(staging, taken).view(np.float32).tolist() == list(range(1000))
        view = endpoint.run(called.interface_of, taken)
    assert view == {"shape": [4000], "typestr": "|u1", "data": [taken.pointer, False], "strides": None, "version": 3}


def test_memory_on_a_device_of_another_kind(opener: Callable[..., Any], fake_cuda: dict[str, str]) -> None:
    endpoint = open_endpoint(opener([NVIDIA[0]], fake_cuda), NVIDIA[0])
    with pytest.raises(TransferError, match=r"on a device of DLPack's type 1, not kDLCUDA or kDLCUDAManaged"):
        endpoint.borrow(called.capsule, 10)


def test_memory_of_another_device_of_the_process(opener: Callable[..., Any], fake_cuda: dict[str, str]) -> None:
    process = opener(NVIDIA, fake_cuda)
    first, second = (open_endpoint(process, gpu) for gpu in NVIDIA)
    with first.borrow(called.cuda_memory_of, 10, 0) as given:
        assert given.size_bytes == 40
    words = r"OnDevice is on device 0 of this process, and was to be on its device 1: make it there"
    with pytest.raises(TransferError, match=words):
        second.borrow(called.cuda_memory_of, 10, 0)

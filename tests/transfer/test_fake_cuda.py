"""What only CUDA's driver API has: contexts of several kinds, and functions by name and version."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fakes.build import cuda_version

if TYPE_CHECKING:
    from tests.fakes.client import Driven

pytestmark = pytest.mark.parametrize("driven", ["cuda"], indirect=True)

# Function and version of CUDA -> the symbol that NVIDIA's driver has for them (cudaTypedefs.h).
SYMBOLS = {
    ("cuMemAlloc", 3020): "cuMemAlloc_v2",
    ("cuMemAlloc", 13000): "cuMemAlloc_v2",
    ("cuCtxCreate", 11000): "cuCtxCreate_v2",
    ("cuCtxCreate", 11040): "cuCtxCreate_v3",
    ("cuCtxCreate", 12050): "cuCtxCreate_v4",
    ("cuDeviceGetUuid", 9020): "cuDeviceGetUuid",
    ("cuDeviceGetUuid", 12000): "cuDeviceGetUuid_v2",
    ("cuEventElapsedTime", 12000): "cuEventElapsedTime",
    ("cuEventElapsedTime", 12080): "cuEventElapsedTime_v2",
    ("cuCtxSynchronize", 12000): "cuCtxSynchronize",
    ("cuCtxSynchronize", 13000): "cuCtxSynchronize_v2",
    ("cuLaunchHostFunc", 13000): "cuLaunchHostFunc",
    ("cuStreamSynchronize", 12000): "cuStreamSynchronize",
}


def test_a_function_is_that_of_the_newest_abi_which_the_version_knows(driven: Driven) -> None:
    symbols = {symbol: driven.client("host.symbol", "libcuda.so.1", symbol) for symbol in SYMBOLS.values()}
    newest = cuda_version()
    for (function, version), symbol in SYMBOLS.items():
        if version > newest:
            continue  # the header that the fake was built against does not know it
        assert driven("address_of", function, version) == symbols[symbol], (function, version)
    assert driven("address_of", "cuMemAlloc", 99999) == symbols["cuMemAlloc_v2"], "a version yet to come"
    # 2.0 had 32-bit addresses: that ABI is not here, and a newer one must not be given in its place.
    assert driven.refusal("address_of", "cuMemAlloc", 2000) == "CUDA_ERROR_NOT_FOUND"
    assert driven.refusal("address_of", "cuMemAlloc", 1000) == "CUDA_ERROR_NOT_FOUND"
    assert driven.refusal("address_of", "cuNoSuchFunction", 12000) == "CUDA_ERROR_NOT_FOUND"


def test_a_context_of_ones_own_is_seen_beside_the_primary_one(driven: Driven) -> None:
    before = driven.machine.contexts()
    driven("create_context", 1)
    driven("allocate", 4096)
    assert driven.machine.contexts() == [*before, (driven.client.pid, "nvidia.1")]


def test_a_released_primary_context_takes_its_memory_along(driven: Driven) -> None:
    before = driven("memory")
    pointer = driven("allocate", 1 << 20)
    driven("release", 0)
    assert driven.refusal("memory") == "CUDA_ERROR_CONTEXT_IS_DESTROYED"
    driven("use", 0)
    assert driven("memory") == before
    assert driven.refusal("free", pointer) == "CUDA_ERROR_INVALID_VALUE"
    assert driven.machine.contexts() == [(driven.client.pid, "nvidia.0")] * 2

"""The fixtures that users see.

A plugin module of its own, loaded at start-up: it imports nothing of the model. Devices are leased before a test's
protocol begins (`leasing`), so most fixtures only hand out what is there. A fixture that is first asked for by
`request.getfixturevalue` acquires late: then the wait counts as the test's own time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.model.machine import Gpu, Machine
    from pytest_gpucoexist.session.handout import GpuLeases
    from pytest_gpucoexist.session.parity import GpuParity
    from pytest_gpucoexist.session.transfers import GpuTransfer
    from pytest_gpucoexist.session.vendor_processes import GpuProcesses


@pytest.fixture(scope="session")
def gpu_machine(pytestconfig: pytest.Config) -> Machine:
    """Give the machine: GPUs, NUMA nodes, drivers, runtimes. It is the same value on every xdist worker."""
    from pytest_gpucoexist.session.handout import whole_machine

    return whole_machine(pytestconfig)


@pytest.fixture(scope="session")
def gpu_leases(pytestconfig: pytest.Config) -> GpuLeases:
    """Give devices to code that finds out late what it needs: `with gpu_leases.acquire("cuda") as gpus:`."""
    from pytest_gpucoexist.session.handout import GpuLeases

    return GpuLeases(pytestconfig)


@pytest.fixture
def gpus(request: pytest.FixtureRequest) -> tuple[Gpu, ...]:
    """Give the devices leased for this test, in the order of its marks."""
    from pytest_gpucoexist.session.handout import leased

    return leased(request, "gpus")


@pytest.fixture
def gpu(request: pytest.FixtureRequest) -> Gpu:
    """Give the device leased for this test; the first, where it has several."""
    from pytest_gpucoexist.session.handout import leased

    return leased(request, "gpu")[0]


@pytest.fixture
def cuda_gpu(request: pytest.FixtureRequest) -> Gpu:
    """Give one leased NVIDIA device that CUDA can use. Implies `@pytest.mark.cuda`."""
    from pytest_gpucoexist.session.handout import leased

    return leased(request, "cuda_gpu", vendor="nvidia")[0]


@pytest.fixture
def rocm_gpu(request: pytest.FixtureRequest) -> Gpu:
    """Give one leased AMD device that ROCm can use. Implies `@pytest.mark.rocm`."""
    from pytest_gpucoexist.session.handout import leased

    return leased(request, "rocm_gpu", vendor="amd")[0]


@pytest.fixture
def intel_gpu(request: pytest.FixtureRequest) -> Gpu:
    """Give one leased Intel device. Implies `@pytest.mark.gpu(vendor="intel")`."""
    from pytest_gpucoexist.session.handout import leased

    return leased(request, "intel_gpu", vendor="intel")[0]


@pytest.fixture
def gpu_pair(request: pytest.FixtureRequest) -> tuple[Gpu, Gpu]:
    """Give one device of each vendor (NVIDIA, AMD), the pair with the shortest path between them."""
    from pytest_gpucoexist.session.handout import leased_pair

    return leased_pair(request)


@pytest.fixture(scope="class")
def class_gpu(request: pytest.FixtureRequest) -> Iterator[Gpu]:
    """Give the same device for all tests of a class, held from the first of them until the class is torn down."""
    from pytest_gpucoexist.session.handout import chosen

    with chosen(request, "class_gpu") as device:
        yield device


@pytest.fixture(scope="module")
def module_gpu(request: pytest.FixtureRequest) -> Iterator[Gpu]:
    """Give the same device for all tests of a module, held from the first of them until the module is torn down."""
    from pytest_gpucoexist.session.handout import chosen

    with chosen(request, "module_gpu") as device:
        yield device


@pytest.fixture(scope="session")
def session_gpu(request: pytest.FixtureRequest) -> Iterator[Gpu]:
    """Give the same device for all tests of a worker's session, held from the first of them until its end."""
    from pytest_gpucoexist.session.handout import chosen

    with chosen(request, "session_gpu") as device:
        yield device


@pytest.fixture
def each_gpu(request: pytest.FixtureRequest) -> Gpu:
    """Give each device that satisfies the test's marks, one run per device: `test[nvidia0]`, `test[amd0]`."""
    from pytest_gpucoexist.session.handout import each_device

    return each_device(request)


@pytest.fixture
def each_vendor(request: pytest.FixtureRequest) -> str:
    """Give each vendor with a device that satisfies the test's marks, one run per vendor; the device is `gpu`."""
    from pytest_gpucoexist.session.handout import parameter

    vendor: str = parameter(request, "a vendor with a usable GPU")
    return vendor


@pytest.fixture
def each_numa_node(request: pytest.FixtureRequest) -> int:
    """Give each NUMA node with a device that satisfies the test's marks, one run per node; the device is `gpu`."""
    from pytest_gpucoexist.session.handout import parameter

    node: int = parameter(request, "a GPU whose NUMA node the machine tells")
    return node


@pytest.fixture
def numa_node(request: pytest.FixtureRequest) -> Iterator[int | None]:
    """Give the NUMA node of the leased device; CPU affinity and memory policy are bound to it for the test.

    None when the machine does not say the node: then nothing is bound. The test's property `gpu_numa_binding` says
    what was bound, and if not everything, why.
    """
    from pytest_gpucoexist.session.handout import bound_node

    with bound_node(request) as node:
        yield node


@pytest.fixture
def gpu_env(request: pytest.FixtureRequest) -> dict[str, str]:
    """Give the environment for a subprocess that shall see exactly the leased devices."""
    from pytest_gpucoexist.session.handout import child_environment

    return child_environment(request)


@pytest.fixture
def torch_device(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Give the leased device as a `torch.device`, current for the test; torch's cache is emptied after it."""
    from pytest_gpucoexist.session.handout import framework_device
    from pytest_gpucoexist.session.pins.torch import current_torch_device

    with framework_device(request, "torch_device", current_torch_device) as device:
        yield device


@pytest.fixture
def cupy_device(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Give the leased device as a `cupy.cuda.Device`, current for the test; CuPy's memory pools are freed after it."""
    from pytest_gpucoexist.session.handout import framework_device
    from pytest_gpucoexist.session.pins.cupy import current_cupy_device

    with framework_device(request, "cupy_device", current_cupy_device) as device:
        yield device


@pytest.fixture
def gpu_process(request: pytest.FixtureRequest) -> Iterator[GpuProcesses]:
    """Give processes of one vendor for leased devices.

    `process = gpu_process(cuda_gpu)`, then `process.run(function, 1)`. Each has the interpreter of its vendor (ini
    `gpu_python_nvidia`, `gpu_python_amd`, `gpu_python_intel`), sees these devices and no other GPU, and ends with the
    test. One that was not of its vendor alone fails the test.
    """
    from pytest_gpucoexist.session.vendor_processes import processes_of

    with processes_of(request) as processes:
        yield processes


@pytest.fixture
def gpu_transfer(request: pytest.FixtureRequest, gpu_process: GpuProcesses) -> Iterator[GpuTransfer]:
    """Give memory of leased devices and copies between any two of them: `gpu_transfer.copy(source, target)`."""
    from pytest_gpucoexist.session.transfers import transfers_of

    with transfers_of(request, gpu_process) as transfer:
        yield transfer


@pytest.fixture
def gpu_parity(request: pytest.FixtureRequest, gpu_process: GpuProcesses) -> GpuParity:
    """Give a function's results on a device of each vendor, compared: `gpu_parity(function, *args, rtol=1e-3)`.

    Implies `@pytest.mark.cross_vendor`.
    """
    from pytest_gpucoexist.session.handout import leased
    from pytest_gpucoexist.session.parity import GpuParity

    return GpuParity(leased(request, "gpu_parity", vendors=2), gpu_process)

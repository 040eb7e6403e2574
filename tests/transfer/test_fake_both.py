"""CUDA and HIP in one process: each pins the same host memory for itself, and data goes from one to the other."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.fakes.client import Driven, running_client

if TYPE_CHECKING:
    from tests.fakes.machine import FakeMachine

SIZE = (1 << 20) + 5


def test_one_buffer_pinned_by_both_carries_data_from_one_vendor_to_the_other(
    fake_gpus: FakeMachine, fake_cuda: dict[str, str], fake_hip: dict[str, str]
) -> None:
    data = random.Random(7).randbytes(SIZE)
    environ = {**fake_cuda, "LD_LIBRARY_PATH": f"{fake_cuda['LD_LIBRARY_PATH']}:{fake_hip['LD_LIBRARY_PATH']}"}
    with running_client(environ, "cuda", "hip") as client:
        cuda = Driven(machine=fake_gpus, client=client, runtime="cuda")
        hip = Driven(machine=fake_gpus, client=client, runtime="hip")
        shared = cuda.host(data)
        pointers = {}
        for each in (cuda, hip):
            assert each("start") == 2
            each("use", 0)
            each("register", shared, SIZE)
            pointers[each.runtime] = each("allocate", SIZE)
        assert cuda.refusal("register", shared, SIZE) == "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"
        assert hip.refusal("register", shared, SIZE) == "hipErrorHostMemoryAlreadyRegistered"
        cuda("to_device", pointers["cuda"], shared, SIZE, cuda("stream"))
        cuda("wait")
        cuda.write(shared, bytes(SIZE))
        stream = cuda("stream")
        cuda("to_host", shared, pointers["cuda"], SIZE, stream)
        cuda("wait", stream)
        onward = hip("stream")
        hip("to_device", pointers["hip"], shared, SIZE, onward)
        hip("wait", onward)
        cuda("unregister", shared)
        hip.write(shared, bytes(SIZE))
        hip("to_host", shared, pointers["hip"], SIZE, onward)
        hip("wait", onward)
        assert hip.read(shared, SIZE) == data
        assert cuda.refusal("unregister", shared) == "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"
        hip("unregister", shared)
        # A device pointer of one vendor means nothing to the other.
        assert hip.refusal("free", pointers["cuda"]) == "hipErrorInvalidValue"
        assert fake_gpus.contexts() == [(client.pid, "nvidia.0"), (client.pid, "amd.0")]

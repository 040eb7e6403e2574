"""Two vendors in one test: data go from one device to the other's, and a function gives the same on both.

pytest examples/cross_vendor                                   on a machine with an NVIDIA and an AMD GPU
pytest examples/cross_vendor --gpu-machine=demo --gpu-simulate  anywhere
"""

import numpy as np
import workload


def test_data_survive_the_way_there_and_back(gpu_pair, gpu_transfer):
    nvidia, amd = gpu_pair
    data = np.random.default_rng(seed=1).random(1_000_003)
    here, there, back = (gpu_transfer.device_buffer(data.nbytes, gpu) for gpu in (nvidia, amd, nvidia))

    gpu_transfer.from_host(data, here)
    gpu_transfer.copy(here, there)
    gpu_transfer.copy(there, back)

    assert np.array_equal(gpu_transfer.to_host(back, data.dtype), data)


def test_every_byte_is_checked(gpu_pair, gpu_transfer):
    nvidia, amd = gpu_pair
    gpu_transfer.verify(nvidia, amd)
    gpu_transfer.verify(amd, nvidia)


def test_a_function_gives_the_same_in_both_interpreters(gpu_parity):
    result = gpu_parity(workload.normalised, 257, rtol=1e-6)
    assert abs(result["mean"]) < 1e-9


def test_arrays_are_used_where_they_are(gpu_pair, gpu_process, gpu_transfer):
    process = gpu_process(gpu_pair[1])
    buffer = gpu_transfer.device_buffer(4096, process)

    gpu_transfer.from_host(np.full(4096, 7, dtype=np.uint8), buffer)

    # In the process the buffer is an object that torch.as_tensor and cupy.asarray take.
    assert process.run(workload.described, buffer) == "4096 bytes on a device"

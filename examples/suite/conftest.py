"""A vector library that could be yours: it copies through host memory and asks nobody's framework."""

from __future__ import annotations

from array import array

import pytest


class Vector:
    """Doubles on one device; here they lie in host memory, where a real library would call CUDA or HIP."""

    def __init__(self, gpu, values):
        # None: this machine does not tell, for example in a recording of the topology alone.
        if gpu.memory_total_bytes is not None and 8 * len(values) > gpu.memory_total_bytes:
            raise MemoryError(f"{8 * len(values)} bytes do not fit on {gpu.id}")
        self.gpu = gpu
        self.values = array("d", values)

    def __add__(self, other):
        if other.gpu.key != self.gpu.key:
            raise ValueError(f"{self.gpu.id} and {other.gpu.id} are not one device: stage one of them first")
        return Vector(self.gpu, [a + b for a, b in zip(self.values, other.values, strict=True)])

    def staged_to(self, gpu):
        return Vector(gpu, self.values.tobytes() and array("d", self.values.tobytes()))


@pytest.fixture
def vector():
    return Vector

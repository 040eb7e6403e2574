"""How a Gpu and a Machine show themselves where a test failed."""

from __future__ import annotations

from pytest_gpucoexist.model.machine import Gpu, Machine


def test_a_gpu_is_shown_in_a_line() -> None:
    gpu = Gpu(id="nvidia0", pci_address="0000:41:00.0", name="NVIDIA L4", uuid="GPU-1")
    assert repr(gpu) == "<Gpu nvidia0 0000:41:00.0 NVIDIA L4>"
    assert repr(Gpu(id="amd0", uuid="8d4f")) == "<Gpu amd0 8d4f>"


def test_a_machine_is_shown_in_a_line() -> None:
    gpus = (Gpu(id="nvidia0", pci_address="0000:41:00.0"), Gpu(id="amd0", pci_address="0000:c1:00.0"))
    assert repr(Machine(name="box", gpus=gpus)) == "<Machine box: nvidia0, amd0>"
    assert repr(Machine(name="box", simulated=True)) == "<Machine box SIMULATED: no GPU>"

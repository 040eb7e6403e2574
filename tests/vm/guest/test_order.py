"""Who is card0 depends on which driver came first; device ids do not."""

from __future__ import annotations

import glob
import os

from tests.vm.guest.drivers import load, unload_all
from tests.vm.guest.judging import machine
from tests.vm.guest.system import address, write


def cards() -> list[str]:
    """Vendors in the order of their cards."""
    numbers = sorted(int(path.rpartition("card")[2]) for path in glob.glob("/sys/class/drm/card[0-9]"))
    found = {gpu.pci_address: gpu.vendor for gpu in machine().gpus}
    return [found[address(f"card{number}")] for number in numbers]


def ids() -> dict[str, str | None]:
    return {gpu.id: gpu.pci_address for gpu in machine().gpus}


def test_card_numbers_follow_the_order_of_drivers() -> None:
    unload_all()
    load("nvidia", "amdgpu")
    first, named = cards(), ids()
    assert first == sorted(first, reverse=True)
    assert first[0] == "nvidia"
    unload_all()
    load("amdgpu", "nvidia")
    second = cards()
    assert second == sorted(second)
    assert second[0] == "amd"
    assert ids() == named


def test_a_real_driver_takes_its_number_among_them() -> None:
    load("amdgpu", "virtio-gpu", "nvidia")
    found = cards()
    assert found == [*["amd"] * found.count("amd"), "other", *["nvidia"] * found.count("nvidia")]


def test_a_card_bound_again_gets_the_lowest_free_number() -> None:
    unload_all()
    load("nvidia", "amdgpu")
    first = next(gpu for gpu in machine().gpus if gpu.drm and gpu.drm.card == "card0")
    slot = first.pci_address or ""
    write("/sys/bus/pci/drivers/nvidia/unbind", slot)
    assert not os.path.exists("/sys/class/drm/card0")
    (unbound,) = [gpu for gpu in machine().gpus if gpu.pci_address == slot]
    assert unbound.drm is None
    write("/sys/bus/pci/drivers/nvidia/bind", slot)
    (again,) = [gpu for gpu in machine().gpus if gpu.pci_address == slot]
    assert again.drm is not None
    assert again.drm.card == "card0"

"""A GPU without its driver, or with another one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.vm.guest.drivers import load, unload_all
from tests.vm.guest.judging import machine, said_of
from tests.vm.guest.system import BUS, RTX0, RTX1, driver_of, run, write

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def overridden() -> Iterator[None]:
    """Give rtx1 to nobody's driver, as a host does for a virtual machine, and take it back."""
    yield
    write(f"{BUS}/{RTX1}/driver_override", "\n")
    if driver_of(RTX1) is not None:
        write(f"{BUS}/{RTX1}/driver/unbind", RTX1)


def rebind(slot: str, driver: str) -> None:
    """Hand a function to a driver the way `driverctl` does."""
    if driver_of(slot) is not None:
        write(f"{BUS}/{slot}/driver/unbind", slot)
    write(f"{BUS}/{slot}/driver_override", driver)
    write("/sys/bus/pci/drivers_probe", slot)


@pytest.mark.proves("drv.bound_driver", "PASS", on="vm")
def test_each_card_has_its_driver() -> None:
    load()
    assert said_of("drv.bound_driver", RTX0).status == "PASS"


@pytest.mark.proves("drv.bound_driver", "FAIL", on="vm")
def test_a_card_that_was_unbound() -> None:
    load()
    write("/sys/bus/pci/drivers/nvidia/unbind", RTX0)
    verdict = said_of("drv.bound_driver", RTX0)
    assert verdict.status == "FAIL"
    assert verdict.blocks
    assert "sudo modprobe nvidia" in verdict.fix[0].lines
    assert "no driver" in verdict.reason
    assert said_of("drv.bound_driver", RTX1).status == "PASS"
    (gpu,) = [gpu for gpu in machine().gpus if gpu.pci_address == RTX0]
    assert not gpu.usable.cuda
    assert "no driver" in (gpu.facts["usable.cuda"].detail or "")


@pytest.mark.proves("drv.bound_driver", "WARN", on="vm")
def test_a_card_given_to_a_virtual_machine(overridden: None) -> None:
    load()
    run("modprobe", "pci-stub")
    rebind(RTX1, "pci-stub")
    assert driver_of(RTX1) == "pci-stub"
    verdict = said_of("drv.bound_driver", RTX1)
    assert verdict.status == "WARN"
    assert "pci-stub holds it: it was given away" in verdict.reason
    assert "a virtual machine" in verdict.action


def test_an_override_keeps_a_driver_away(overridden: None) -> None:
    load()
    rebind(RTX1, "vfio-pci")
    assert driver_of(RTX1) is None
    verdict = said_of("drv.bound_driver", RTX1)
    assert verdict.status == "WARN"
    assert "given away (driver_override is vfio-pci)" in verdict.reason


def test_no_driver_is_loaded_at_all() -> None:
    unload_all()
    verdict = said_of("drv.bound_driver", RTX0)
    assert verdict.status == "FAIL"
    assert "nvidia is not bound, though nvidia:1 is promised" in verdict.reason

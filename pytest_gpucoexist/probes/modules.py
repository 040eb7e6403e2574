"""Kernel modules as `/sys/module` shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.model.identity import normal_pci_address
from pytest_gpucoexist.model.machine import Driver
from pytest_gpucoexist.probes.attributes import kernel_release, text_or_none
from pytest_gpucoexist.probes.reader import names_in

if TYPE_CHECKING:
    from pytest_gpucoexist.host.base import Host

__all__ = ["bound_addresses", "module_driver", "module_version"]


def bound_addresses(host: Host, driver: str) -> list[str]:
    """Return the PCI functions that a driver holds, as its folder on the bus lists them."""
    names = names_in(host, f"/sys/bus/pci/drivers/{driver}")
    return [address for name in names if (address := normal_pci_address(name)) is not None]


def module_version(host: Host, name: str) -> tuple[str | None, str]:
    """Return (version, source) of a module.

    A module built outside the kernel tree (DKMS) states its own version; one of the kernel is as old as the kernel.
    """
    path = f"/sys/module/{name}/version"
    version = text_or_none(host, path)
    if version is not None:
        return version, path
    release = kernel_release(host)
    return release, "kernel release" if release is not None else path


def module_driver(host: Host, name: str, *, flavour: str | None = None) -> Driver | None:
    """Describe a module that is loaded or built in; None when it is neither."""
    if not host.exists(f"/sys/module/{name}"):
        return None
    version, source = module_version(host, name)
    return Driver(name=name, version=version, flavour=flavour, source=source)

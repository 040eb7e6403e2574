"""Errors of the bus that the kernel itself reports: injected at the port above a card."""

from __future__ import annotations

import os
import struct
import time

import pytest

from tests.vm.guest.drivers import load
from tests.vm.guest.judging import machine, said_of
from tests.vm.guest.system import BUS, RADEON0, RTX0, RTX2, kernel_log, read, run, wait_for

# struct aer_error_inj of drivers/pci/pcie/aer_inject.c: bus, device, function; status of uncorrectable and of
# correctable errors; four words of a header; domain.
ERROR = struct.Struct("<BBBxIIIIIII")
POISONED, RECEIVER_ERROR = 0x1000, 0x1


def inject(port: str, *, uncorrected: int = 0, corrected: int = 0) -> None:
    """Report an error at a port as its hardware would."""
    run("modprobe", "aer_inject")
    domain, bus, rest = port.split(":")
    device, function = rest.split(".")
    message = ERROR.pack(
        int(bus, 16), int(device, 16), int(function), uncorrected, corrected, 0, 1, 2, 3, int(domain, 16)
    )
    file = os.open("/dev/aer_inject", os.O_WRONLY)
    try:
        os.write(file, message)
    finally:
        os.close(file)


def port_above(slot: str) -> str:
    (gpu,) = [gpu for gpu in machine().gpus if gpu.pci_address == slot]
    assert gpu.upstream
    return gpu.upstream[-1]


def total(port: str, kind: str) -> int:
    return int(read(f"{BUS}/{port}/aer_dev_{kind}").split()[-1])


@pytest.mark.proves("pcie.aer_counters", "PASS", on="vm")
def test_no_errors_were_counted() -> None:
    load()
    verdict = said_of("pcie.aer_counters", RTX2)
    assert verdict.status == "PASS", verdict


@pytest.mark.proves("pcie.aer_counters", "FAIL", on="vm")
@pytest.mark.proves("klog.pci.aer", "FAIL", on="vm")
def test_an_uncorrected_error_at_the_port_of_a_card() -> None:
    load()
    port, began = port_above(RADEON0), time.time()
    inject(port, uncorrected=POISONED)
    wait_for(lambda: total(port, "nonfatal") > 0, "the error to be counted")
    wait_for(lambda: "AER" in kernel_log(), "the kernel to speak of it")
    verdict = said_of("pcie.aer_counters", RADEON0)
    assert verdict.status == "FAIL"
    assert f"1 at {port} (TLP 1)" in verdict.reason
    assert "Reseat the card" in verdict.action
    logged = said_of("klog.pci.aer", RADEON0, since_s=began)
    assert logged.status == "FAIL"
    assert "PCIe lost or corrupted a packet and could not repair it" in logged.reason
    assert "in this session" in logged.reason
    assert said_of("pcie.aer_counters", RTX0).status == "PASS"


def test_a_corrected_error_is_no_reason_to_stop() -> None:
    load()
    port = port_above(RTX0)
    before = total(port, "correctable")
    inject(port, corrected=RECEIVER_ERROR)
    wait_for(lambda: total(port, "correctable") > before, "the error to be counted")
    verdict = said_of("pcie.aer_counters", RTX0)
    assert verdict.status == "PASS", verdict

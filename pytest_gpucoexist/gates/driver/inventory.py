"""How many GPUs of each vendor the machine shows, against what was promised."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.asked import VENDOR_NAMES as NAMES
from pytest_gpucoexist.gates.driver.bound import PROMISES
from pytest_gpucoexist.gates.findings import Finding, failed, passed, skipped, unknown
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["inventory"]

_BUS = "/sys/bus/pci/devices"
_VENDORS_OF = {name: (vendor,) for vendor, names in PROMISES.items() for name in names}


@gate(
    "drv.inventory",
    group="driver",
    title="The promised GPUs are on the bus",
    reads="class, vendor and device of every PCI function; what `--gpu-require` promises",
    criterion="as many GPUs of each vendor as were promised",
    why="a card that is badly seated, without power or switched off by the BIOS is simply not there, and tests that "
    "need it skip",
    action="reseat the card, check its power cables and the slot's settings in the BIOS, or correct the promise",
    source="pytorch/pytorch#98036 (a GPU missing from a runner); leptonai/gpud accelerator/nvidia/gpu-counts",
    severity="fail",
    needs_gpu=False,
)
def inventory(subject: Subject) -> Iterator[Finding]:
    """Compare each promise with what is here and granted; without one, tell what is here."""
    counts = {vendor: subject.gpus(vendor) for vendor in NAMES}
    listed = ", ".join(f"{len(gpus)} {NAMES[vendor]}" for vendor, gpus in counts.items() if gpus)
    record = Evidence(source=_BUS, found=listed or "no GPU")
    told = subject.machine.pci_functions is not None or any(counts.values())
    asked = {name: number for name, number in subject.promised.items() if number}
    if not told:
        yield unknown(f"{_BUS} could not be read, so nothing is known about GPUs", record)
        return
    if not asked:
        if listed:
            yield passed(f"{listed} GPU(s) are here; no number was promised", record)
        else:
            yield skipped("no GPU was promised, and none is here")
        return
    for name, number in asked.items():
        vendors = _VENDORS_OF.get(name, tuple(NAMES))
        found = [gpu for vendor in vendors for gpu in counts[vendor]]
        label = f"{NAMES[vendors[0]]} GPU" if len(vendors) == 1 else "GPU"
        evidence = Evidence(source=_BUS, found=f"{len(found)} {label}(s)", expected=f"at least {number}")
        if len(found) < number:
            yield failed(f"{name}:{number} is promised, and {len(found)} {label}(s) are here", evidence)
        else:
            yield passed(f"{name}:{number} is promised, and {len(found)} {label}(s) are here", evidence)

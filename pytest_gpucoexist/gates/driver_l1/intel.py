"""What xpu-smi says of Intel's boards, where it is installed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.gates.findings import Finding, failed, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.identity import normal_pci_address
from pytest_gpucoexist.model.verdicts import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import Gpu

_DISCOVERY = ("xpu-smi", "discovery", "-j")


@gate(
    "drv.intel.state",
    group="driver",
    title="Intel boards are in their normal state",
    reads="xpu-smi discovery -j (device_state) and xpu-smi health -d ID -j (status of each component)",
    criterion="state normal; every component OK, Warning warns",
    why="A board in survivability mode runs nothing but an update of its firmware.",
    action="Survivability mode: flash the firmware again; else reboot, and look at cooling and power",
    source="pytorch/pytorch#197790; intel/xpumanager docs/sphinx/xpu-smi/health.rst",
    vendors=("intel",),
    level="standard",
    severity="fail",
)
def state(subject: Subject) -> Iterator[Finding]:
    """Ask for the list of boards, then for the health of each."""
    listing = _asked(subject, _DISCOVERY)
    if isinstance(listing, Finding):
        yield listing
        return
    entries = listing.get("device_list")
    entries = [each for each in entries if isinstance(each, dict)] if isinstance(entries, list) else []
    by_address = {normal_pci_address(str(each.get("pci_bdf_address"))): each for each in entries}
    for gpu in subject.functions("intel"):
        entry = by_address.get(gpu.pci_address)
        if entry is None:
            yield skipped("xpu-smi does not list it", on=[gpu])
            continue
        yield _judged(subject, gpu, entry)
    if not subject.functions("intel"):
        yield skipped("no Intel GPU with a PCI function here")


def _judged(subject: Subject, gpu: Gpu, entry: dict[str, Any]) -> Finding:
    told = entry.get("device_state")
    evidence = [Evidence(source="xpu-smi discovery: device_state", found=str(told), expected="normal")]
    if told is not None and told != "normal":
        return failed(f"its state is {told!s:.60}", *evidence, on=[gpu])
    health = _asked(subject, ("xpu-smi", "health", "-d", str(entry.get("device_id")), "-j"))
    if isinstance(health, Finding):
        return passed("its state is normal", *evidence, on=[gpu]) if told == "normal" else health
    statuses = {
        name: str(part["status"]) for name, part in health.items() if isinstance(part, dict) and "status" in part
    }
    listed = ", ".join(f"{name} {status}" for name, status in statuses.items())
    evidence.append(Evidence(source="xpu-smi health", found=listed or "nothing", expected="OK"))
    for status, make in (("Critical", failed), ("Warning", warned)):
        bad = [name.replace("_", " ") for name, each in statuses.items() if each == status]
        if bad:
            return make(f"{', '.join(bad)}: {status.lower()}", *evidence, on=[gpu])
    if "OK" in statuses.values() or told == "normal":
        return passed("its state is normal, and no component is in trouble", *evidence, on=[gpu])
    return unknown("xpu-smi knows the state of none of its components", *evidence, on=[gpu])


def _asked(subject: Subject, argv: tuple[str, ...]) -> dict[str, Any] | Finding:
    """Run xpu-smi and understand its JSON, or say why there is none."""
    try:
        done = subject.host.run(argv, timeout_s=subject.deadline_s)
    except OSError:
        return skipped("xpu-smi is not installed")
    words = " ".join(argv)
    if done.timed_out:
        return unknown(f"`{words}` gave no answer within {subject.deadline_s:g} s")
    try:
        data = json.loads(done.stdout)
    except (ValueError, RecursionError):
        return unknown(f"`{words}` printed no JSON (exit status {done.returncode}): {done.stdout[:60]!r}")
    if not isinstance(data, dict):
        return unknown(f"`{words}` printed {data!r:.60}")
    if data.get("error") is not None:
        return unknown(f"`{words}`: {data['error']!s:.120}")
    return data

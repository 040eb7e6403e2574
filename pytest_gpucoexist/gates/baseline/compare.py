"""Whether the machine is still as its baseline says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.baseline.asked import with_libraries
from pytest_gpucoexist.gates.baseline.difference import differences
from pytest_gpucoexist.gates.baseline.order import loaded
from pytest_gpucoexist.gates.baseline.record import baseline_of
from pytest_gpucoexist.gates.findings import Finding, failed, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.baseline.difference import Difference
    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["topo_baseline"]

_SAVE = "gpucoexist baseline save"


@gate(
    "topo.baseline",
    group="baseline",
    title="The machine is as its baseline says",
    reads="the baseline in /var/lib/gpucoexist, or in the user's state folder; what discovery found now; at level"
    " standard what NVML and AMD SMI say, too",
    criterion="the same GPUs with the same drivers, firmware, links, memory and order; what is not known on one side is"
    " left out",
    why="A GPU that is missing after a reboot, a driver that was updated overnight, a link that came up with half of"
    " its lanes: tests that pass or fail otherwise than yesterday have a reason, and this is where to look first.",
    action=f"Find out why; where the change is wanted, save it: {_SAVE}",
    source="amd/node-scraper, --gen-reference-config and compare-runs; facebookresearch/gcm, check_pci manifest",
    level="quick",
    severity="fail",
    needs_gpu=False,
)
def topo_baseline(subject: Subject) -> Iterator[Finding]:
    found = loaded(subject)
    for path, wrong in found.damaged:
        evidence = Evidence(source=path, found=wrong, expected="a baseline of this machine")
        yield unknown(
            f"a baseline cannot be used: {wrong}", evidence, action=f"Save a new one ({_SAVE}), or delete {path}."
        )
    if found.baseline is None:
        if not found.damaged:
            yield skipped(f"no baseline was saved on this machine ({_SAVE})")
        return
    if not subject.machine.pci_functions and any(gpu.vendor_id is not None for gpu in found.baseline.gpus):
        yield unknown("the PCI bus cannot be seen here, so nothing can be compared with the baseline")
        return
    now = baseline_of(subject.host, subject.machine, found.baseline.machine_id)
    if subject.level != "quick":
        now = with_libraries(subject, now)
    changed = [each for each in differences(found.baseline, now) if each.kind != "better"]
    if not changed:
        count = len(found.baseline.gpus)
        evidence = Evidence(source=found.path or "", found=f"{count} GPUs, nothing changed", expected="no difference")
        yield passed("the machine is as its baseline says", evidence)
    for each in changed:
        yield _finding(subject, each, found.path or "")


def _finding(subject: Subject, difference: Difference, path: str) -> Finding:
    gpus = [gpu for gpu in subject.functions() if (gpu.pci_address or gpu.key) == difference.key]
    evidence = Evidence(source=path, found=difference.after or "not there", expected=difference.before or "not there")
    if difference.kind == "missing":
        return failed(difference.words, evidence)
    return warned(difference.words, evidence, on=gpus)

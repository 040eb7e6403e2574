"""Whether GPUs are awake, asleep, or could not be woken. Reading these two files wakes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.findings import Finding, failed, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.pcie.folders import folder
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence
from pytest_gpucoexist.probes.reader import excerpt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import Gpu

_STATUSES = {"active", "suspended", "suspending", "resuming", "unsupported"}
_STATES = {"D0", "D1", "D2", "D3hot", "D3cold", "unknown", "error"}
_SLEEPING = {"suspended", "suspending", "resuming"}


@gate(
    "pwr.runtime_status_first",
    group="power",
    title="Runtime power management works",
    reads="power/runtime_status and power/control of each GPU, before anything that would wake it",
    criterion="active, suspended, or on the way between them",
    why="After an error of suspend or resume the kernel no longer talks to the device.",
    action="Shut down, cut the power for a moment, boot; if it comes back, switch the suspend off (power/control = on)",
    source="NVIDIA nvidia-bug-report.sh (order of reads); Umio-Yasuno/amdgpu_top#90; kernel runtime_pm",
    severity="fail",
)
def runtime_status(subject: Subject) -> Iterator[Finding]:
    """Read the runtime status of each function."""
    some = False
    for gpu, on in _functions(subject):
        some = True
        text = subject.read(f"{folder(subject, gpu)}/power/runtime_status")
        if text.text is None:
            said = f"its runtime status could not be read: {text.detail}"
            yield skipped("this tree has no runtime status", on=on) if text.status == "absent" else unknown(said, on=on)
            continue
        control = subject.read(f"{folder(subject, gpu)}/power/control").text or "not told"
        evidence = Evidence(
            source=text.path, found=f"{excerpt(text.text)[1:-1]}, control {control}", expected="no error"
        )
        if text.text in _STATUSES:
            may = "; the kernel may suspend it when idle" if control == "auto" else ""
            yield passed(f"{text.text}{may}", evidence, on=on)
        elif text.text == "error":
            yield failed("the kernel could not suspend or resume it, and gave up", evidence, on=on)
        else:
            yield unknown(f"its runtime status makes no sense: {excerpt(text.text)}", evidence, on=on)
    if not some:
        yield skipped("no GPU with a PCI function here")


@gate(
    "pwr.power_state",
    group="power",
    title="GPUs that are awake are in D0",
    reads="power_state of each GPU, beside its runtime status",
    criterion="D0, or a deeper state while it sleeps",
    why="A GPU that is stuck in D3 gives all ones for every register: drivers fail to start, or hang.",
    action="Cold boot; keep the GPU awake (amdgpu.runpm=0, NVreg_DynamicPowerManagement=0) or switch ASPM off"
    " (pcie_aspm=off)",
    source="system76/firmware-open#259; kata-containers/kata-containers#11708",
    severity="fail",
)
def power_state(subject: Subject) -> Iterator[Finding]:
    """Compare the power state with the runtime status."""
    some = False
    for gpu, on in _functions(subject):
        some = True
        path = folder(subject, gpu)
        text = subject.read(f"{path}/power_state")
        status = (subject.read(f"{path}/power/runtime_status").text or "").strip()
        if text.text is None:
            said = f"its power state could not be read: {text.detail}"
            absent = text.status == "absent"
            yield skipped("this kernel shows no power state", on=on) if absent else unknown(said, on=on)
            continue
        evidence = Evidence(
            source=text.path, found=f"{excerpt(text.text)[1:-1]} while {status or 'no status is told'}", expected="D0"
        )
        if text.text not in _STATES or text.text == "unknown":
            yield unknown(f"its power state is {excerpt(text.text)}", evidence, on=on)
        elif text.text == "D0":
            yield passed("in D0", evidence, on=on)
        elif status in _SLEEPING:
            yield passed(f"asleep, in {text.text}", evidence, on=on)
        elif gpu.driver is not None and status == "active":
            yield failed(f"stuck in {text.text} although it is awake for the kernel", evidence, on=on)
        else:
            yield warned(f"in {text.text}, and nothing says that it sleeps", evidence, on=on)
    if not some:
        yield skipped("no GPU with a PCI function here")


def _functions(subject: Subject) -> Iterator[tuple[Gpu, list[Gpu]]]:
    for gpu in subject.functions():
        yield gpu, [each for each in subject.gpus() if each.pci_address == gpu.pci_address]

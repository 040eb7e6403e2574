"""What the vendors' management libraries add: NVML and AMD SMI, asked in processes of their own, at the same time.

Nothing here loads a library. A helper that hangs, crashes, is missing or does not fit its driver becomes facts about
the vendor's GPUs: PCI has found those already, and their NVML or AMD SMI fields say what happened.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.model.identity import normal_pci_address
from pytest_gpucoexist.model.machine import Conflict
from pytest_gpucoexist.model.readings import Observation
from pytest_gpucoexist.probes import vendor_amd, vendor_nvidia
from pytest_gpucoexist.probes.cells import failed
from pytest_gpucoexist.probes.modules import bound_addresses
from pytest_gpucoexist.probes.pci import BUS, is_gpu
from pytest_gpucoexist.probes.reader import names_in

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pytest_gpucoexist.host.base import HelperReply, Host
    from pytest_gpucoexist.model.machine import Runtime
    from pytest_gpucoexist.model.readings import Status
    from pytest_gpucoexist.probes.cells import Answer

__all__ = ["HELPERS", "NO_ANSWER", "vendor_observations", "why_not_called"]

HELPERS = {"nvidia": "nvml", "amd": "amdsmi"}
"""The helper that asks a vendor's library; it is also the `source` of the library's facts."""

_READERS = {"nvidia": vendor_nvidia.read_reply, "amd": vendor_amd.read_reply}
_FIELDS = {"nvidia": vendor_nvidia.FIELDS, "amd": vendor_amd.FIELDS}
_PCI_VENDORS = {"nvidia": "0x10de", "amd": "0x1002"}
_DRIVERS = {"nvidia": "nvidia", "amd": "amdgpu"}

_SIGNS = {
    "nvidia": ("/sys/module/nvidia", "/proc/driver/nvidia", "/dev/nvidiactl", "/dev/dxg", "/sys/module/nvgpu"),
    "amd": ("/sys/module/amdgpu", "/sys/class/kfd", "/dev/kfd"),
    "intel": ("/sys/module/i915", "/sys/module/xe"),
}
"""What a loaded driver shows: its module, its nodes (a sandbox may hide `/sys`), the devices of WSL2 and Jetson."""

NO_ANSWER = "no-answer"
"""The kind of a Conflict that says that a library, its subject, hung or crashed."""

_GONE = re.compile(r"no answer within|cannot be killed|was killed by|without an answer")

_NOT_CALLED = {
    "nvidia": "the nvidia driver is not loaded; NVML was not called, since as root it would make nodes in /dev",
    "amd": "the amdgpu driver is not loaded; amdsmi was not called",
    "intel": "neither i915 nor xe is loaded; Level Zero was not called",
}


def why_not_called(host: Host, vendor: str) -> str | None:
    """Say why a vendor's libraries must not be called here: its driver is not loaded. None when they may be.

    Looking must not change the machine: libnvidia-ml makes /dev/nvidiactl and may load the module (run here). A
    recording has its replies, or none; asking it changes nothing, and it need not hold these paths.
    """
    if host.simulated or any(host.exists(sign) for sign in _SIGNS[vendor]):
        return None
    return _NOT_CALLED[vendor]


def vendor_observations(
    host: Host, ask: Collection[str], deadline_s: float
) -> tuple[list[Observation], list[Conflict], list[Runtime]]:
    """Ask the libraries of the vendors in `ask` (`nvidia`, `amd`). Never raises; takes about `deadline_s` at most.

    A library is called only where its driver is loaded.
    An answering library gives one observation for each device that it counts (`probe` is `nvml` or `amdsmi`,
    `partition` None), one more for each MIG instance, and readings for the functions of its driver that it leaves out.
    A device whose handle fails is an observation without address, UUID or readings: it counts, and is a conflict too.
    """
    observations: list[Observation] = []
    conflicts: list[Conflict] = []
    runtimes: list[Runtime] = []
    vendors = []
    for vendor in (vendor for vendor in HELPERS if vendor in ask):
        why = why_not_called(host, vendor)
        if why is None:
            vendors.append(vendor)
        else:
            observations += _without_library(vendor, _functions(host, vendor), "unsupported", why)
    if not vendors:
        return observations, conflicts, runtimes
    replies = host.ask_all([HELPERS[vendor] for vendor in vendors], deadline_s=deadline_s)
    for vendor in vendors:
        answer = _answer(host, vendor, replies.get(HELPERS[vendor]))
        if isinstance(answer, tuple):
            observations += _without_library(vendor, _functions(host, vendor), *answer)
            if answer[0] == "broken" and _GONE.search(answer[1]):
                conflicts.append(_no_answer(vendor, answer[1]))
            continue
        observations += answer.observations
        observations += _left_out(host, vendor, answer)
        conflicts += answer.conflicts
        runtimes += answer.runtimes
    return observations, conflicts, runtimes


def _answer(host: Host, vendor: str, reply: HelperReply | None) -> Answer | tuple[Status, str]:
    if reply is None:
        return "broken", "the helper gave no reply"
    if reply.status != "ok":
        return reply.status, reply.detail or "no reason given"
    try:
        return _READERS[vendor](host, reply.data)
    except ValueError as error:
        return "broken", str(error)


def _without_library(vendor: str, addresses: Sequence[str | None], status: Status, detail: str) -> list[Observation]:
    """Say of each function why its fields could not be asked of the library. Such an observation counts no device.

    Where the bus shows no function, one observation without a device still says what came of asking.
    """
    source = HELPERS[vendor]
    return [
        Observation(
            probe=f"{source}-failure",
            pci_address=address,
            readings=tuple(failed(field, source, status, detail) for field in _FIELDS[vendor]),
        )
        for address in (addresses or (None,))
    ]


def _no_answer(vendor: str, detail: str) -> Conflict:
    """Keep that a library hung or crashed, for those who would ask it again."""
    helper = HELPERS[vendor]
    message = f"{helper} was asked and gave no answer: {detail}"
    return Conflict(subject=helper, kind=NO_ANSWER, message=message, claims={"detail": detail})


def _left_out(host: Host, vendor: str, answer: Answer) -> list[Observation]:
    """Say why functions that the driver holds are missing from an answer: lost, or not granted to this container."""
    known = {observation.pci_address for observation in answer.observations}
    missing = [address for address in bound_addresses(host, _DRIVERS[vendor]) if address not in known]
    if not missing:
        return []
    counted = f"{HELPERS[vendor]} lists {len(answer.faults) + len(known - {None})} GPUs and not this one"
    if not answer.faults:
        return _without_library(vendor, missing, "absent", counted)
    status, detail = answer.faults[0]
    return _without_library(vendor, missing, status, f"{detail} ({counted} by its address)")


def _functions(host: Host, vendor: str) -> list[str]:
    """Addresses of the vendor's GPUs on the PCI bus, whatever driver holds them."""
    found: list[str] = []
    for name in names_in(host, BUS):
        address = normal_pci_address(name)
        try:
            if address is None or host.read_text(f"{BUS}/{name}/vendor") != _PCI_VENDORS[vendor]:
                continue
            if is_gpu(host.read_text(f"{BUS}/{name}/class"), _PCI_VENDORS[vendor]):
                found.append(address)
        except OSError:
            continue
    return found

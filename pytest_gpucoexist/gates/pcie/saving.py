"""Power saving of PCIe links."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.findings import Finding, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.pcie.folders import folder
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence, Fix
from pytest_gpucoexist.probes.reader import excerpt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["aspm", "policy_of"]

_POLICY = "/sys/module/pcie_aspm/parameters/policy"
_POLICIES = ("default", "performance", "powersave", "powersupersave")
_SAVING = {"powersave", "powersupersave"}


def policy_of(text: str) -> str | None:
    """Return the policy that is in force: `[default] performance powersave powersupersave`. None: no such line."""
    names = text.split()
    if tuple(name.strip("[]") for name in names) != _POLICIES:
        return None
    chosen = [match[1] for name in names if (match := re.fullmatch(r"\[(\w+)\]", name))]
    return chosen[0] if len(chosen) == 1 else None


@gate(
    "pcie.aspm",
    group="pcie-link",
    title="Links are not put to sleep at any cost",
    reads=f"{_POLICY}; link/l1_aspm of each GPU",
    criterion="the policy is not powersave or powersupersave",
    why="With L1 forced on, some boards answer too late after a pause: completion timeouts, and a GPU that falls off"
    " the bus.",
    action="Choose the firmware's own setting or performance; it can be changed while the machine runs.",
    source="olafkfreund/nixos_config PR#1824; local-inference-lab/rtx6kpro PR#88",
    level="quick",
)
def aspm(subject: Subject) -> Iterator[Finding]:
    text = subject.read(_POLICY)
    if text.text is None:
        if text.status == "absent" and subject.host.covers(_POLICY):
            yield skipped("this kernel does not manage the power saving of PCIe links")
        else:
            yield unknown(f"{_POLICY} cannot be read: {text.detail}")
        return
    policy = policy_of(text.text)
    if policy is None:
        shown = Evidence(source=_POLICY, found=excerpt(text.text), expected=f"one of {', '.join(_POLICIES)}")
        yield unknown("the policy makes no sense", shown)
        return
    states = [subject.read(f"{folder(subject, gpu)}/link/l1_aspm") for gpu in subject.functions()]
    evidence = [Evidence(source=_POLICY, found=policy, expected="default or performance")]
    evidence += [Evidence(source=state.path, found=state.text.strip()) for state in states if state.text is not None]
    if policy not in _SAVING:
        yield passed(f"the policy is {policy}", *evidence)
        return
    fix = [
        Fix(lines=("pcie_aspm.policy=default",), path="/etc/default/grub (GRUB_CMDLINE_LINUX), or your boot loader's"),
        Fix(lines=(f"echo default | sudo tee {_POLICY}",)),
    ]
    yield warned(f"the policy is {policy}: links sleep whenever they can", *evidence, fix=fix)

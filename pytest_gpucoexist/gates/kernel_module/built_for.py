"""Whether a driver's module can be loaded into the running kernel: built for it, and signed where that is asked."""

from __future__ import annotations

import errno
import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.findings import Finding, failed, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.kernel_module.ondisk import module_info, module_tree, release
from pytest_gpucoexist.gates.kernel_module.state import is_in, module_state
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence
from pytest_gpucoexist.probes.reader import Bad, reason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import Gpu

__all__ = ["secure_boot", "vermagic"]

_MODULES = {"nvidia": ("nvidia", "nvidia_uvm"), "amd": ("amdgpu",), "intel": ("i915", "xe")}
_SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
_LOCKDOWN = "/sys/kernel/security/lockdown"


def _wanted_modules(subject: Subject) -> Iterator[tuple[str, str, list[Gpu]]]:
    """Yield (module, why it is wanted, its GPUs); of Intel's two drivers the one that holds a GPU, else i915."""
    for vendor, names in _MODULES.items():
        gpus = subject.functions(vendor)
        why = subject.wanted(vendor)
        if not gpus or why is None:
            continue
        if vendor == "intel":
            held = tuple(name for name in names if any(gpu.driver == name for gpu in gpus))
            names = held or names[:1]  # noqa: PLW2901
        for name in names:
            yield name, why, gpus


@gate(
    "kmod.vermagic",
    group="kernel-module",
    title="The drivers' modules are built for the running kernel",
    reads="/lib/modules of the running kernel: modules.dep, and `vermagic` in each driver's file",
    criterion="each wanted driver has a file there, built for exactly this kernel",
    why="after a kernel update the driver is missing or cannot be loaded; what is loaded on demand (nvidia_uvm) fails "
    "in the middle of a session",
    action="reboot into the newest kernel, or rebuild the driver for the running one",
    source="negativo17/nvidia-driver#97",
    severity="fail",
)
def vermagic(subject: Subject) -> Iterator[Finding]:
    """Judge the file of each wanted driver."""
    modules = list(_wanted_modules(subject))
    if not modules:
        yield skipped("nothing here asks for the GPUs that are here")
        return
    tree = module_tree(subject)
    if isinstance(tree, Bad):
        yield _no_tree(subject, tree)
        return
    kernel = release(subject)
    for name, why, gpus in modules:
        info = module_info(subject, name)
        loaded = is_in(module_state(subject, name))
        if isinstance(info, Bad):
            yield _no_file(name, info, why, gpus, loaded=loaded)
        elif info.built_for is None:
            yield unknown(f"{info.path} does not say for which kernel it was built", on=gpus)
        else:
            evidence = Evidence(source=info.source, found=info.built_for, expected=kernel)
            if info.built_for == kernel:
                yield passed(f"{name} is built for {kernel}", evidence, on=gpus)
            elif "/weak-updates/" in info.path:
                # weak-modules(8) of RHEL and SUSE links modules whose symbols fit the running kernel's interface.
                words = f"{name} is built for {info.built_for}; it was linked into {kernel} because its symbols fit"
                yield passed(words, evidence, on=gpus)
            elif loaded:
                yield warned(f"the file of {name} is built for {info.built_for}, not {kernel}", evidence, on=gpus)
            else:
                words = f"{name} is built for {info.built_for} and cannot be loaded into {kernel}, though {why}"
                yield failed(words, evidence, on=gpus)


def _no_tree(subject: Subject, why: Bad) -> Finding:
    if why.status == "unsupported":
        return skipped(why.detail)
    kernel = release(subject)
    others = [name for name in subject.names("/lib/modules") if name != kernel]
    if why.status == "absent" and kernel is not None and others and kernel not in subject.names("/lib/modules"):
        return warned(
            f"the modules of the running kernel {kernel} are gone from the disk: nothing more can be loaded",
            Evidence(source="/lib/modules", found=", ".join(others[:6]), expected=kernel),
            action="the kernel was updated: reboot",
        )
    return unknown(f"the modules of the running kernel are not known: {why.detail}")


def _no_file(name: str, info: Bad, why: str, gpus: list[Gpu], *, loaded: bool) -> Finding:
    if info.status == "unsupported":
        return skipped(info.detail, on=gpus)
    if info.status != "absent":
        return unknown(f"the file of {name} is not known: {info.detail}", on=gpus)
    evidence = Evidence(source="modules.dep", found=info.detail, expected=f"a file of {name}")
    if loaded:
        return warned(f"{name} is loaded, but the disk has no file of it for the running kernel", evidence, on=gpus)
    return failed(f"the running kernel has no module {name}, though {why}", evidence, on=gpus)


@gate(
    "kmod.secureboot",
    group="kernel-module",
    title="Secure Boot lets the drivers in",
    reads="the firmware's variable SecureBoot; the signature at the end of each driver's file; "
    "/sys/kernel/security/lockdown",
    criterion="Secure Boot is off, or each wanted driver is loaded or signed",
    why="with Secure Boot the kernel refuses a module that DKMS built without a signature",
    action="enrol the key that signs DKMS's modules (mokutil --import), or switch Secure Boot off",
    source="acidanthera/bugtracker#2237; canonical/checkbox contrib/pc-sanity/bin/gpu_driver_signed.py",
)
def secure_boot(subject: Subject) -> Iterator[Finding]:
    """Judge the wanted drivers where Secure Boot is on."""
    state = _secure_boot(subject)
    modules = list(_wanted_modules(subject))
    if isinstance(state, Bad) and not modules:
        yield skipped("nothing here asks for the GPUs that are here")
        return
    if isinstance(state, Bad):
        yield skipped(state.detail) if state.status == "unsupported" else unknown(state.detail)
        return
    evidence = [Evidence(source=f"{_SECURE_BOOT}, byte 4", found=str(int(state)))]
    text = subject.read(_LOCKDOWN, 256).text
    mode = re.search(r"\[(\w+)\]", text or "")
    if mode is not None:
        evidence.append(Evidence(source=_LOCKDOWN, found=mode[1]))
    if not state:
        yield passed("Secure Boot is off", *evidence)
        return
    if not modules:
        yield passed("Secure Boot is on, and nothing here asks for the GPUs that are here", *evidence)
    for name, why, gpus in modules:
        current = module_state(subject, name)
        if is_in(current):
            yield passed(f"Secure Boot is on, and {name} is loaded", *evidence, on=gpus)
            continue
        info = module_info(subject, name)
        if isinstance(info, Bad) or info.signed is None:
            detail = info.detail if isinstance(info, Bad) else "nothing says"
            words = f"Secure Boot is on; whether {name} is signed is not known: {detail}"
            level = isinstance(info, Bad) and info.status == "unsupported"
            yield skipped(words, on=gpus) if level else unknown(words, on=gpus)
        elif info.signed:
            by = info.fields.get("signer")
            yield passed(f"Secure Boot is on, and {name} is signed{f' by {by}' if by else ''}", *evidence, on=gpus)
        else:
            found = Evidence(source=info.source, found="no signature", expected="a signature")
            words = f"Secure Boot is on, {name} is not signed and not loaded, though {why}"
            yield warned(words, *evidence, found, on=gpus)


def _secure_boot(subject: Subject) -> bool | Bad:
    """Read the variable: four bytes of attributes, then 0 or 1 (UEFI specification, global variables)."""
    try:
        data = subject.host.read_bytes(_SECURE_BOOT, 16)
    except OSError as error:
        if subject.host.exists("/sys/firmware/efi/efivars"):
            return Bad(
                f"Secure Boot is not known: {reason(error)}", "unsupported" if error.errno == errno.ENOENT else "broken"
            )
        if subject.host.simulated and not subject.host.covers("/sys/firmware"):
            return Bad("Secure Boot is not known: the firmware's variables are not here")
        return Bad("not booted by UEFI, or its variables are not shown here", "unsupported")
    if len(data) != 5 or data[4] > 1:
        return Bad(f"{_SECURE_BOOT} makes no sense: {data.hex()}")
    return data[4] == 1

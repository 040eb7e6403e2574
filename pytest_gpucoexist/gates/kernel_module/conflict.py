"""Lines for modprobe and the kernel that contradict what is loaded, or keep out what is needed.

A `blacklist` line only drops the module's aliases: it still loads by name, as a dependency, and from an initramfs that
was built before. `install X /bin/false`, `alias X off` and `module_blacklist=` keep it out for good.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.asked import VENDOR_NAMES
from pytest_gpucoexist.gates.findings import Finding, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.kernel_module.advice import keep_out, let_in, rebuild_initramfs
from pytest_gpucoexist.gates.kernel_module.cmdline import CMDLINE, values
from pytest_gpucoexist.gates.kernel_module.ondisk import module_tree
from pytest_gpucoexist.gates.kernel_module.rules import Block, in_container, module_rules
from pytest_gpucoexist.gates.kernel_module.state import is_in, module_state
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence
from pytest_gpucoexist.probes.reader import Bad

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.kernel_module.rules import ModuleRules
    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.machine import Gpu

__all__ = ["blacklist_conflict"]

_NEEDED = {"nvidia": ("nvidia", "nvidia_uvm"), "amd": ("amdgpu",), "intel": ("i915", "xe")}
_RIVALS = ("nouveau", "nova_core")
_HOW = {
    "kernel": "the kernel refuses it whoever loads it",
    "modprobe": "modprobe refuses it, by name too",
    "alias": "it no longer loads by itself",
    "initramfs": "it no longer loads by itself in the initramfs",
}


@gate(
    "kmod.blacklist_conflict",
    group="kernel-module",
    title="What keeps modules out agrees with the drivers that are needed",
    reads="blacklist, install, alias and options lines of modprobe.d in modprobe's order; module_blacklist=, "
    "modprobe.blacklist=, rd.driver.blacklist=, nomodeset and MODULE.modeset= on the kernel's command line",
    criterion="no line keeps a needed driver out or contradicts what is loaded; beside nvidia nouveau is kept out",
    why="the driver is missing after the next boot, or the wrong one wins the race for the card",
    action="remove or add the line, rebuild the initramfs and reboot",
    source="NVIDIA/open-gpu-kernel-modules README and its message on a failed probe; modprobe.d(5)",
)
def blacklist_conflict(subject: Subject) -> Iterator[Finding]:
    """Judge, for each vendor that somebody wants here, the lines about its driver and about its rivals."""
    rules = module_rules(subject)
    asked = False
    for vendor in _NEEDED:
        gpus = subject.functions(vendor)
        wanted = subject.wanted(vendor)
        if not gpus or wanted is None:
            continue
        asked = True
        found = [*_kept_out(subject, rules, vendor, gpus), *_without_modeset(rules, vendor, gpus)]
        if vendor == "nvidia":
            found += _rivals(subject, rules, gpus)
        yield from found
        if not found:
            yield _nothing_found(subject, rules, vendor, gpus)
    if not asked:
        yield skipped("nothing here asks for the GPUs that are here")


def _nothing_found(subject: Subject, rules: ModuleRules, vendor: str, gpus: list[Gpu]) -> Finding:
    container = in_container(subject)
    missing = rules.cmdline_unread if container is not None else rules.unread
    if missing is not None:
        return unknown(f"what keeps modules out is not known: {missing}", on=gpus)
    words = f"no line keeps {VENDOR_NAMES[vendor]}'s driver out"
    evidence = [Evidence(source=CMDLINE, found=f"{len(rules.arguments)} argument(s), none about it")]
    if container is not None:
        words += " on the kernel's command line; modprobe.d is the host's"
    else:
        evidence.append(Evidence(source="modprobe.d", found=f"{len(rules.directives)} line(s), none against it"))
    return passed(words, *evidence, on=gpus)


def _kept_out(subject: Subject, rules: ModuleRules, vendor: str, gpus: list[Gpu]) -> Iterator[Finding]:
    """Find lines against the vendor's own driver."""
    states = {name: module_state(subject, name) for name in _NEEDED[vendor]}
    holding = {gpu.driver for gpu in gpus}
    for name in _NEEDED[vendor]:
        blocks = rules.blocks(name)
        if not blocks or (vendor == "intel" and name not in holding and holding & set(_NEEDED[vendor])):
            continue  # Intel's other driver holds every GPU: to keep this one out is right
        block, state = blocks[0], states[name]
        lines = _lines(blocks)
        if is_in(state) or name in holding:
            yield warned(
                f"{name} is loaded although {block.where} says `{block.text}`: it came by name, as a dependency or "
                "from an older initramfs, and may be missing after a reboot",
                *lines,
                on=gpus,
                fix=let_in(subject, block),
            )
        elif state == "absent":
            yield warned(
                f"{name} is kept out: {block.where} says `{block.text}`, so {_HOW[block.strength]}",
                *lines,
                on=gpus,
                fix=let_in(subject, block),
            )
        else:
            detail = state.detail if isinstance(state, Bad) else state
            yield unknown(f"{block.where} says `{block.text}`; whether {name} is loaded is not known: {detail}", *lines)


def _without_modeset(rules: ModuleRules, vendor: str, gpus: list[Gpu]) -> Iterator[Finding]:
    """Find `nomodeset` and `modeset=0`, with which the kernel's own DRM drivers load and do nothing."""
    if vendor == "nvidia" or any(gpu.driver in _NEEDED[vendor] for gpu in gpus):
        return
    if values(rules.arguments, "nomodeset"):
        evidence = Evidence(source=CMDLINE, found="nomodeset", expected="no such argument")
        names = " or ".join(_NEEDED[vendor])
        yield warned(f"the kernel was booted with nomodeset, with which {names} drives no GPU", evidence, on=gpus)
    for name in _NEEDED[vendor]:
        setting = rules.settings(name).get("modeset")
        if setting is not None and setting.value == "0":
            evidence = Evidence(source=setting.where, found=f"{name} modeset=0", expected="no such line")
            yield warned(f"{setting.where} sets modeset=0 for {name}: it takes no GPU", evidence, on=gpus)


def _rivals(subject: Subject, rules: ModuleRules, gpus: list[Gpu]) -> Iterator[Finding]:
    """Judge nouveau and nova_core where nvidia holds a card."""
    held = [gpu for gpu in gpus if gpu.driver == "nvidia"]
    holding = {(gpu.driver or "").lower().replace("-", "_") for gpu in gpus}
    tree = module_tree(subject)
    for name in _RIVALS:
        state = module_state(subject, name)
        blocks = rules.blocks(name)
        setting = rules.settings(name).get("modeset")
        disabled = setting is not None and setting.value == "0"
        holds = name in holding or name.replace("_", "") in holding
        if blocks and (holds or state == "live"):
            yield warned(
                f"{name} {'holds a card' if holds else 'is loaded'} although {blocks[0].where} says "
                f"`{blocks[0].text}`: it came by name, or from an initramfs that was built before",
                *_lines(blocks),
                on=gpus,
                fix=(rebuild_initramfs(subject),),
            )
        if holds:
            continue
        if not held or disabled or any(block.strength != "initramfs" for block in blocks):
            continue
        if rules.files_unread is not None:
            continue
        if isinstance(tree, Bad):
            if name == _RIVALS[0]:
                yield unknown(
                    f"no line keeps {name} out; whether this kernel has it is not known: {tree.detail}", on=held
                )
            continue
        if name not in tree.files:
            continue
        only = f"only the initramfs keeps it out ({blocks[0].text})" if blocks else "no line keeps it out"
        yield warned(
            f"{name} may take the NVIDIA card at the next boot: this kernel has it, and {only}",
            Evidence(source=tree.files[name], found="there", expected=f"a line `blacklist {name}`"),
            *_lines(blocks),
            on=held,
            fix=keep_out(subject, name),
        )


def _lines(blocks: list[Block]) -> list[Evidence]:
    return [Evidence(source=block.where, found=block.text) for block in blocks[:4]]

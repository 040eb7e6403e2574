"""What this system tells modprobe and the kernel about modules: files of modprobe.d and the command line, as one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pytest_gpucoexist.gates.kernel_module.cmdline import (
    CMDLINE,
    Argument,
    blacklists,
    module_options,
    parse_cmdline,
)
from pytest_gpucoexist.gates.kernel_module.modprobe import (
    FOLDERS,
    Directive,
    effective_files,
    module_name,
    option_pairs,
    parse_file,
    refuses,
)
from pytest_gpucoexist.probes.container import container_evidence

if TYPE_CHECKING:
    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["Block", "ModuleRules", "Setting", "in_container", "module_rules"]

Strength = Literal["kernel", "modprobe", "alias", "initramfs"]
"""Who keeps the module out. `kernel`: always. `modprobe`: every load by modprobe, by name or as a dependency. `alias`:
only the load that a device's appearance causes. `initramfs`: like `alias`, before the root file system is mounted."""

_STRENGTHS: dict[str, Strength] = {
    "module_blacklist": "kernel",
    "modprobe.blacklist": "alias",
    "rd.driver.blacklist": "initramfs",
    "rdblacklist": "initramfs",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One line that keeps a module out: its text, and where it stands."""

    module: str
    strength: Strength
    text: str
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A module's parameter as a line asks for it."""

    value: str
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRules:
    """All rules. `files_unread` and `cmdline_unread` say why a part is missing; None when it was read.

    `unreadable` are single files that could not be read: what they say is not known.
    """

    directives: tuple[Directive, ...] = ()
    arguments: tuple[Argument, ...] = ()
    files_unread: str | None = None
    cmdline_unread: str | None = None
    unreadable: tuple[str, ...] = ()

    @property
    def unread(self) -> str | None:
        """Say which part could not be read; None when nothing is missing."""
        parts = [self.files_unread, self.cmdline_unread, *(f"{path} cannot be read" for path in self.unreadable)]
        return "; ".join(filter(None, parts)) or None

    def blocks(self, module: str) -> list[Block]:
        """Return what keeps a module out, the hardest first."""
        name = module_name(module)
        found = [
            Block(module=name, strength=_STRENGTHS[argument], text=f"{argument}={name}", where=CMDLINE)
            for argument, each in blacklists(self.arguments)
            if each == name
        ]
        for line in self.directives:
            strength: Strength | None = None
            if line.module == name and line.command == "blacklist":
                strength = "alias"
            elif line.module == name and (
                refuses(line) or (line.command == "alias" and line.value.split()[0] in {"off", "/dev/null"})
            ):
                strength = "modprobe"
            if strength is not None:
                found.append(Block(module=name, strength=strength, text=line.text, where=line.where))
        order = ("kernel", "modprobe", "alias", "initramfs")
        return sorted(found, key=lambda block: order.index(block.strength))

    def settings(self, module: str) -> dict[str, Setting]:
        """Return the parameters that are asked for: of several lines the last one, and the command line after files."""
        name = module_name(module)
        found: dict[str, Setting] = {}
        for line in self.directives:
            if line.command == "options" and line.module == name:
                pairs = option_pairs(line.value)
                found.update({key: Setting(value=value, where=line.where) for key, value in pairs.items()})
        given = module_options(self.arguments, name)
        found.update({key: Setting(value=value, where=CMDLINE) for key, value in given.items()})
        return found


def in_container(subject: Subject) -> str | None:
    """Return what shows that this is a container: its files of /etc and /lib/modules do not govern the kernel."""
    return subject.shared(("kernel_module", "container"), lambda: container_evidence(subject.host))


def module_rules(subject: Subject) -> ModuleRules:
    """Read everything once for all gates."""
    return subject.shared(("kernel_module", "rules"), lambda: _read(subject))


def _read(subject: Subject) -> ModuleRules:
    cmdline = subject.read(CMDLINE)
    arguments = parse_cmdline(cmdline.text) if cmdline.text is not None else ()
    cmdline_unread = None if cmdline.text is not None else f"{CMDLINE}: {cmdline.detail}"
    container = in_container(subject)
    folders = {folder: subject.names(folder) for folder in FOLDERS}
    unread: str | None = None
    if container is not None:
        unread = f"modprobe.d of a container ({container}) says nothing about the host's kernel"
    elif not any(folders.values()) and not subject.host.covers(FOLDERS[0]):
        unread = "modprobe.d is not here"
    if unread is not None:
        return ModuleRules(arguments=arguments, cmdline_unread=cmdline_unread, files_unread=unread)
    directives: list[Directive] = []
    unreadable: list[str] = []
    for path in effective_files(folders):
        text = subject.read(path, 1 << 20)
        if text.text is None:
            unreadable.append(path)
        else:
            directives += parse_file(text.text, path)
    return ModuleRules(
        directives=tuple(directives),
        arguments=arguments,
        cmdline_unread=cmdline_unread,
        unreadable=tuple(unreadable),
    )

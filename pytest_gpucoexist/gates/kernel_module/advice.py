"""Lines that a person can add to modprobe.d or run, in the words of the distribution."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.kernel_module.cmdline import CMDLINE
from pytest_gpucoexist.model.verdicts import Fix

if TYPE_CHECKING:
    from pytest_gpucoexist.gates.kernel_module.rules import Block
    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["FORCED_OUT", "keep_out", "let_in", "rebuild_initramfs"]

FORCED_OUT = {
    "nouveau": Fix(
        path="/etc/modprobe.d/blacklist-nouveau.conf", lines=("blacklist nouveau", "options nouveau modeset=0")
    ),
    "nova_core": Fix(path="/etc/modprobe.d/blacklist-nova.conf", lines=("blacklist nova_core", "blacklist nova_drm")),
}

_REBUILD = (
    ({"debian", "ubuntu", "linuxmint", "pop", "raspbian", "kali"}, "sudo update-initramfs -u"),
    ({"fedora", "rhel", "centos", "rocky", "almalinux", "ol", "suse", "opensuse", "sles"}, "sudo dracut --force"),
    ({"arch", "manjaro", "endeavouros"}, "sudo mkinitcpio -P"),
)


def keep_out(subject: Subject, module: str) -> tuple[Fix, ...]:
    """Return the lines that keep a module from loading by itself, and the rebuild that makes them count at boot."""
    fix = FORCED_OUT.get(module) or Fix(path=f"/etc/modprobe.d/blacklist-{module}.conf", lines=(f"blacklist {module}",))
    return (fix, rebuild_initramfs(subject))


def let_in(subject: Subject, block: Block) -> tuple[Fix, ...]:
    """Return what takes back the line that keeps a module out."""
    if block.where == CMDLINE:
        words = f"# remove {block.text} from the boot loader's kernel arguments"
        return (Fix(lines=(words, "sudo reboot")),)
    path, _, line = block.where.rpartition(":")
    return (Fix(lines=(f"sudo sed -i '{line}s/^/# /' {path}",)), rebuild_initramfs(subject))


def rebuild_initramfs(subject: Subject) -> Fix:
    """Return the command that rebuilds the initramfs here, by the ids in /etc/os-release; then reboot."""
    text = subject.read("/etc/os-release").text or ""
    ids = {
        word
        for match in re.finditer(r"^ID(?:_LIKE)?=(.*)$", text, re.MULTILINE)
        for word in match[1].strip("\"' ").split()
    }
    ids |= {word.partition("-")[0] for word in ids}
    for names, command in _REBUILD:
        if ids & names:
            return Fix(lines=(command, "sudo reboot"))
    return Fix(lines=("# rebuild the initramfs with the tool of this distribution", "sudo reboot"))

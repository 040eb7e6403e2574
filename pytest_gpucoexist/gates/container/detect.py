"""What kind of place this is: bare metal, a virtual machine, a container, WSL."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.container.place import container_of, is_rootless, runtime_of

if TYPE_CHECKING:
    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["place_words"]

_FLAGS = re.compile(r"^flags\s*:.*\bhypervisor\b", re.MULTILINE)


def place_words(subject: Subject) -> str | None:
    """Say in words where this process runs: `a container (docker) in a virtual machine (QEMU)`; None on bare metal.

    None, too, where nothing tells: in a container a subset of the GPUs is right, in a guest links are the hypervisor's,
    and gates that this concerns look for themselves.
    """
    words: list[str] = []
    if container_of(subject) is not None:
        words.append(f"a container ({runtime_of(subject)})" + (" in a user namespace" if is_rootless(subject) else ""))
    if subject.host.exists("/dev/dxg"):
        words.append("WSL2")
    elif _FLAGS.search(subject.read("/proc/cpuinfo").text or ""):
        vendor = (subject.read("/sys/class/dmi/id/sys_vendor").text or "").strip()
        words.append("a virtual machine" + (f" ({vendor})" if vendor.isprintable() and vendor else ""))
    return " in ".join(words) or None

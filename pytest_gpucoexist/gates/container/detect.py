"""What kind of place this is: bare metal, a virtual machine, a container, WSL."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.container.place import container_of, is_rootless, runtime_of
from pytest_gpucoexist.gates.findings import Finding, passed, unknown
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["detect"]

_FLAGS = re.compile(r"^flags\s*:.*\bhypervisor\b", re.MULTILINE)


@gate(
    "ctr.detect",
    group="container",
    severity="info",
    needs_gpu=False,
    title="What kind of place this is",
    reads="/.dockerenv, /run/.containerenv, /proc/*/cgroup, /proc/self/uid_map, the flag hypervisor in "
    "/proc/cpuinfo, /dev/dxg",
    criterion="it can be told whether this is a container, a virtual machine, or neither",
    why="in a container a subset of the GPUs is right, and in a virtual machine links and ACS are the hypervisor's",
    action="nothing to do; where it cannot be told, /proc is hidden from this process",
    source="leptonai/gpud components/pci (virtual machines are skipped)",
)
def detect(subject: Subject) -> Iterator[Finding]:
    """Record where this process runs."""
    rows: list[Evidence] = []
    words: list[str] = []
    evidence = container_of(subject)
    if evidence is not None:
        rootless = is_rootless(subject)
        words.append(f"a container ({runtime_of(subject)})" + (" in a user namespace" if rootless else ""))
        rows.append(Evidence(source=evidence.partition(": ")[0], found=evidence))
    processor = subject.read("/proc/cpuinfo")
    if subject.host.exists("/dev/dxg"):
        words.append("WSL2")
        rows.append(Evidence(source="/dev/dxg", found="is there"))
    elif processor.text is not None and _FLAGS.search(processor.text):
        vendor = (subject.read("/sys/class/dmi/id/sys_vendor").text or "").strip()
        words.append("a virtual machine" + (f" ({vendor})" if vendor.isprintable() and vendor else ""))
        rows.append(Evidence(source="/proc/cpuinfo", found="flag hypervisor"))
    if words:
        yield passed(f"this is {' in '.join(words)}", *rows)
        return
    group = subject.read("/proc/1/cgroup")
    if group.text is None and processor.text is None:
        yield unknown(
            "neither /proc/1/cgroup nor /proc/cpuinfo can be read, so a container or a virtual machine would not show",
            Evidence(source=group.path, found=group.detail or group.status),
            Evidence(source=processor.path, found=processor.detail or processor.status),
        )
        return
    yield passed(
        "nothing shows a container or a virtual machine", Evidence(source="/proc/cpuinfo", found="no hypervisor")
    )

"""Parsers of what sysfs and procfs print. None raises: what makes no sense is a Bad that quotes the text.

Sources: the kernel's Documentation/ABI/testing/sysfs-bus-pci, drivers/pci/pci-sysfs.c and drivers/pci/probe.c
(`pci_speed_string`), lib/bitmap-str.c for masks and lists.
"""

from __future__ import annotations

import re

from pytest_gpucoexist.probes.reader import Bad, excerpt

__all__ = [
    "cpulist_of_mask",
    "cpus_of_list",
    "hex_id",
    "link_speed",
    "link_width",
    "list_of_cpus",
    "local_cpulist",
    "named_values",
    "numa_node",
    "number",
    "pci_class",
    "runtime_status",
    "uevent_class",
    "word",
]

_ID = re.compile(r"(?:0x)?([0-9a-fA-F]{4})")
_CLASS = re.compile(r"0x([0-9a-fA-F]{6})")
_RUNTIME_STATES = {"active", "error", "resuming", "suspended", "suspending", "unsupported"}
_DECIMAL = re.compile(r"-?[0-9]{1,20}")
_SPEED = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,2})?) ?GT/s(?: PCIe)?")
_CPULIST = re.compile(r"[0-9]{1,6}(?:-[0-9]{1,6})?(?:,[0-9]{1,6}(?:-[0-9]{1,6})?)*")
_CPUMASK = re.compile(r"[0-9a-fA-F]{1,16}(?:,[0-9a-fA-F]{1,8})*")
_WORD = re.compile(r"[\w.:+-]{1,64}", re.ASCII)

MAX_CPUS = 1 << 16
"""More than any kernel is built for (NR_CPUS is at most 8192): a list beyond it is garbage."""


def hex_id(text: str) -> str | Bad:
    """Read a 16-bit PCI id: `0x10de`, in uevent `10DE`. Fewer digits are a text that was cut off."""
    match = _ID.fullmatch(text.strip())
    if match is None:
        return Bad(f"not a PCI id: {excerpt(text)}")
    value = int(match[1], 16)
    return Bad("0xffff: the function does not answer") if value == 0xFFFF else f"0x{value:04x}"


def pci_class(text: str) -> str | Bad:
    """Read a 24-bit PCI class code: `0x030000`."""
    match = _CLASS.fullmatch(text.strip())
    return Bad(f"not a PCI class: {excerpt(text)}") if match is None else f"0x{int(match[1], 16):06x}"


def uevent_class(text: str) -> str | Bad:
    """Read the class code as uevent prints it, without zeros in front: `30000`."""
    return pci_class(f"0x{text.strip().zfill(6)}")


def runtime_status(text: str) -> str | Bad:
    """Read a runtime power state; the kernel knows six (drivers/base/power/sysfs.c)."""
    text = text.strip()
    return text if text in _RUNTIME_STATES else Bad(f"not a runtime power state: {excerpt(text)}")


def number(text: str, *, low: int = 0, high: int = (1 << 64) - 1) -> int | Bad:
    """Read a decimal number between two bounds."""
    digits = text.strip()
    if _DECIMAL.fullmatch(digits) is None:
        return Bad(f"not a number: {excerpt(text)}")
    value = int(digits)
    if not low <= value <= high:
        return Bad(f"out of range: {excerpt(text)}")
    return value


def word(text: str) -> str | Bad:
    """Read one word, such as a driver's name."""
    text = text.strip()
    return text if _WORD.fullmatch(text) else Bad(f"not a word: {excerpt(text)}")


def numa_node(text: str) -> int | Bad:
    """Read a NUMA node; -1 means that the firmware does not name one."""
    value = number(text, low=-1, high=1023)  # MAX_NUMNODES is at most 1024
    if value == -1:
        return Bad("-1: the firmware does not say which node", "unsupported")
    return value


def link_speed(text: str) -> float | Bad:
    """Read a transfer rate in GT/s: `16.0 GT/s PCIe`, `8 GT/s`, `Unknown`."""
    text = text.strip()
    if text.startswith("Unknown"):
        return Bad(f"the kernel prints {excerpt(text)}", "unsupported")
    match = _SPEED.fullmatch(text)
    if match is None or not 0 < float(match[1]) <= 256:
        return Bad(f"not a link speed: {excerpt(text)}")
    return float(match[1])


def link_width(text: str) -> int | Bad:
    """Read a number of lanes: 0 is no link; all ones (63, 255) is a function that does not answer."""
    value = number(text, high=255)
    if isinstance(value, int) and value > 32:
        return Bad(f"{value} lanes: the register reads all ones, the function does not answer")
    return value


def cpus_of_list(text: str) -> tuple[int, ...] | Bad:
    """Expand `0-3,8`. An empty text is an empty list, as for a NUMA node without CPUs."""
    text = text.strip()
    if not text:
        return ()
    if _CPULIST.fullmatch(text) is None:
        return Bad(f"not a CPU list: {excerpt(text)}")
    cpus: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        start, end = int(first), int(last or first)
        if not start <= end < MAX_CPUS:
            return Bad(f"not a CPU list: {excerpt(text)}")
        cpus.update(range(start, end + 1))
    return tuple(sorted(cpus))


def list_of_cpus(cpus: tuple[int, ...]) -> str:
    """Write CPUs the way the kernel writes a list.

    >>> list_of_cpus((0, 1, 2, 8))
    '0-2,8'
    """
    parts: list[str] = []
    index = 0
    while index < len(cpus):
        last = index
        while last + 1 < len(cpus) and cpus[last + 1] == cpus[last] + 1:
            last += 1
        parts.append(f"{cpus[index]}-{cpus[last]}" if last > index else f"{cpus[index]}")
        index = last + 1
    return ",".join(parts)


def local_cpulist(text: str) -> str | Bad:
    """Read a CPU list that names at least one CPU, in the kernel's own spelling."""
    cpus = cpus_of_list(text)
    if isinstance(cpus, Bad):
        return cpus
    return list_of_cpus(cpus) if cpus else Bad("an empty CPU list", "unsupported")


def cpulist_of_mask(text: str) -> str | Bad:
    """Turn a mask (`00000000,000000ff`, groups of 32 bits, the highest first) into a list."""
    text = text.strip()
    if _CPUMASK.fullmatch(text) is None:
        return Bad(f"not a CPU mask: {excerpt(text)}")
    first, *groups = text.split(",")
    mask = int(first + "".join(group.zfill(8) for group in groups), 16)
    if mask == 0:
        return Bad("an empty CPU mask", "unsupported")
    if mask.bit_length() > MAX_CPUS:
        return Bad(f"not a CPU mask: {excerpt(text)}")
    return list_of_cpus(tuple(bit for bit in range(mask.bit_length()) if mask >> bit & 1))


def named_values(text: str) -> dict[str, int] | Bad:
    """Read lines of `name value`, as KFD prints properties. One line that is none makes the whole doubtful."""
    values: dict[str, int] = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        # A partitioned MI300X has 4,000 of these files: no regular expression here.
        if value.isdecimal() and value.isascii() and len(value) <= 20 and name.isidentifier():
            values[name] = int(value)
        elif line.strip():
            return Bad(f"not a property: {excerpt(line)}")
    return values or Bad(f"no properties: {excerpt(text)}")

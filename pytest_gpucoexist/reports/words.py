"""How values are said to people: sizes, links, drivers, whether a GPU can be used and why not."""

from __future__ import annotations

import re
from collections import Counter
from datetime import datetime, timezone
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpucoexist.model.machine import Gpu, Link, Machine, NumaNode

__all__ = [
    "KIND_NAMES",
    "UNKNOWN",
    "VENDOR_NAMES",
    "counted",
    "describe_arch",
    "describe_driver",
    "describe_gpu_link",
    "describe_link",
    "describe_name",
    "describe_node",
    "describe_size",
    "describe_time",
    "describe_use",
    "joined",
    "plural",
    "population",
    "ranges",
    "sold_as",
    "why_not",
]

UNKNOWN = "\N{EN DASH}"
"""What stands where a value is not known, or does not apply."""

VENDOR_NAMES = {"nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel", "other": "other"}

# Runtimes of each vendor that masks speak of (`Mask.runtime`).
_RUNTIMES: dict[str, tuple[str, ...]] = {
    "nvidia": ("cuda",),
    "amd": ("rocr", "hip", "opencl"),
    "intel": ("level-zero", "sycl"),
    "other": (),
}

KIND_NAMES = {"bmc": "BMC", "unknown": UNKNOWN}

# pci.ids writes a chip and what it is sold as: "GA102 [GeForce RTX 3090]".
_SOLD_AS = re.compile(r".*\[([^\[\]]+)\]")

# Transfer rates per lane of the PCI Express generations, GT/s (PCI Express Base Specification).
_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6, 128.0: 7}


def plural(count: int, one: str, many: str | None = None) -> str:
    """Write a number with its noun: `1 GPU`, `2 GPUs`.

    >>> plural(1, "GPU"), plural(3, "GPU")
    ('1 GPU', '3 GPUs')
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def joined(items: Sequence[str], last: str = "and") -> str:
    """Write a list as in a sentence.

    >>> joined(["a", "b", "c"])
    'a, b and c'
    """
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} {last} {items[-1]}"


def counted(items: Iterable[str]) -> str:
    """Count equal items, the most frequent first.

    >>> counted(["missing", "masked", "missing"])
    '2 missing, 1 masked'
    """
    return ", ".join(f"{count:,} {item}" for item, count in Counter(items).most_common())


def describe_size(size_bytes: int | None) -> str:
    """Write a memory size in binary units, rounded as people say it.

    >>> describe_size(25757220864), describe_size(536870912)
    ('24 GiB', '512 MiB')
    """
    if size_bytes is None:
        return UNKNOWN
    size = float(size_bytes)
    units = ["TiB", "GiB", "MiB", "KiB", "B"]
    unit = units.pop()
    while size >= 1000 and units:
        size /= 1024
        unit = units.pop()
    number = f"{size:.0f}" if size >= 10 else f"{size:.1f}".removesuffix(".0")
    return f"{number} {unit}"


def describe_name(gpu: Gpu) -> str:
    """Write the name under which a GPU is sold, with its vendor; its PCI ids where nobody knows a name."""
    vendor = "" if gpu.vendor == "other" else VENDOR_NAMES[gpu.vendor]
    name = gpu.name
    if not name:
        if gpu.vendor_id is None:
            return vendor or UNKNOWN
        name = f"[{gpu.vendor_id.removeprefix('0x')}:{(gpu.device_id or '?').removeprefix('0x')}]"
    else:
        name = sold_as(name)
    return name if name.lower().startswith(vendor.lower()) else f"{vendor} {name}"


def sold_as(name: str) -> str:
    """Take the name of a product out of that of its chip: `Navi 31 [Radeon RX 7900 XTX]`."""
    found = _SOLD_AS.fullmatch(name)
    return name if found is None else found.group(1)


def describe_link(link: Link, *, now: bool = False) -> str:
    """Write a PCIe link: `Gen4 x16`, `Gen4 x8 of x16`; with `now` also `Gen4 x16 (now Gen1)`: idle GPUs slow down.

    A link that nobody tells is `UNKNOWN`.
    """
    speed = _generation(link.max_speed_gtps) or _generation(link.current_speed_gtps)
    width = link.current_width if link.current_width is not None else link.max_width
    if width == 0:
        return "down"
    words = [word for word in (speed, None if width is None else f"x{width}") if word]
    if not words:
        return UNKNOWN
    text = " ".join(words)
    if link.current_width is not None and link.max_width is not None and link.current_width < link.max_width:
        text += f" of x{link.max_width}"
    current = _generation(link.current_speed_gtps)
    if now and current is not None and current != speed:
        text += f" (now {current})"
    return text


def describe_gpu_link(gpu: Gpu, *, now: bool = False) -> str:
    """Write the link of a GPU; `asleep` where it was left alone because reading it would wake the GPU."""
    text = describe_link(gpu.link, now=now)
    return "asleep" if text == UNKNOWN and gpu.runtime_status == "suspended" else text


def _generation(speed_gtps: float | None) -> str | None:
    if not speed_gtps:
        return None
    generation = _GENERATIONS.get(speed_gtps)
    return f"{speed_gtps:g} GT/s" if generation is None else f"Gen{generation}"


def describe_node(node: NumaNode) -> str:
    """Write what a NUMA node has: `CPUs 0-15, 64 GiB, distances 10 21`."""
    parts = [f"CPUs {node.cpulist}" if node.cpulist else "no CPUs"]
    if node.memory_bytes is not None:
        parts.append(describe_size(node.memory_bytes))
    if node.distances:
        parts.append(f"distances {' '.join(map(str, node.distances))}")
    return ", ".join(parts)


def describe_driver(gpu: Gpu) -> str:
    """Write the bound driver with its version; `none` when nothing is bound, `UNKNOWN` when nobody tells."""
    if gpu.driver is None:
        fact = gpu.facts.get("driver")
        return "none" if fact is not None and fact.source and fact.status in {"ok", "absent"} else UNKNOWN
    return f"{gpu.driver} {gpu.driver_version}" if gpu.driver_version else gpu.driver


def describe_time(iso: str) -> str:
    """Write a time of ISO 8601 for people: `2025-11-30 10:00 UTC`. What is none is returned as it is."""
    try:
        moment = datetime.fromisoformat(iso.replace("Z", "+00:00"))
    except ValueError:
        return iso
    if moment.tzinfo is None:
        return moment.strftime("%Y-%m-%d %H:%M")
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def describe_arch(gpu: Gpu) -> str:
    """Write the architecture so that it is understood on its own: `gfx1100`, `cc 8.9` (compute capability)."""
    if gpu.arch is None:
        return UNKNOWN
    return f"cc {gpu.arch}" if gpu.arch[:1].isdigit() else gpu.arch


_INTEL_DRIVERS = ("i915", "xe")


def describe_use(gpu: Gpu) -> str:
    """Say in a word or two what the GPU is good for here: `CUDA`, `ROCm`, `xe`, `no`, `masked`, `not granted`, `unfit`.

    Of an Intel GPU only its driver is known: no library of Intel's is asked.
    """
    if not gpu.is_compute:
        return UNKNOWN
    if not gpu.granted:
        return "not granted"
    if not gpu.fit:
        return "unfit"
    runtimes = [name for name, usable in (("CUDA", gpu.usable.cuda), ("ROCm", gpu.usable.rocm)) if usable]
    if gpu.vendor == "intel" and gpu.driver in _INTEL_DRIVERS:
        runtimes.append(gpu.driver)
    if not runtimes:
        return "no"
    return " ".join(runtimes) if gpu.visible else "masked"


def why_not(gpu: Gpu, machine: Machine) -> str | None:
    """Say why a GPU cannot be used here, so that a person can act on it. None when it can, or is no compute device."""
    use = describe_use(gpu)
    if use == "masked":
        hiding = [
            f"{mask.variable}={mask.value}"
            for mask in machine.masks
            if mask.devices is not None and gpu.key not in mask.devices and mask.runtime in _RUNTIMES[gpu.vendor]
        ]
        return f"hidden by {joined(hiding)}" if hiding else "hidden by a visibility variable of the caller"
    if use == "unfit":
        fact = gpu.facts.get("fit")
        return f"unfit: {fact.detail}" if fact is not None and fact.detail else "unfit"
    if use not in {"no", "not granted"}:
        return None
    if gpu.vendor == "intel" and use == "no":
        return f"bound to {gpu.driver}" if gpu.driver else "no driver bound"
    fields = {"nvidia": ("usable.cuda", "granted"), "amd": ("usable.rocm", "granted")}.get(gpu.vendor, ("granted",))
    for name in fields if use == "no" else reversed(fields):
        fact = gpu.facts.get(name)
        if fact is not None and fact.detail:
            return fact.detail
    if use == "not granted":
        return "its device nodes are not here: not granted to this container"
    return "not known"


def population(gpus: Sequence[Gpu]) -> str:
    """Count GPUs by vendor: `8 AMD GPUs`, `3 GPUs: 2 NVIDIA, 1 AMD`, `no GPU`."""
    if not gpus:
        return "no GPU"
    vendors = {gpu.vendor for gpu in gpus}
    if len(vendors) == 1:
        return plural(len(gpus), f"{VENDOR_NAMES[vendors.pop()]} GPU")
    return f"{plural(len(gpus), 'GPU')}: {counted(VENDOR_NAMES[gpu.vendor] for gpu in gpus)}"


def ranges(items: Sequence[tuple[int, str]]) -> str:
    """Write names by their places, neighbours as a range: `amd0 … amd3, amd5`."""
    runs: list[list[tuple[int, str]]] = []
    for place, name in sorted(items):
        if runs and place == runs[-1][-1][0] + 1:
            runs[-1].append((place, name))
        else:
            runs.append([(place, name)])
    words = []
    for run in runs:
        names = [name for _place, name in run]
        words += [f"{names[0]} … {names[-1]}"] if len(names) > 2 else names
    return ", ".join(words)

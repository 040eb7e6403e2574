"""Whether a vendor process is what it should be: nothing of another vendor is mapped, imported or made visible in it.

Pure judgements of what was read: `/proc/PID/maps`, and what the process itself says of its variables and modules.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pytest_gpucoexist.model.identity import Vendor
from pytest_gpucoexist.processes.belongings import library_vendor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_gpucoexist.host.base import Host

__all__ = [
    "WATCHED",
    "WATCHED_OWNERS",
    "Breach",
    "foreign_libraries",
    "mapped_files",
    "opened_devices",
    "shadowed_modules",
    "shifted_masks",
]

WATCHED = ("cuda", "pynvml", "nvtx", "hip", "rocm", "amdsmi", "pyrsmi")
"""Imports that more than one distribution is known to provide."""
WATCHED_OWNERS: Mapping[str, Vendor] = {
    **dict.fromkeys(("cuda-bindings", "cuda-python", "cuda-core", "nvidia-ml-py", "nvidia-ml-py3", "nvtx"), "nvidia"),
    **dict.fromkeys(("hip-python", "hip-python-fork", "hip-python-interop", "hip-python-as-cuda"), "amd"),
    **dict.fromkeys(("rocm-bindings-core", "rocm-bindings-hip", "rocm-bindings-libraries"), "amd"),
    **dict.fromkeys(("rocm-bindings-systems", "rocm-bindings-compiler", "amdsmi", "pyrsmi"), "amd"),
}
"""Whose a distribution is that provides them (ROCm/hip-python: `hip-python-interop` provides `cuda` and `pynvml`)."""

_SHOWN = 4
_MAPS_BYTES = 32 * 2**20
_DEVICES: Mapping[Vendor, re.Pattern[str]] = {
    "nvidia": re.compile(r"/dev/nvidia(?:\d+|-uvm)"),  # not nvidiactl: NVML opens it without a context
    "amd": re.compile(r"/dev/kfd"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """One way in which a process is not of its vendor alone. `subject` is a path or a variable.

    `unreadable` is no breach that was seen, but one that nobody can rule out.
    """

    kind: Literal["library", "import", "variable", "device", "unreadable"]
    subject: str
    sentence: str
    vendor: Vendor | None = None


def mapped_files(host: Host, pid: int) -> tuple[str, ...]:
    """Return the files that a process has mapped, in the order of their addresses. Raises OSError.

    Each line is `address perms offset dev inode path` (proc_pid_maps(5)); a deleted file has ` (deleted)` behind it.
    """
    text = host.read_bytes(f"/proc/{pid}/maps", _MAPS_BYTES).decode("utf-8", "surrogateescape")
    found = (line.split(maxsplit=5) for line in text.splitlines())
    paths = (fields[5].removesuffix(" (deleted)") for fields in found if len(fields) == 6)
    return tuple(dict.fromkeys(path for path in paths if path.startswith("/")))


def foreign_libraries(files: Sequence[str], vendor: Vendor) -> tuple[Breach, ...]:
    """Return the mapped libraries of other vendors."""
    found = []
    for path in files:
        owner = library_vendor(path)
        if owner is not None and owner != vendor:
            sentence = f"the process of {vendor} has a library of {owner} mapped: {path}"
            found.append(Breach(kind="library", subject=path, vendor=owner, sentence=sentence))
    return tuple(found)


def shadowed_modules(modules: Sequence[Mapping[str, Any]], vendor: Vendor) -> tuple[Breach, ...]:
    """Return the distributions of other vendors whose modules are loaded, put over or in front of the right ones.

    `modules` are as `child.inside.loaded_modules` describes them: where several claim a file, the one whose record has
    the file's hash owns it.
    """
    groups: dict[str, list[Mapping[str, Any]]] = {}
    overwritten: dict[str, list[str]] = {}
    for module in modules:
        claims: Mapping[str, bool | None] = module["claims"]
        owners = [name for name, same in claims.items() if same] or [
            name for name, same in claims.items() if same is None
        ]
        strangers = [name for name in owners if WATCHED_OWNERS.get(name) not in {None, vendor}]
        if strangers and not any(WATCHED_OWNERS.get(name) == vendor for name in owners):
            groups.setdefault(strangers[0], []).append(module)
            victims = overwritten.setdefault(strangers[0], [])
            victims += [name for name in claims if name not in owners and name not in victims]
    found = []
    for stranger, group in groups.items():
        names = ", ".join(str(module["name"]) for module in group[:_SHOWN])
        more = f" and {len(group) - _SHOWN} more" if len(group) > _SHOWN else ""
        victims = overwritten[stranger]
        instead = f", which overwrote files of {' and '.join(victims)}" if victims else ""
        file, owner = str(group[0]["file"]), WATCHED_OWNERS[stranger]
        sentence = f"the process of {vendor} imported {names}{more} of {stranger}{instead}: {file}"
        found.append(Breach(kind="import", subject=file, vendor=owner, sentence=sentence))
    return tuple(found)


def shifted_masks(now: Mapping[str, str | None], wanted: Mapping[str, str], names: Sequence[str]) -> tuple[Breach, ...]:
    """Return the visibility variables that are not as they should be inside the process at this moment."""
    found = []
    for name in names:
        is_now, should = now.get(name), wanted.get(name)
        if is_now != should:
            sentence = f"{name} is {_shown(is_now)} in the process and should be {_shown(should)}"
            found.append(Breach(kind="variable", subject=name, sentence=sentence))
    return tuple(found)


def opened_devices(host: Host, pid: int | Literal["self"] = "self") -> tuple[Breach, ...]:
    """Return the devices of GPUs that a process has open, which a context needs: pytest's own should have none."""
    try:
        names = host.list_dir(f"/proc/{pid}/fd")
    except OSError as error:
        sentence = f"whether process {pid} has a context cannot be told: {error}"
        return (Breach(kind="unreadable", subject=f"/proc/{pid}/fd", sentence=sentence),)
    found: dict[str, Breach] = {}
    for name in names:
        try:
            path = host.read_link(f"/proc/{pid}/fd/{name}")
        except OSError:  # closed since
            continue
        for vendor, pattern in _DEVICES.items():
            if pattern.fullmatch(path):
                sentence = f"process {pid} has {path} open: it has made a context on a device of {vendor}"
                found[path] = Breach(kind="device", subject=path, vendor=vendor, sentence=sentence)
    return tuple(found.values())


def _shown(value: str | None) -> str:
    return "unset" if value is None else repr(value)

"""The environment of a process that belongs to one vendor: its own devices, and nothing that leads to the others.

Pure: an environment and a machine in, an environment and a list of what was changed out. What is nobody's alone stays.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucoexist.errors import RequirementError
from pytest_gpucoexist.model.visibility.write import MaskStyle, write_masks
from pytest_gpucoexist.processes.belongings import (
    BELONGINGS,
    MASKS,
    PATH_LISTS,
    library_vendor,
    path_vendors,
    variable_vendor,
)

if TYPE_CHECKING:
    from pytest_gpucoexist.model.identity import Vendor
    from pytest_gpucoexist.model.machine import Gpu, Machine

__all__ = ["Change", "Kept", "Scoped", "mask_names", "scope_environment"]

# Not "": HIP takes an empty variable for an unset one and then reads CUDA's.
HIDDEN: Mapping[Vendor, Mapping[str, str]] = {
    "nvidia": {"CUDA_VISIBLE_DEVICES": "-1"},
    "amd": {"ROCR_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1"},
    "intel": {"ZE_AFFINITY_MASK": "-1"},
}
"""What hides all devices of a vendor from each of its runtimes, whatever else is set."""

# A worker's home is not what its masks say any more; a loader's or interpreter's own home is of another interpreter.
_NOT_FOR_CHILDREN = {
    "PYTEST_GPU_HOME": "a worker's home is not this process's",
    "PYTEST_GPU_HOME_DETAILS": "a worker's home is not this process's",
    "PYTEST_GPU_HOME_PID": "a worker's home is not this process's",
}
_OF_THE_INTERPRETER = ("PYTHONHOME", "PYTHONEXECUTABLE", "__PYVENV_LAUNCHER__", "VIRTUAL_ENV")
_SHOWN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One variable that is different in the child. None: not set. `rule` says why, with the vendor it is about."""

    name: str
    before: str | None
    after: str | None
    rule: str

    def describe(self) -> str:
        """One line for a report."""
        before = "unset" if self.before is None else repr(self.before)
        after = "unset" if self.after is None else repr(self.after)
        return f"{self.name}: {before} → {after} ({self.rule})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """An entry of a path that leads to another vendor and stays, because it also serves this one or everybody."""

    name: str
    entry: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoped:
    """The child's environment, and how it came about."""

    environment: Mapping[str, str]
    changes: tuple[Change, ...] = ()
    kept: tuple[Kept, ...] = ()


def mask_names() -> tuple[str, ...]:
    """Return every variable that decides what a runtime sees."""
    return tuple(name for names in MASKS.values() for name in names)


def scope_environment(
    environ: Mapping[str, str],
    gpus: Sequence[Gpu],
    machine: Machine,
    vendor: Vendor,
    *,
    style: MaskStyle = "auto",
    contents: Mapping[str, Sequence[str]] | None = None,
    same_interpreter: bool = True,
) -> Scoped:
    """Return the environment of a child of `vendor` that shall see exactly `gpus`, all of which are of that vendor.

    `contents` are the libraries in folders of the path-like variables, where they are known: a folder that also has
    this vendor's stays, and so does a folder of everybody's (`/usr/lib`, a conda `lib`), which is said when it has
    another vendor's; a folder that has nothing but other vendors' goes. Variables of pytest's interpreter are taken
    out for another interpreter. Raises RequirementError for a device of another vendor and for one that its runtime
    does not count.
    """
    strangers = [gpu.key for gpu in gpus if gpu.vendor != vendor]
    if strangers or vendor not in HIDDEN:
        raise RequirementError(
            f"a process of {vendor} was asked to see {', '.join(strangers) or 'a vendor without runtime'}"
        )
    after = dict(environ)
    rules: dict[str, str] = {}
    kept: list[Kept] = []
    for name in environ:
        owner = variable_vendor(name)
        if owner is not None and owner != vendor and name not in mask_names():
            del after[name]
            rules[name] = f"{name} is {owner}'s ({BELONGINGS[owner].source})"
        elif name in _NOT_FOR_CHILDREN:
            del after[name]
            rules[name] = _NOT_FOR_CHILDREN[name]
        elif name in _OF_THE_INTERPRETER and not same_interpreter:
            del after[name]
            rules[name] = "of pytest's interpreter, not of this process's"
    for name in PATH_LISTS:
        if name in after:
            value = _without_others(name, after[name], vendor, environ.get("HOME", ""), contents or {}, kept, rules)
            if value is None:
                del after[name]
            else:
                after[name] = value
    _apply_masks(after, rules, environ, gpus, machine, vendor, style)
    changes = tuple(
        Change(name=name, before=environ.get(name), after=after.get(name), rule=rules[name])
        for name in sorted(rules)
        if environ.get(name) != after.get(name)
    )
    return Scoped(environment=after, changes=changes, kept=tuple(kept))


def _apply_masks(
    after: dict[str, str],
    rules: dict[str, str],
    environ: Mapping[str, str],
    gpus: Sequence[Gpu],
    machine: Machine,
    vendor: Vendor,
    style: MaskStyle,
) -> None:
    for name, value in write_masks(gpus, machine, style, environ).items():
        if value is None:
            after.pop(name, None)
        else:
            after[name] = value
        rules[name] = (
            "exactly the leased devices are visible" if name in MASKS[vendor] else "every other vendor is hidden"
        )
    for other, hidden in HIDDEN.items():
        if other == vendor and gpus:
            continue
        for name in MASKS[other]:
            # What else decides (an order, a selector of devices that are not there) goes with the vendor.
            if name in hidden:
                after[name] = hidden[name]
                rules[name] = f"no device of {other} is visible"
            elif after.pop(name, None) is not None:
                rules[name] = f"no device of {other} is visible"


def _without_others(
    name: str,
    value: str,
    vendor: Vendor,
    home: str,
    contents: Mapping[str, Sequence[str]],
    kept: list[Kept],
    rules: dict[str, str],
) -> str | None:
    """Return a list of paths without those of other vendors; None when nothing is left."""
    separators = PATH_LISTS[name]
    entries = re.split(f"[{separators}]", value)
    left = []
    gone = []
    for entry in entries:
        # Sources of a project may lie in a folder `cuda`; only what is installed for the system is a vendor's.
        judged = name != "PYTHONPATH" or entry.startswith(("/opt/", "/usr/"))
        others = _others_of(entry, vendor, home, contents) if judged else frozenset()
        reason = _why_kept(entry, others, vendor, home, contents) if entry else None
        if entry and others and reason is None:
            gone.append((entry, others))
            continue
        if reason is not None:
            kept.append(Kept(name=name, entry=entry, reason=reason))
        left.append(entry)
    if not gone:
        return value
    owners = sorted({owner for _, others in gone for owner in others})
    shown = ", ".join(entry for entry, _ in gone[:_SHOWN]) + (" …" if len(gone) > _SHOWN else "")
    rules[name] = f"entries of {' and '.join(owners)} are taken out: {shown}"
    return separators[0].join(left) if any(left) else None


def _others_of(entry: str, vendor: Vendor, home: str, contents: Mapping[str, Sequence[str]]) -> frozenset[Vendor]:
    """Return the other vendors that an entry leads to: by its path, its own name as a library, or its files."""
    found = set(path_vendors(entry, home))
    library = library_vendor(entry)
    if library is not None:
        found = {library}  # a library is what its name says, wherever it lies
    found |= {owner for file in contents.get(entry, ()) if (owner := library_vendor(file)) is not None}
    return frozenset(found - {vendor})


def _why_kept(
    entry: str, others: frozenset[Vendor], vendor: Vendor, home: str, contents: Mapping[str, Sequence[str]]
) -> str | None:
    """Say why an entry that leads to others stays; None when it goes, or leads to none."""
    if not others:
        return None
    files = contents.get(entry, ())
    theirs = [file for file in files if library_vendor(file) in others]
    ours = [file for file in files if library_vendor(file) == vendor]
    also = f"; of {' and '.join(sorted(others))} it has {', '.join(sorted(theirs)[:_SHOWN])}" if theirs else ""
    if library_vendor(entry) is not None:
        return None
    if ours:
        return f"it serves {vendor} too ({', '.join(sorted(ours)[:_SHOWN])}){also}"
    if vendor in path_vendors(entry, home):
        return f"its path names {vendor} too{also}"
    if files and len(theirs) == len(files):
        return None  # whatever its path says
    if not path_vendors(entry, home):
        return f"its path is nobody's alone{also}"
    return None

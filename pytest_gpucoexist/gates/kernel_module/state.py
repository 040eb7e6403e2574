"""Whether a module is in the running kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pytest_gpucoexist.probes.reader import Bad, excerpt

if TYPE_CHECKING:
    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["ModuleState", "is_in", "loaded_names", "module_state"]

ModuleState = Literal["live", "coming", "going", "builtin", "absent"]

_STATES: dict[str, ModuleState] = {"live": "live", "coming": "coming", "going": "going"}


def module_state(subject: Subject, name: str) -> ModuleState | Bad:
    """Return a module's state. A driver that is built in has a folder too, but no `initstate` (kernel/params.c)."""
    folder = f"/sys/module/{name}"
    text = subject.read(f"{folder}/initstate", 64)
    if text.text is not None:
        state = _STATES.get(text.text.strip())
        return state or Bad(f"{text.path} says {excerpt(text.text)}")
    if text.status != "absent":
        return Bad(f"{text.path}: {text.detail}", text.status)
    if subject.host.exists(folder):
        return "builtin"
    if not subject.host.exists("/sys/module"):
        names = loaded_names(subject)
        if names is None:
            return Bad("neither /sys/module nor /proc/modules is here", "absent")
        return "live" if name in names else "absent"
    return "absent"


def is_in(state: ModuleState | Bad) -> bool:
    """Whether a module's code can be used."""
    return state in {"live", "builtin"}


def loaded_names(subject: Subject) -> dict[str, str] | None:
    """Return the modules that /proc/modules lists, with their lines; None where it cannot be read."""
    text = subject.read("/proc/modules", 1 << 20).text
    if text is None:
        return None
    return {line.split(None, 1)[0]: line for line in text.splitlines() if line.strip()}

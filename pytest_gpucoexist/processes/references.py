"""Functions by name: of which module, of which file, and where a process would look for that module."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from dataclasses import dataclass

from pytest_gpucoexist.errors import VendorFunctionError

__all__ = ["Reference", "project_folders", "reference_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A function as another interpreter can find it. `file` is None for what is installed in each interpreter."""

    module: str
    function: str
    file: str | None

    @property
    def name(self) -> str:
        """Module and function."""
        return f"{self.module}.{self.function}"


def reference_of(function: object) -> Reference:
    """Return the reference of a module-level function. Raises VendorFunctionError for any other.

    A reference is returned as it is: one of a module that only the process has.
    """
    if isinstance(function, Reference):
        return function
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", None)
    if not callable(function) or not isinstance(module, str) or not isinstance(name, str):
        raise VendorFunctionError(
            f"{function!r:.80} is no function of a module: pass one that is defined with def in a module"
        )
    if "<" in name:
        raise VendorFunctionError(
            f"{module}.{name} is defined inside another function and cannot be found by its name in another process: "
            "move it to the module's level and pass what it used as arguments"
        )
    if module == "__main__":
        raise VendorFunctionError(
            f"{name} is of the program that was started (__main__), which the process would start again: "
            "move it to a module of its own"
        )
    loaded = sys.modules.get(module)
    found: object = loaded
    for part in name.split("."):
        found = getattr(found, part, None)
    if loaded is None or found is not function:
        raise VendorFunctionError(
            f"{module}.{name} is not this function (a decorator, a method of an instance, or a module that was "
            "reloaded?): pass the function that the module has by that name"
        )
    file = getattr(loaded, "__file__", None)
    if not isinstance(file, str) or _installed(file):
        file = None
    return Reference(module=module, function=name, file=None if file is None else os.path.abspath(file))


def project_folders() -> list[str]:
    """Return the folders of `sys.path` that are not of an installation: the project's own."""
    return [each for each in (os.path.abspath(entry) for entry in sys.path) if not _installed(each)]


@functools.lru_cache(maxsize=1024)
def _installed(path: str) -> bool:
    """Whether a path is of this interpreter or of packages that were installed into some interpreter."""
    parts = os.path.abspath(path).split(os.sep)
    if "site-packages" in parts or "dist-packages" in parts:
        return True
    stdlib = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
    real = os.path.realpath(path)
    if any(real == each or real.startswith(f"{each}{os.sep}") for each in map(os.path.realpath, filter(None, stdlib))):
        return True
    return path.endswith(".zip") and os.path.basename(path).startswith("python")

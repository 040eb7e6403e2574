"""Load a vendor's C library by ctypes, and tell one that is not there from one that does not load."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from pytest_gpucoexist.helpers.protocol import HelperAbsent, HelperBroken

if TYPE_CHECKING:
    from pytest_gpucoexist.helpers.cells import Cell

__all__ = ["called", "load", "loaded_from"]


def load(*names: str) -> tuple[ctypes.CDLL, str]:
    """Load the first of these libraries that is there. Returns it and its name; raises HelperAbsent or HelperBroken."""
    for name in names:
        try:
            return ctypes.CDLL(name), name
        except OSError as error:
            # The file that is missing may be one that the library needs.
            if not str(error).startswith(f"{name}: cannot open shared object file: No such file"):
                raise HelperBroken(f"{name} cannot be loaded: {error}", cause="library") from None
    raise HelperAbsent(f"not installed: {', '.join(names)}", cause="no-library")


def called(library: ctypes.CDLL, name: str, *arguments: object) -> Cell:
    """Call a function that returns a status. `{"value": status}`, or why it cannot be called."""
    try:
        function = getattr(library, name)
    except AttributeError:
        return {"status": "absent", "detail": f"the library has no {name}"}
    function.restype = ctypes.c_int
    return {"value": int(function(*arguments))}


def loaded_from(stem: str) -> str | None:
    """Return the file of a library that this process has mapped, by the beginning of its name."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            paths = [line.split(maxsplit=5)[5].strip() for line in file if f"/{stem}" in line]
    except OSError:
        return None
    return paths[0] if paths else None

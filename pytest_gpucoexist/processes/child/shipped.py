"""Modules that the caller sends after the start: sources under a package of their own, imported when they are needed.

They are found by nothing else in this process, and find nothing of an installed copy of themselves.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import types
    from collections.abc import Mapping, Sequence

__all__ = ["load"]


class _Shipment(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds and executes the modules of one shipment."""

    def __init__(self, sources: Mapping[str, tuple[str, str]]) -> None:
        self._sources = sources

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - what importlib passes
        target: types.ModuleType | None = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        """Find a module of the shipment, and no other."""
        if fullname not in self._sources:
            return None
        is_package = any(name.startswith(f"{fullname}.") for name in self._sources)
        return importlib.machinery.ModuleSpec(fullname, self, origin=self._sources[fullname][1], is_package=is_package)

    def exec_module(self, module: types.ModuleType) -> None:
        """Execute a module; tracebacks show the caller's file."""
        source, file = self._sources[module.__name__]
        module.__file__ = file
        exec(compile(source, file, "exec"), module.__dict__)


def load(modules: list[tuple[str, str, str]]) -> None:
    """Take modules: name, source and file. A second shipment adds to the first."""
    sys.meta_path.append(_Shipment({name: (source, file) for name, source, file in modules}))

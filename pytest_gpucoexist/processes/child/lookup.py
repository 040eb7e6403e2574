"""Find in this interpreter the function that the caller means: the same name in a module of the same file.

pytest imports test modules in several ways (`prepend`, `append`, `importlib`), and the file is what they share. So a
module is imported by its name where that leads to the same file, and else executed from the file under that name.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import types
from typing import Any

__all__ = ["LookupFailedError", "extend_path", "find_function"]

_modules: dict[tuple[str, str], types.ModuleType] = {}


class LookupFailedError(Exception):
    """The function is not to be had in this interpreter; `cause` is the exception that stood in the way."""

    def __init__(self, message: str, cause: BaseException | None = None) -> None:
        super().__init__(message)
        self.cause = cause


def extend_path(folders: list[str]) -> None:
    """Put the caller's folders behind the standard library and before installed packages, in their order.

    They cannot shadow the standard library, and the project's own sources come before an installed copy of it.
    """
    known = {os.path.realpath(each) for each in sys.path if each}
    new = [each for each in folders if os.path.realpath(each) not in known]
    place = next(
        (at for at, each in enumerate(sys.path) if os.path.basename(each) in {"site-packages", "dist-packages"}),
        len(sys.path),
    )
    sys.path[place:place] = new


def find_function(module: str, qualified: str, file: str | None) -> Any:
    """Return a function by module and qualified name; with `file`, of that file. Raises LookupFailedError."""
    found = _module(module, file)
    for name in qualified.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise LookupFailedError(f"{module} has no {qualified} here ({_place(module)})") from None
    return found


def _place(module: str) -> str:
    return str(getattr(sys.modules.get(module), "__file__", None) or sys.executable)


def _module(name: str, file: str | None) -> Any:
    if file is None:
        try:
            return importlib.import_module(name)
        except BaseException as error:
            raise LookupFailedError(f"{name} cannot be imported by {sys.executable}: {_text(error)}", error) from error
    key = (name, file)
    if key not in _modules:
        _modules[key] = _of_file(name, file)
    return _modules[key]


def _of_file(name: str, file: str) -> types.ModuleType:
    present = sys.modules.get(name)
    if present is not None and _same(present, file):
        return present
    free = present is None
    if present is None:
        try:
            spec = importlib.util.find_spec(name)
        except BaseException:  # noqa: BLE001 - a parent that is absent, or fails in any way when it is imported
            spec = None
        if spec is not None and spec.origin is not None and _same_file(spec.origin, file):
            return _executed(name, file, lambda: importlib.import_module(name))
        free = spec is None
    return _executed(name, file, lambda: _load(name, file, free=free))


def _executed(name: str, file: str, load: Any) -> types.ModuleType:
    try:
        module: types.ModuleType = load()
    except BaseException as error:
        raise LookupFailedError(
            f"{name} ({file}) cannot be imported by {sys.executable}: {_text(error)}", error
        ) from error
    return module


def _load(name: str, file: str, *, free: bool) -> types.ModuleType:
    """Execute a file as the module of that name.

    Where another has the name (a second conftest) or would be imported by it (the standard library's), that one keeps
    it: imports in this process find what they would find without us.
    """
    _make_parents(name, file)
    package = os.path.basename(file) == "__init__.py"
    spec = importlib.util.spec_from_file_location(
        name, file, submodule_search_locations=[os.path.dirname(file)] if package else None
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python source")
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(name)
    sys.modules[name] = module  # dataclasses and relative imports look there while it is executed
    try:
        spec.loader.exec_module(module)
    except BaseException:
        free = False
        raise
    finally:
        if before is not None:
            sys.modules[name] = before
        elif not free:
            del sys.modules[name]
    return module


def _make_parents(name: str, file: str) -> None:
    """Let `tests.unit.test_x` have the packages `tests` and `tests.unit`, of the folders above its file."""
    parents = name.split(".")[:-1]
    folder = os.path.dirname(file)
    if os.path.basename(file) == "__init__.py":
        folder = os.path.dirname(folder)
    folders = []
    for _ in parents:
        folders.append(folder)
        folder = os.path.dirname(folder)
    for depth, place in enumerate(reversed(folders), 1):
        package = ".".join(parents[:depth])
        if package in sys.modules:
            continue
        initial = os.path.join(place, "__init__.py")
        if os.path.isfile(initial):
            _load(package, initial, free=True)
        else:
            module = types.ModuleType(package)
            module.__path__ = [place]
            sys.modules[package] = module


def _same(module: types.ModuleType, file: str) -> bool:
    return _same_file(getattr(module, "__file__", None), file)


def _same_file(found: str | None, file: str) -> bool:
    try:
        return found is not None and os.path.samefile(found, file)
    except OSError:
        return False


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"

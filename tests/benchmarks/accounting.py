"""A pytest plugin that adds up what another plugin costs inside the process: its import and each of its hooks.

Loaded with `-p tests.benchmarks.accounting`, before entry points are. Wall-clock pairs of whole sessions cannot show
10 ms on a shared machine (null pairs differ by -21 to +28 ms); this adds up only the plugin's own time.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import sys
import time
from typing import Any

NAME = "gpucoexist"
_spent: dict[str, float] = {}
_real_load = importlib.metadata.EntryPoint.load


def _add(what: str, started: float) -> None:
    _spent[what] = _spent.get(what, 0.0) + time.perf_counter() - started


def _timed_load(self: importlib.metadata.EntryPoint) -> Any:
    started = time.perf_counter()
    try:
        return _real_load(self)
    finally:
        if self.name == NAME:
            _add("import", started)


importlib.metadata.EntryPoint.load = _timed_load  # type: ignore[method-assign]


def _timed(function: Any, what: str) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            _add(what, started)

    return call


def pytest_plugin_registered(plugin: object, manager: Any) -> None:
    """Wrap every plain hook of the measured plugin; a generator's own time is counted at its start and end."""
    module = getattr(plugin, "__name__", type(plugin).__module__)
    if not module.startswith(f"pytest_{NAME}"):
        return
    for caller in manager.get_hookcallers(plugin) or []:
        for implementation in caller.get_hookimpls():
            if implementation.plugin is plugin:
                implementation.function = _timed(implementation.function, caller.name)


def pytest_unconfigure() -> None:
    """Print the sum, in milliseconds, and each part on a line that the benchmark reads."""
    parts = " ".join(f"{name}={1000 * seconds:.3f}" for name, seconds in sorted(_spent.items()))
    print(f"\nACCOUNT {1000 * sum(_spent.values()):.3f} {parts}", file=sys.stderr if os.environ.get("ERR") else None)

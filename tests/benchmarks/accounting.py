"""A pytest plugin that adds up what another plugin costs inside the process.

Loaded with `-p tests.benchmarks.accounting`, before entry points are. Wall-clock pairs of whole sessions cannot show
10 ms on a shared machine (null pairs differ by -21 to +28 ms); this adds up the plugin's own time alone: its import,
its registration (pluggy looks at every attribute; options, hook specifications and fixtures are added) and each of its
hooks, those of plugins that it registers later too. What one counted part does inside another is counted once.
"""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

NAME = "gpucoexist"
_wall: dict[str, float] = {}
_cpu: dict[str, float] = {}
_counting = False


@contextmanager
def _counted(what: str) -> Iterator[None]:
    global _counting  # noqa: PLW0603  one process, one session
    if _counting:
        yield
        return
    _counting = True
    started, busy = time.perf_counter(), time.thread_time()
    try:
        yield
    finally:
        _cpu[what] = _cpu.get(what, 0.0) + time.thread_time() - busy
        _wall[what] = _wall.get(what, 0.0) + time.perf_counter() - started
        _counting = False


def _is_measured(plugin: object) -> bool:
    module: str = getattr(plugin, "__name__", type(plugin).__module__)
    return module.startswith(f"pytest_{NAME}")


_real_load = importlib.metadata.EntryPoint.load
_real_register = pytest.PytestPluginManager.register


def _load(self: importlib.metadata.EntryPoint) -> Any:
    if self.name != NAME:
        return _real_load(self)
    with _counted("import"):
        return _real_load(self)


def _register(self: pytest.PytestPluginManager, plugin: Any, name: str | None = None) -> str | None:
    if not _is_measured(plugin):
        return _real_register(self, plugin, name)
    with _counted("register"):
        registered = _real_register(self, plugin, name)
    for caller in self.get_hookcallers(plugin) or []:
        for implementation in caller.get_hookimpls():
            if implementation.plugin is plugin:
                timing = _timed_wrapper if inspect.isgeneratorfunction(implementation.function) else _timed
                # pluggy calls this attribute each time and looks at it no further.
                object.__setattr__(implementation, "function", timing(implementation.function, caller.name))
    return registered


importlib.metadata.EntryPoint.load = _load  # type: ignore[method-assign]
pytest.PytestPluginManager.register = _register  # type: ignore[method-assign]


def _timed(function: Any, what: str) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _counted(what):
            return function(*args, **kwargs)

    return call


def _timed_wrapper(function: Any, what: str) -> Any:
    """Count a hook wrapper's own time, before and after its `yield`, and not what runs inside."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Generator[None, Any, Any]:
        generator = function(*args, **kwargs)
        with _counted(what):
            next(generator)
        step, given = generator.send, None
        try:
            given = yield
        except BaseException as error:  # noqa: BLE001  handed on to the wrapper
            step, given = generator.throw, error
        try:
            with _counted(what):
                step(given)
        except StopIteration as end:
            return end.value
        raise RuntimeError(f"{what}: a wrapper yielded twice")

    return call


def pytest_unconfigure() -> None:
    """Print the sums in milliseconds, and the CPU time of each part, on a line that the benchmark reads."""
    parts = " ".join(f"{name}={1000 * seconds:.3f}" for name, seconds in sorted(_cpu.items()))
    print(f"\nACCOUNT wall={1000 * sum(_wall.values()):.3f} cpu={1000 * sum(_cpu.values()):.3f} {parts}")

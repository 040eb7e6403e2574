"""Watch the visibility variables of a worker that has a home: nobody else may change them.

A runtime reads its variable once. A conftest that writes `CUDA_VISIBLE_DEVICES` of its own, after the plugin did, makes
a worker use a device that is not its home, or not. Each change is put back and told, with both values and whose it is.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.session.current import begin_test, end_test
from pytest_gpucoexist.session.home import claim

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

__all__ = ["PLUGIN", "MaskWatch", "watch"]

PLUGIN = "gpucoexist-masks"


def watch(manager: pytest.PytestPluginManager) -> None:
    """Begin to watch, before any conftest is imported. Only in a worker that has a home, not in its children."""
    told = claim()
    if told is not None and not manager.has_plugin(PLUGIN):
        manager.register(MaskWatch(told["set"], told["mode"]), PLUGIN)


class MaskWatch:
    """Compares the environment with what was set: after each import, at the end of collection, after each test."""

    def __init__(self, masks: Mapping[str, str], mode: str) -> None:
        """`masks` were set for this worker, by `--gpu-workers=MODE`."""
        self._masks = masks
        self._mode = mode
        self.changes: list[tuple[str, str]] = []
        """Who made a change before the first test, and the words for it."""
        self.stopped = False

    def look(self, who: str) -> str | None:
        """Return words about what was changed since the last look, after having put it back."""
        changed = []
        for variable, value in self._masks.items():
            now = os.environ.get(variable)
            if now != value:
                is_now = "is not set any more" if now is None else f"is now {now!r}"
                changed.append(f"{variable} was {value!r} and {is_now}")
                os.environ[variable] = value
        if not changed:
            return None
        return (
            f"{', '.join(changed)}: changed by {who}. --gpu-workers={self._mode} had set it for this worker, before "
            "anything was imported; remove the change, or run with --gpu-workers=off"
        )

    def _note(self, who: str) -> None:
        words = self.look(who)
        if words is not None:
            self.changes.append((who, words))

    def pytest_plugin_registered(self, plugin: object) -> None:
        """Look after each plugin and conftest that was imported; an object that is registered says nothing of whom."""
        if isinstance(plugin, ModuleType):
            self._note(plugin.__file__ or plugin.__name__)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self) -> None:
        """Look after `pytest_configure` and what else ran before the collection."""
        self._note("a hook of a plugin or conftest that runs before collection (pytest_configure, pytest_sessionstart)")

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Look after each module that was imported."""
        try:
            return (yield)
        finally:
            self._note(collector.nodeid or "the collection")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Fail before the first test: something may have read the wrong value already."""
        self._note("a hook that runs at the end of collection")
        if not self.changes:
            return
        from pytest_gpucoexist.session.collecting import fail_collection

        for who, words in self.changes:
            fail_collection(session, who, words)
        self.stopped = True
        session.shouldstop = self.changes[0][1]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self) -> bool | None:
        """Run nothing after such a failure."""
        return True if self.stopped else None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """While a test runs, the home is no answer to `current_gpu()`: what the test holds is."""
        begin_test(item)
        try:
            return (yield)
        finally:
            end_test()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        """Look when a test is over: what it changes and takes back itself is its own affair."""
        try:
            result = yield
        except BaseException:
            words = self.look(f"{item.nodeid}")
            if words is not None:
                item.add_report_section("teardown", "GPU coexistence", words)
            raise
        words = self.look(f"{item.nodeid}, or a fixture of it")
        if words is not None:
            pytest.fail(words, pytrace=False)
        return result

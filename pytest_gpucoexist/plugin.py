"""The entry point: options, marks, hooks. What a session does not use is neither imported nor registered.

Modules are imported by their own names here and in `session`, never as attributes of their packages: pytester forgets
modules between runs, but not the attributes, and half of a session would live in the copies of an earlier one.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_gpucoexist.session.options import Options
    from pytest_gpucoexist.session.state import GpuSession

# With plugin autoload off, only the module named with -p gets assertion rewriting.
pytest.register_assert_rewrite("pytest_gpucoexist.testing")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option group `GPU coexistence` and the ini keys `gpu_*`."""
    from pytest_gpucoexist.session.options import add_options

    add_options(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Add the hooks `pytest_gpucoexist_*`."""
    pluginmanager.add_hookspecs(import_module("pytest_gpucoexist.hookspecs"))
    if "PYTEST_GPU_HOME" in os.environ:
        from pytest_gpucoexist.session.masks import watch

        watch(pluginmanager)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Let a conftest ask for the home device while it is imported, with `--gpu-workers`."""
    asked = getattr(early_config.known_args_namespace, "gpu_workers", None)
    asked = asked or os.environ.get("PYTEST_GPU_WORKERS") or early_config.getini("gpu_workers")
    if asked in {"narrow", "rotate"} and "PYTEST_GPU_HOME" not in os.environ:
        from pytest_gpucoexist.session.at_import import AtImport

        early_config.pluginmanager.register(AtImport(early_config), "gpucoexist-at-import")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Read the options and register what was asked for. First of all, because pytest-xdist reads `dist` here too."""
    from pytest_gpucoexist.session.marks import register
    from pytest_gpucoexist.session.options import read_options

    register(config)
    options = config.stash[_OPTIONS] = read_options(config)
    if _is_asked(config, options) and (session := _session_of(config)) is not None:
        from pytest_gpucoexist.session.configuring import configure

        configure(session)
    if getattr(config.option, "showfixtures", False):
        _register_fixtures(config)


_OPTIONS: pytest.StashKey[Options] = pytest.StashKey()
"""In `config.stash`: what was said, until somebody needs the session's object. An empty session never does."""


def _is_asked(config: pytest.Config, options: Options) -> bool:
    """Whether this session has more to set up than to wait for a test that needs a GPU."""
    return (
        bool(options.given or config.getini("gpu_marks") or config.getini("gpu_doctests"))
        or hasattr(config, "workerinput")
        or getattr(config.option, "verbose", 0) > 0
        or getattr(config.option, "dist", "no") != "no"
    )


def _session_of(config: pytest.Config) -> GpuSession | None:
    """Return the session's object, made when it is first needed; None where there are no options, as after an error."""
    from pytest_gpucoexist.session.state import GPU_SESSION, GpuSession

    if _OPTIONS in config.stash:
        config.stash[GPU_SESSION] = GpuSession(config, config.stash[_OPTIONS])
        del config.stash[_OPTIONS]
    return config.stash.get(GPU_SESSION, None)


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Make the fixtures known once there is a file to collect; a session without one has no use for them."""
    if not isinstance(collector, (pytest.Session, pytest.Directory)):
        _register_fixtures(collector.config)


def _register_fixtures(config: pytest.Config) -> None:
    if not config.pluginmanager.has_plugin(_FIXTURES):
        _session_of(config)
        config.pluginmanager.register(import_module("pytest_gpucoexist.session.fixtures"), _FIXTURES)


_FIXTURES = "gpucoexist-fixtures"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize tests that ask for `each_gpu`, `each_vendor` or `each_numa_node`."""
    if not _EACH.isdisjoint(metafunc.fixturenames):
        from pytest_gpucoexist.session.each import generate

        generate(metafunc)


_EACH = frozenset({"each_gpu", "each_vendor", "each_numa_node"})


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Find out which selected tests need a GPU; without any, nothing more happens in this session."""
    if session.items and (gpu_session := _session_of(session.config)) is not None:
        from pytest_gpucoexist.session.selecting import select

        selected = select(gpu_session, session.items)
        if selected:
            from pytest_gpucoexist.session.collecting import collected

            collected(gpu_session, session, selected)
        if gpu_session.is_worker and gpu_session.options.dist == "auto":
            from pytest_gpucoexist.session.placing_worker import is_planned, tell_collected

            if is_planned(gpu_session):
                tell_collected(gpu_session, session.items, selected)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Group hardware skips by what was missing; say so when GPU tests were selected and none ran."""
    if _OPTIONS in config.stash:
        return  # nothing was asked for or collected
    gpu_session = _session_of(config)
    if gpu_session is None or config.option.collectonly or gpu_session.options.plan:
        return
    known = gpu_session.notes or gpu_session.selected or gpu_session.ledger or gpu_session.judgement
    if known or _any_gpu_report(terminalreporter.stats):
        from pytest_gpucoexist.session.summary import summarize

        summarize(gpu_session, terminalreporter)


def _any_gpu_report(stats: dict[str, list[Any]]) -> bool:
    """Whether a report speaks of a GPU. An xdist controller has collected nothing: only the reports tell."""
    for category, reports in stats.items():
        if category == "skipped":
            from pytest_gpucoexist.session.frameworks import framework_of_report

            if any(hasattr(report, "gpucoexist") or framework_of_report(report) for report in reports):
                return True
        elif category and any(hasattr(report, "gpucoexist") for report in reports):
            return True
    return False

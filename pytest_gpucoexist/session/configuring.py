"""What a session sets up at its start, by its options and its role."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_gpucoexist.session.options import Options
    from pytest_gpucoexist.session.state import GpuSession

__all__ = ["configure", "is_passive"]


def configure(session: GpuSession) -> None:
    """Set up this process: serial run, xdist controller or xdist worker. Raises pytest.UsageError."""
    config, options = session.config, session.options
    if session.is_worker:
        from pytest_gpucoexist.session.link_worker import worker_link

        session.link = worker_link(config, options.machine)
        from pytest_gpucoexist.session.home import settle

        settle(session)
        if "SLURM_JOB_ID" in os.environ:
            from pytest_gpucoexist.session.slurm import mend_masks

            mend_masks(session)
    if config.getini("gpu_marks") or config.getini("gpu_doctests"):
        _ = session.needs  # a malformed line ends the run here, and not as a crash of every xdist worker
    if session.is_worker:
        if isinstance(options.expect_skips, str):
            from pytest_gpucoexist.session.deselected import Deselected

            config.pluginmanager.register(Deselected(config), "gpucoexist-deselected")
    elif not is_passive(config):
        if options.given:
            _set_up_asked(config, session, options)
        if getattr(config.option, "verbose", 0) > 0:
            from pytest_gpucoexist.session.beside import DevicesBeside

            config.pluginmanager.register(DevicesBeside(), "gpucoexist-beside")
        if options.dist == "auto":
            _distribute(config)
        if _distributes(config):
            from pytest_gpucoexist.session.link_controller import ControllerLink

            if any("srun" in str(spec) for spec in config.option.tx):
                from pytest_gpucoexist.session.slurm import SrunGateways

                config.pluginmanager.register(SrunGateways(config), "gpucoexist-slurm")
            if options.workers != "off":
                from pytest_gpucoexist.session.workers import WorkerHomes

                config.pluginmanager.register(WorkerHomes(session), "gpucoexist-homes")
            if any(config.getini(name) for name in ("gpu_gates_ignore", "gpu_gate_limits", "gpu_gate_unknown")):
                _check_gate_keys(config)
            link = ControllerLink(session.machine, session.said, session.take_out, options.machine)
            config.pluginmanager.register(link, "gpucoexist-link")
            from pytest_gpucoexist.session.packing import Unpacking
            from pytest_gpucoexist.session.speaking import hear_lines

            config.pluginmanager.register(Unpacking(), "gpucoexist-unpacking")
            hear_lines(session, link)
            link.on("apart", partial(_hear_apart, session))
            if options.dist == "auto":
                from pytest_gpucoexist.session.placing import place

                place(session, link)


def _hear_apart(session: GpuSession, worker: str, told: Any) -> None:
    from pytest_gpucoexist.session.remote import hear_apart

    hear_apart(session, worker, told)


def is_passive(config: pytest.Config) -> bool:
    """Whether nothing will be run: then nothing is discovered or written."""
    return any(getattr(config.option, name, False) for name in _PASSIVE)


# --help, --version, --collect-only, --markers, --fixtures, --fixtures-per-test
_PASSIVE = ("help", "version", "collectonly", "markers", "showfixtures", "show_fixtures_per_test")


def _set_up_asked(config: pytest.Config, session: GpuSession, options: Options) -> None:
    from pytest_gpucoexist.errors import GpuCoexistError
    from pytest_gpucoexist.session.header import Header

    register = config.pluginmanager.register
    try:
        if options.machine is not None:
            from pytest_gpucoexist.session.discovery import check_machine

            check_machine(config, options.machine)
        if options.plan:
            from pytest_gpucoexist.session.planning import Planner

            _run_serially(config)
            register(Planner(session), "gpucoexist-plan")
            return
        if options.promises and not options.observe:
            from pytest_gpucoexist.session.promise import check_promises

            broken = check_promises(session)
            if broken is not None:
                _run_serially(config)
                register(broken, "gpucoexist-promise")
        if options.keeps_accounts:
            from pytest_gpucoexist.session.accounts import Accounts

            register(Accounts(session), "gpucoexist-accounts")
        register(Header(session), "gpucoexist-header")
    except GpuCoexistError as error:
        raise pytest.UsageError(str(error)) from None


def _check_gate_keys(config: pytest.Config) -> None:
    from pytest_gpucoexist.errors import UserError
    from pytest_gpucoexist.session.gate_settings import check_keys

    try:
        check_keys(config)
    except UserError as error:
        raise pytest.UsageError(str(error)) from None


def _distribute(config: pytest.Config) -> None:
    """Have the workers that `--tx` names started: without `-n`, pytest-xdist wants `--dist` for that."""
    if getattr(config.option, "tx", None) and getattr(config.option, "dist", None) == "no":
        config.option.dist = "load"


def _distributes(config: pytest.Config) -> bool:
    return getattr(config.option, "dist", "no") != "no" and bool(getattr(config.option, "tx", None))


def _run_serially(config: pytest.Config) -> None:
    """Keep pytest-xdist from starting workers: it reads these options after us."""
    if hasattr(config.option, "dist"):
        config.option.dist = "no"
        config.option.tx = []

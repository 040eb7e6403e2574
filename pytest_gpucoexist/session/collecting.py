"""What follows when selected tests need a GPU: their needs are checked, and the per-test hooks registered."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.errors import GpuCoexistError, RequirementError
from pytest_gpucoexist.model.requirement import Need
from pytest_gpucoexist.session.configuring import is_passive
from pytest_gpucoexist.session.state import DECISION, GpuSession

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucoexist.session.ranks import RankProtocol

__all__ = ["collected", "fail_collection"]

RANK_GRACE_S = 10.0
"""How long a test may go on when a rank of its job is gone."""


def collected(gpu_session: GpuSession, session: pytest.Session, selected: Sequence[pytest.Item]) -> None:
    """Check the needs of all selected tests, before any of them runs."""
    config = session.config
    gpu_session.needs.refresh()
    needs: dict[Need, None] = {}
    malformed = False
    last: Need | None = None
    for item in selected:
        try:
            need = gpu_session.needs.of(item)
        except RequirementError as error:
            from pytest_gpucoexist.model.plan import Decision

            message = f"{item.nodeid}: {error}"
            item.stash[DECISION] = Decision(need=Need(requirements=()), outcome="error", reason=message)
            fail_collection(session, item.nodeid, f"GPU requirement of {message}")
            malformed = True
            continue
        if need is not None:
            gpu_session.selected += 1
            if need is not last:  # hashing a need costs more than finding it
                needs[need] = None
                last = need
    gpu_session.selected_needs = tuple(needs)
    if is_passive(config) or not (needs or malformed):
        return
    if not gpu_session.options.plan:
        from pytest_gpucoexist.session.protocol import GpuProtocol
        from pytest_gpucoexist.session.returning import Returning

        # Also for malformed marks alone: xdist runs what else was collected, and such a test must not run as if it
        # needed nothing.
        config.pluginmanager.register(GpuProtocol(gpu_session), "gpucoexist-protocol")
        config.pluginmanager.register(Returning(gpu_session), "gpucoexist-returning")
        if gpu_session.link is not None:
            from pytest_gpucoexist.session.packing import Packing

            config.pluginmanager.register(Packing(), "gpucoexist-packing")
    ranks = _join_ranks(gpu_session, session)
    if needs and not gpu_session.is_worker:
        # Workers ask the controller at their first GPU test; here a bad recording is still a usage error.
        try:
            gpu_session.prepare(gpu_session.selected_needs)
            if gpu_session.options.lease_dir is not None and not gpu_session.hypothetical:
                _ = gpu_session.leaser  # a folder that cannot be used is said before the first test
        except GpuCoexistError as error:
            if gpu_session.stopped is not None:
                from pytest_gpucoexist.session.gating import stop_serial

                stop_serial(session, gpu_session.stopped)
            raise pytest.UsageError(str(error)) from None
        from pytest_gpucoexist.session.header import CollectionHeader, collection_header

        header = CollectionHeader([]) if gpu_session.link is not None else collection_header(gpu_session)
        if ranks is not None:
            header.lines.append(ranks.line)
            ranks.agree(session)
        config.pluginmanager.register(header, "gpucoexist-collected")


# Set by torchrun, Open MPI, MPICH and srun; nothing is imported without any.
_LAUNCHERS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_STEP_NUM_TASKS")


def _join_ranks(gpu_session: GpuSession, session: pytest.Session) -> RankProtocol | None:
    """Meet the other ranks of this process's job, if it is a rank."""
    if not any(name in os.environ for name in _LAUNCHERS):
        return None
    from pytest_gpucoexist.session.rank_join import join_ranks

    job = join_ranks(gpu_session, session)
    if job is None:
        return None
    from pytest_gpucoexist.session.ranks import RankProtocol

    ranks = RankProtocol(gpu_session, job, min(RANK_GRACE_S, gpu_session.options.rank_deadline_s))
    session.config.pluginmanager.register(ranks, "gpucoexist-ranks")
    return ranks


def fail_collection(session: pytest.Session, nodeid: str, message: str) -> None:
    """Report an error that belongs to no test: it shows in the terminal, in JUnit and in the exit status."""
    report = pytest.CollectReport(nodeid=nodeid, outcome="failed", longrepr=message, result=[])
    session.config.hook.pytest_collectreport(report=report)

"""Join the ranks of this job once tests are collected that need a GPU, or end the run with what keeps them apart."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.errors import GpuCoexistError
from pytest_gpucoexist.placement.ranks.job import Hello
from pytest_gpucoexist.placement.ranks.place import JOB, RankPlace, rank_of, view_of
from pytest_gpucoexist.placement.ranks.wire import is_possible

if TYPE_CHECKING:
    from pytest_gpucoexist.placement.ranks.job import Job
    from pytest_gpucoexist.session.state import GpuSession

__all__ = ["join_ranks"]

_FILES = ("report", "write-skips")


def join_ranks(gpu_session: GpuSession, session: pytest.Session) -> Job | None:
    """Meet the other ranks of this node; None where this process is no rank, or the only one on its node.

    Ends the run, on all ranks, when one does not come or has other tests than the rest.
    """
    options = gpu_session.options
    if gpu_session.is_worker or options.plan or options.ranks == "off":
        return None
    place = rank_of(os.environ, os.getppid())
    if place is None or place.local_size < 2 or not is_possible():
        return None
    hello = Hello(
        rank=place.rank,
        tests=tuple(item.nodeid for item in session.items),
        options={name: text for name, text in options.given.items() if name not in _FILES},
        view=view_of(os.environ, place),
        files=_files(gpu_session),
    )
    try:
        job = _met(gpu_session, place, hello, options.rank_deadline_s)
    except GpuCoexistError as error:
        from pytest_gpucoexist.session.collecting import fail_collection

        text = f"{place.size} ranks of {place.launcher} cannot go together: {error}. --gpu-ranks=off leaves each alone"
        fail_collection(session, "ranks", text)
        pytest.exit(text, returncode=pytest.ExitCode.TESTS_FAILED)
    os.environ[JOB] = place.job
    return job


def _met(gpu_session: GpuSession, place: RankPlace, hello: Hello, deadline_s: float) -> Job:
    from pytest_gpucoexist.session.rank_leaser import GroupLeases, RankLeaser

    if place.local_rank:
        from pytest_gpucoexist.placement.ranks.member import Member
        from pytest_gpucoexist.session.rank_link import RankLink

        member = Member(place, hello, deadline_s)
        # The leader begins to count when it comes, and answers at the latest when its time is over.
        said = member.gathered()
        gpu_session.link = RankLink(gpu_session, member, shared_view=said["shared_view"])  # type: ignore[assignment]
        gpu_session.rank_leaser = RankLeaser(member, gpu_session.leaser)
        _own_files(gpu_session, place, said["same_files"])
        return member
    from pytest_gpucoexist.placement.ranks.leader import Leader
    from pytest_gpucoexist.session.rank_link import serve_machine
    from pytest_gpucoexist.session.ranks import resolve_begin

    leader = Leader(place, hello, deadline_s)
    serve_machine(gpu_session, leader)
    resolve_begin(gpu_session, leader)
    own = gpu_session.leaser
    gpu_session.rank_leaser = RankLeaser(leader, own, GroupLeases(leader, own, gpu_session.machine))
    try:
        leader.gather()
    except BaseException:
        leader.close()
        raise
    return leader


def _files(gpu_session: GpuSession) -> dict[str, str]:
    """Return what this rank is to write, by option, as absolute paths."""
    found: dict[str, Any] = {name: getattr(gpu_session.options, name.replace("-", "_")) for name in _FILES}
    found["junitxml"] = getattr(gpu_session.config.option, "xmlpath", None)
    folder = gpu_session.config.invocation_params.dir
    return {name: os.path.abspath(os.path.join(folder, path)) for name, path in found.items() if path}


def _own_files(gpu_session: GpuSession, place: RankPlace, names: list[str]) -> None:
    """Write to a file of this rank's own where another rank writes to the same one: `report.rank1.json`."""
    options = gpu_session.options
    for name in names:
        if name == "junitxml":
            from _pytest.junitxml import xml_key

            log = gpu_session.config.stash.get(xml_key, None)
            if log is not None:  # pytest has no public way to the path that it has read already
                log.logfile = _of_rank(log.logfile, place.rank)
        else:
            attribute = name.replace("-", "_")
            setattr(options, attribute, _of_rank(getattr(options, attribute), place.rank))


def _of_rank(path: str, rank: int) -> str:
    stem, suffix = os.path.splitext(path)
    return f"{stem}.rank{rank}{suffix}"

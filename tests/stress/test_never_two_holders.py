"""Nobody exceeds a device, no test is lost and nothing is left, whatever dies, stops or is removed meanwhile.

`GPUCOEXIST_STRESS=1` runs it (part `stress` of `.ci/run`), `GPUCOEXIST_STRESS=long` for longer. The seed is printed,
and `GPUCOEXIST_STRESS_SEED` sets it: the same tests then, and the same choices of what goes wrong, at other moments.
"""

from __future__ import annotations

import os
import random
import shutil
import uuid

import pytest

from tests.stress.match import ground, play
from tests.stress.sessions import Session
from tests.stress.suite import memory_mib

OTHER_UID = 54321

needs_asking = pytest.mark.skipif(
    os.environ.get("GPUCOEXIST_STRESS", "0") in {"", "0"}, reason="needs GPUCOEXIST_STRESS=1: it takes minutes"
)
needs_root = pytest.mark.skipif(
    getattr(os, "geteuid", lambda: 1)() != 0 or shutil.which("unshare") is None or shutil.which("setpriv") is None,
    reason="needs root, unshare and setpriv: it runs sessions of two users in two mount namespaces",
)
pytestmark = [pytest.mark.slow, needs_asking, needs_root]


@pytest.fixture
def seed() -> int:
    chosen = int(os.environ.get("GPUCOEXIST_STRESS_SEED") or random.randrange(2**32))
    print(f"GPUCOEXIST_STRESS_SEED={chosen}")
    return chosen


def sessions(*more: str, workers: int = 4) -> list[Session]:
    """Two users, each in two mount namespaces; two of four hand tests out by need; one loses its controller."""
    common = ("-n", str(workers), "--gpu-wait=120", *more)
    auto = ("--gpu-dist=auto",)
    return [
        Session(name="root", uid=0, namespace=False, arguments=common),
        Session(name="other", uid=OTHER_UID, namespace=False, arguments=(*common, *auto)),
        Session(name="root-inside", uid=0, namespace=True, arguments=(*common, *auto)),
        Session(name="other-inside", uid=OTHER_UID, namespace=True, arguments=common, dies=True),
    ]


def test_never_two_holders(seed: int) -> None:
    long = os.environ["GPUCOEXIST_STRESS"] == "long"
    with ground(uuid.uuid4().hex) as here:
        everybody = sessions()
        outcome = play(
            here, everybody, tests=3000 if long else 300, seed=seed, limit_s=1800 if long else 150, faults=True
        )
        print(f"{outcome.seconds:.0f} s, {outcome.faults}")
        for key, report in outcome.referees.items():
            print(key, {name: value for name, value in report.items() if name != "exceeded"})
        assert outcome.exceeded() == []
        assert outcome.wrong == []
        assert outcome.left == []
        assert [report["left"] for report in outcome.referees.values()] == [[]] * len(memory_mib())
        # What was meant to happen did: else the lines above say little.
        assert all(outcome.faults.values()), outcome.faults
        wheres = {where for report in outcome.referees.values() for where in report["grants"]}
        assert len(wheres) == 4, wheres
        assert sum(report["deaths"] for report in outcome.referees.values()) > 0
        assert all(report["most_holders"] > 1 for report in outcome.referees.values()), "no share beside another"
        assert all(report["most_mib"] == report["memory_mib"] for report in outcome.referees.values())


def test_without_leases_the_referees_see_it(seed: int) -> None:
    """The referees can tell: the same tests without leases have two holders at once."""
    with ground(uuid.uuid4().hex) as here:
        outcome = play(here, sessions("--gpu-lease=off")[:2], tests=60, seed=seed, limit_s=60, faults=False)
        assert outcome.wrong == []
        assert outcome.exceeded() != []

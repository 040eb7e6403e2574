"""What an unprivileged user is told: what could not be read is unknown, with the reason."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from pytest_gpucoexist.model.verdicts import Judgement
from tests.vm.guest.drivers import RENDER, VIDEO, load
from tests.vm.guest.judging import SAID

USER = 1000


def doctor(*groups: int) -> Judgement:
    """Run `gpucoexist doctor` as an ordinary user."""
    argv = [
        sys.executable,
        "-m",
        "pytest_gpucoexist",
        "doctor",
        "--json",
        "--level",
        "quick",
        "--require=nvidia:1,amd:1",
    ]
    done = subprocess.run(
        argv, capture_output=True, text=True, check=False, timeout=120, user=USER, group=USER, extra_groups=groups
    )
    assert done.returncode in {0, 1}, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    judgement = Judgement.from_json(told.get("judgement", told))
    SAID.extend(judgement.verdicts)
    return judgement


def of(judgement: Judgement, gate: str) -> list[Any]:
    return [verdict for verdict in judgement.verdicts if verdict.id == gate]


@pytest.mark.proves("klog.nv.xid", "UNKNOWN", on="vm")
@pytest.mark.proves("dev.render", "FAIL", on="vm")
@pytest.mark.proves("dev.amd.kfd", "FAIL", on="vm")
def test_a_user_in_no_group() -> None:
    load()
    judgement = doctor()
    (log,) = of(judgement, "klog.nv.xid")
    assert log.status == "UNKNOWN"
    assert "kernel.dmesg_restrict is 1, so only root (CAP_SYSLOG) may read the kernel's log" in log.reason
    for gate in ("dev.render", "dev.amd.kfd"):
        found = [each for each in of(judgement, gate) if each.status == "FAIL"]
        assert found, of(judgement, gate)
        assert (
            any("usermod -aG" in line for each in found for fix in each.fix for line in fix.lines)
            or "group" in found[0].action
        )


@pytest.mark.proves("dev.render", "PASS", on="vm")
@pytest.mark.proves("dev.amd.kfd", "PASS", on="vm")
def test_a_user_in_the_groups_of_the_nodes() -> None:
    load()
    judgement = doctor(VIDEO, RENDER)
    for gate in ("dev.render", "dev.amd.kfd"):
        assert {each.status for each in of(judgement, gate)} == {"PASS"}, of(judgement, gate)

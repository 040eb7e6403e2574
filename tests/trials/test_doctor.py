"""The way of `gpucoexist doctor --level transfer` on drivers without hardware: leases, trials, judgement, progress."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("numpy", reason="needs NumPy")
pytest.importorskip("execnet", reason="needs execnet")

from pytest_gpucoexist.cli.trying import after_trials
from pytest_gpucoexist.gates.catalogue import all_gates
from pytest_gpucoexist.gates.runner import judge
from pytest_gpucoexist.gates.subject import Subject
from pytest_gpucoexist.host import local_host
from pytest_gpucoexist.leases.opening import open_leaser
from pytest_gpucoexist.model.groups import Group
from pytest_gpucoexist.model.requirement import Requirement
from tests.staging.conftest import AMD, MACHINE, NVIDIA

if TYPE_CHECKING:
    from tests.fakes.machine import FakeMachine

DRIVERS = {"nvidia": "nvidia", "amd": "amdgpu"}
REAL = replace(MACHINE, gpus=tuple(replace(gpu, driver=DRIVERS[gpu.vendor]) for gpu in (NVIDIA[0], NVIDIA[1], AMD[0])))
GATES = [gate for gate in all_gates() if gate.group.startswith("transfer-")]


def test_devices_are_held_tried_and_judged(
    fake_gpus: FakeMachine,
    fake_cuda: dict[str, str],
    fake_hip: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in {**fake_cuda, **fake_hip}.items():
        monkeypatch.setenv(name, value)
    folders = [each["LD_LIBRARY_PATH"] for each in (fake_cuda, fake_hip)]
    monkeypatch.setenv("LD_LIBRARY_PATH", os.pathsep.join(folders))
    fake_gpus.put({"nvidia.0.h2d_gbps": 2})
    host = local_host()
    subject = Subject(host=host, machine=REAL, level="full")
    other = open_leaser(lambda: REAL, host, session="another")
    key = NVIDIA[1].key
    wanted = Group(requirement=Requirement(device=key, exclusive=True), candidates=(key,))
    lease = other.acquire([wanted], "somebody else's test", timeout_s=5)
    try:
        tried = after_trials(subject, judge(subject, gates=[]), budget_s=100)
    finally:
        other.release(lease)
        other.close()
    assert tried is not None
    judgement = judge(tried, gates=GATES)
    said = {(each.id, each.status): each for each in judgement.verdicts}
    assert set(said["xfer.roundtrip", "PASS"].devices) == {NVIDIA[0].key, AMD[0].key}
    assert said["xfer.roundtrip", "UNKNOWN"].devices == (key,)
    assert said["xfer.roundtrip", "UNKNOWN"].reason.startswith("in use by others")
    assert ("xfer.staged.cross", "PASS") in said
    assert judgement.unfit == {}
    assert "gpucoexist: trying nvidia0" in capsys.readouterr().err

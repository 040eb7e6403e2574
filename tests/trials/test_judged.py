"""A slow link, a path that corrupts and a peer that lies, on drivers without hardware: judged, just these."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("numpy", reason="needs NumPy")
pytest.importorskip("execnet", reason="needs execnet")

from pytest_gpucoexist.gates.catalogue import all_gates
from pytest_gpucoexist.gates.runner import judge
from pytest_gpucoexist.gates.subject import Subject
from pytest_gpucoexist.host import local_host
from pytest_gpucoexist.trials.run import try_devices
from tests.staging.conftest import AMD, MACHINE, NVIDIA

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fakes.machine import FakeMachine

SLOW, CORRUPT = NVIDIA[1].key, AMD[1].key


def test_three_faults_are_three_devices_or_pairs_and_nothing_else_fails(
    opener: Callable[..., Any], fake_gpus: FakeMachine, fake_cuda: dict[str, str], fake_hip: dict[str, str]
) -> None:
    fake_gpus.put({f"nvidia.{n}.{way}_gbps": 2 for n in (0, 1) for way in ("h2d", "d2h")})
    fake_gpus.put({f"amd.{n}.{way}_gbps": 2 for n in (0, 1) for way in ("h2d", "d2h")})
    fake_gpus.put({"nvidia.1.h2d_gbps": 0.25})
    orders = [
        fake_gpus.order("amd.1.copy.h2d", "flip 70", each=True),
        fake_gpus.order("nvidia.0.copy.peer.1", "zeros", each=True),
    ]
    environ = {"nvidia": fake_cuda, "amd": fake_hip}
    trials = try_devices(
        MACHINE.gpus,
        host=local_host(),
        opener=lambda gpus: opener(gpus, environ[gpus[0].vendor]),
        budget_s=100,
        seed=1,
    )
    for order in orders:
        order.withdraw()
    gates = [gate for gate in all_gates() if gate.group.startswith("transfer-")]
    # This host is so busy at times that rates vary, and what is noisy never fails: not the matter here.
    limits = {"bw.stability": {"percent": 1000.0}, "bw.siblings": {"pass_percent": 50.0, "fail_percent": 60.0}}
    subject = Subject(host=local_host(), machine=MACHINE, level="transfer", trials=trials, limits=limits)
    judgement = judge(subject, gates=gates)
    said = {(each.id, key) for each in judgement.verdicts if each.status == "FAIL" for key in each.devices}
    integrity = {each for each in said if each[0].startswith("xfer.")}
    assert {key for name, key in integrity if name != "xfer.p2p.lie"} == {CORRUPT}
    assert {key for name, key in integrity if name == "xfer.p2p.lie"} == {NVIDIA[0].key, NVIDIA[1].key}
    assert {each for each in said if each[0] == "bw.siblings"} == {("bw.siblings", SLOW)}
    assert set(judgement.unfit) == {CORRUPT}
    assert [each.reason for each in judgement.verdicts if each.status == "ERROR"] == []

"""The real nvidia-ml-py and amdsmi on fake drivers: what they answer is what the reply builders build."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpucoexist.host import local_host
from pytest_gpucoexist.testing.vendor_replies import amdsmi_reply, nvml_reply
from tests.vendor.machines import A100, MI210, RTX_4090, W7900

if TYPE_CHECKING:
    from tests.fakes.machine import FakeMachine


def answer(helper: str) -> Any:
    reply = local_host().ask(helper, deadline_s=30)
    assert reply.status == "ok", reply.detail
    return reply.data


@pytest.fixture
def machine(fake_machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    for name, value in fake_machine.environ.items():
        monkeypatch.setenv(name, value)
    return fake_machine


def without_client(data: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key != "client"}


def test_nvml_answers_what_the_builder_builds(machine: FakeMachine) -> None:
    machine.nvidia(RTX_4090, A100, p2p=[(0, 1)])
    data = answer("nvml")
    assert without_client(data) == without_client(nvml_reply([RTX_4090, A100], p2p=[(0, 1)]))
    assert data["client"].keys() == nvml_reply([])["client"].keys()
    assert data["client"]["path"].endswith("pynvml.py")


def test_amdsmi_answers_what_the_builder_builds(machine: FakeMachine) -> None:
    machine.amd(W7900, MI210, p2p=[(0, 1)], link=2, hops=1)
    data = answer("amdsmi")
    assert without_client(data) == without_client(amdsmi_reply([W7900, MI210], p2p=[(0, 1)], link="xgmi", hops=1))
    assert data["client"].keys() == amdsmi_reply([])["client"].keys()

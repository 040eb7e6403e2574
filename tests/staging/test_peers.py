"""Direct copies are used when data have proven them, and what a runtime says for itself proves nothing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("numpy", reason="needs NumPy")
pytest.importorskip("execnet", reason="needs execnet")

from pytest_gpucoexist.staging.peers import prove_peers
from pytest_gpucoexist.staging.service import Staging
from tests.processes.conftest import children

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fakes.machine import FakeMachine


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_proven_peers_are_used(devices: Callable[..., Any], vendor: str) -> None:
    first, second = devices(vendor, 2)
    before = children()
    with Staging() as staging, first.allocate(100) as given, second.allocate(100) as taken:
        assert staging.copy(given, taken).route == "staged"
        found = prove_peers(staging, first, second, opted_in=True)
        assert (found.status, found.reason) == ("proven", "")
        assert staging.copy(given, taken).route == "peer"
        assert staging.copy(taken, given).route == "staged"  # the other direction was not tried
    assert children() == before


@pytest.mark.parametrize(
    ("action", "status", "words"),
    [
        ("zeros", "wrong", "8 bytes from .*: zeros arrived, although"),
        ("drop", "wrong", "8 bytes from .*: nothing arrived, although"),
        ("lost 719", "failed", "CUDA_ERROR_LAUNCH_FAILED"),
        ("kill", "failed", "SIGKILL"),
        ("hang", "failed", "did not end within"),
    ],
)
def test_a_peer_that_lies_or_fails_costs_only_the_process_that_tried(
    devices_of_fakes: Callable[..., Any], fake_gpus: FakeMachine, action: str, status: str, words: str
) -> None:
    first, second = devices_of_fakes("nvidia", 2)
    before = children()
    with Staging() as staging, first.allocate(100) as given, second.allocate(100) as taken:
        order = fake_gpus.order("nvidia.0.copy.peer.1", action, each=True)
        found = prove_peers(staging, first, second, copy_s=0.5, deadline_s=20.0)
        assert order.struck >= 1
        order.withdraw()
        fake_gpus.put({"nvidia.0.lost": None})
        assert (found.status, found.source, found.target) == (status, first.key, second.key)
        assert re.search(words, found.reason), found.reason
        assert children() == before
        assert staging.copy(given, taken).route == "staged"
        assert prove_peers(staging, first, second).status == "proven"


def test_a_proof_that_fails_later_takes_the_earlier_one_back(
    devices_of_fakes: Callable[..., Any], fake_gpus: FakeMachine
) -> None:
    first, second = devices_of_fakes("nvidia", 2)
    with Staging() as staging:
        assert prove_peers(staging, first, second).status == "proven"
        order = fake_gpus.order("nvidia.0.copy.peer.1", "flip 5", at=3)
        found = prove_peers(staging, first, second)
        assert order.struck == 1
        assert (found.status, staging.route(first, second)) == ("wrong", "staged")
        assert "what arrived differs from byte 5 on" in found.reason


def test_what_is_not_tried(devices_of_fakes: Callable[..., Any], fake_gpus: FakeMachine) -> None:
    first, second = devices_of_fakes("amd", 2)
    (other,) = devices_of_fakes("nvidia")
    with Staging() as staging:
        found = prove_peers(staging, first, second)
        assert found.status == "untried"
        assert "on demand" in found.reason
        assert prove_peers(staging, first, other).status == "untried"
    assert fake_gpus.copied("amd.0.peer.1") == (0, 0)


def test_a_runtime_that_says_no(devices_of_fakes: Callable[..., Any], fake_gpus: FakeMachine) -> None:
    fake_gpus.put({"nvidia.p2p.0.1": None})
    first, second = devices_of_fakes("nvidia", 2)
    with Staging() as staging:
        found = prove_peers(staging, first, second)
    assert found.status == "refused"
    assert second.key in found.reason

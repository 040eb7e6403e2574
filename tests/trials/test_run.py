"""Trials find what is wrong with devices and paths, nothing else, within their budget, and lose only who is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("numpy", reason="needs NumPy")
pytest.importorskip("execnet", reason="needs execnet")

from pytest_gpucoexist.host import local_host
from pytest_gpucoexist.model.trials import HOST, Trials
from pytest_gpucoexist.trials import rates
from pytest_gpucoexist.trials.run import try_devices
from tests.staging.conftest import AMD, NVIDIA

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fakes.machine import FakeMachine

GPUS = [*NVIDIA, *AMD]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time small copies: what is looked at here is which are made."""
    monkeypatch.setattr(rates, "SIZE", 4 << 20)
    monkeypatch.setattr(rates, "_TRY", 1 << 20)
    monkeypatch.setattr(rates, "_SLICE", 1 << 20)


KINDS = {"roundtrip", "pageable", "epoch", "d2d_local", "staged", "p2p"}


@pytest.fixture
def tried(opener: Callable[..., Any], fake_cuda: dict[str, str], fake_hip: dict[str, str]) -> Callable[..., Trials]:
    """Try the devices of `fake_gpus`."""
    environ = {"nvidia": fake_cuda, "amd": fake_hip}

    def trial(**how: Any) -> Trials:
        how = {"level": "transfer", "budget_s": 100.0, "seed": 1, **how}
        return try_devices(
            how.pop("gpus", GPUS), host=local_host(), opener=lambda gpus: opener(gpus, environ[gpus[0].vendor]), **how
        )

    return trial


def wrong_ways(trials: Trials) -> set[tuple[str, str, str]]:
    return {(each.kind, each.source, each.target) for each in trials.integrity if each.wrong}


def test_on_simulated_devices(opener: Callable[..., Any]) -> None:
    steps: list[str] = []
    trials = try_devices(
        GPUS, host=local_host(), opener=opener, budget_s=100, simulated=True, seed=5, progress=steps.append
    )
    assert {each.kind for each in trials.integrity} == KINDS
    assert wrong_ways(trials) == set()
    assert trials.untried == ()
    ways = {(each.source, each.target) for each in trials.integrity if each.kind == "staged"}
    assert ways == {(one.key, other.key) for one in GPUS for other in GPUS if one.vendor != other.vendor}
    for kind, count in {"h2d": 4, "d2h": 4, "staged": 8, "together": 4}.items():
        samples = [each for each in trials.samples if each.kind == kind]
        assert len(samples) == count
        assert all(each.bytes_per_s and each.seconds for each in samples)
    assert trials.facts["host_canary"]["changed"] == []
    assert "nvidia0 -> amd0" in steps
    assert Trials.from_json(trials.to_json()) == trials


def test_full_tries_peers_of_amd_and_serial_copies(opener: Callable[..., Any]) -> None:
    gpus = [NVIDIA[0], *AMD]
    trials = try_devices(gpus, host=local_host(), opener=opener, level="full", budget_s=200, simulated=True, seed=6)
    assert {(each.source, each.target) for each in trials.integrity if each.kind == "p2p"} == {
        (AMD[0].key, AMD[1].key),
        (AMD[1].key, AMD[0].key),
    }
    assert len([each for each in trials.samples if each.kind == "serial"]) == 4
    assert max(size for each in trials.integrity for size in each.sizes) > 64 << 20
    assert wrong_ways(trials) == set()


def test_without_a_budget_everything_is_said_to_be_untried(opener: Callable[..., Any]) -> None:
    trials = try_devices(GPUS[:1], host=local_host(), opener=opener, budget_s=0, simulated=True)
    assert (trials.integrity, trials.samples) == ((), ())
    assert [(each.kind, each.source, each.reason) for each in trials.untried] == [
        ("open", NVIDIA[0].key, "the budget was used up")
    ]


def test_three_faults_and_nothing_else(tried: Callable[..., Trials], fake_gpus: FakeMachine) -> None:
    """A slow link, a path that corrupts, a peer that lies."""
    fake_gpus.put({"nvidia.0.h2d_gbps": 4, "nvidia.0.d2h_gbps": 4, "nvidia.1.h2d_gbps": 0.5, "nvidia.1.d2h_gbps": 4})
    fake_gpus.put({f"amd.{n}.{way}_gbps": 4 for n in (0, 1) for way in ("h2d", "d2h")})
    corrupting = fake_gpus.order("amd.1.copy.h2d", "flip 70", each=True)
    lying = fake_gpus.order("nvidia.0.copy.peer.1", "zeros", each=True)
    trials = tried()
    corrupting.withdraw()
    lying.withdraw()
    assert trials.untried == ()
    found = wrong_ways(trials)
    # Whatever is loaded to the second AMD device is wrong, from wherever it comes, and nothing else is.
    assert {way for way in found if AMD[1].key not in way} == {("p2p", NVIDIA[0].key, NVIDIA[1].key)}
    assert {("roundtrip", HOST, AMD[1].key), ("staged", NVIDIA[0].key, AMD[1].key)} <= found
    (lie,) = [each for each in trials.integrity if each.kind == "p2p" and each.wrong]
    assert {each.kind for each in lie.wrong} == {"zeros"}
    staged = {(each.source, each.target): each for each in trials.integrity if each.kind == "staged"}
    assert {each.hop for each in staged[NVIDIA[0].key, AMD[1].key].wrong} == {"second"}
    rates = {each.target: each.bytes_per_s for each in trials.samples if each.kind == "h2d"}
    slow = rates.pop(NVIDIA[1].key)
    assert slow is not None
    assert all(rate is not None and rate > 1.5 * slow for rate in rates.values())


def test_a_device_that_is_lost_costs_its_own_trials(tried: Callable[..., Trials], fake_gpus: FakeMachine) -> None:
    order = fake_gpus.order("nvidia.1.copy.d2h", "lost 719", at=3)
    trials = tried()
    order.withdraw()
    lost = {each.kind for each in trials.untried if NVIDIA[1].key in (each.source, each.target)}
    assert "roundtrip" in lost
    assert {each.status for each in trials.untried if each.kind == "roundtrip"} == {"ERROR"}
    assert wrong_ways(trials) == set()
    good = [gpu.key for gpu in GPUS if gpu is not NVIDIA[1]]
    assert {each.target for each in trials.samples if each.kind == "h2d"} == set(good)
    assert {each.target for each in trials.integrity if each.kind == "epoch"} == set(good)


def test_a_process_that_dies_costs_its_own_trials(tried: Callable[..., Trials], fake_gpus: FakeMachine) -> None:
    order = fake_gpus.order("amd.0.copy.h2d", "segv", at=2)
    trials = tried()
    assert order.struck == 1
    (roundtrip,) = [each for each in trials.untried if each.kind == "roundtrip"]
    assert (roundtrip.source, roundtrip.status) == (AMD[0].key, "ERROR")
    assert "SIGSEGV" in roundtrip.reason
    assert {each.target for each in trials.samples if each.kind == "h2d"} == {g.key for g in GPUS if g is not AMD[0]}


def test_without_a_driver(opener: Callable[..., Any]) -> None:
    trials = try_devices(NVIDIA, host=local_host(), opener=opener, budget_s=60)
    assert [(each.kind, each.source, each.status) for each in trials.untried] == [
        ("open", gpu.key, "UNKNOWN") for gpu in NVIDIA
    ]
    assert all("libcuda.so.1" in each.reason for each in trials.untried)


def test_one_that_fails_beside_others_is_named(tried: Callable[..., Trials], fake_gpus: FakeMachine) -> None:
    """Of copies that are made at once; each device has made fewer before."""
    before = fake_gpus.copied("amd.0.h2d")[0]
    tried(gpus=[AMD[0], AMD[1]])
    alone = fake_gpus.copied("amd.0.h2d")[0] - before
    trials = tried(gpus=[AMD[0]])
    assert trials.untried == ()
    order = fake_gpus.order("amd.0.copy.h2d", "lost 719", at=alone // 2)
    trials = tried(gpus=[AMD[0], AMD[1]])
    order.withdraw()
    lost = [each for each in trials.untried if each.status == "ERROR"]
    assert {each.source for each in lost} == {AMD[0].key}
    assert {each.target for each in trials.integrity if each.kind == "epoch"} >= {AMD[1].key}

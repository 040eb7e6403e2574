"""Rates against the slowest hop, with numbers that others have measured on real links."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_gpucoexist.gates.catalogue import all_gates
from pytest_gpucoexist.gates.runner import judge
from pytest_gpucoexist.model.trials import SIMULATED, LinkReading, Untried
from tests.gates.judging import judged, subject_of
from tests.gates.transfer.tried import AMD, GEN3, GEN4, GEN5, NV0, NV1, said, sample, trials, two_and_one, verified

STAGED = {"source": NV0, "target": AMD, "route": "staged"}


@pytest.mark.proves("bw.h2d", "PASS", on="values")
@pytest.mark.proves("bw.d2h", "PASS", on="values")
def test_healthy_cards_pass() -> None:
    for there, back, link in ((23.85, 26.55, GEN4), (55.43, 55.06, GEN5), (12.15, 12.15, GEN3)):
        assert set(said("bw.h2d", sample("h2d", there, link=link))) == {"PASS"}
        assert set(said("bw.d2h", sample("d2h", back, link=link))) == {"PASS"}


@pytest.mark.proves("bw.h2d", "FAIL", on="values")
@pytest.mark.proves("bw.d2h", "FAIL", on="values")
def test_the_wrong_socket_fails_and_blocks_nothing() -> None:
    found = said("bw.h2d", sample("h2d", 3.78, link=GEN3))["FAIL"]
    assert "3.78 GB/s, 24 %" in found.reason
    assert not found.blocks
    assert "FAIL" in said("bw.d2h", sample("d2h", 3.78, link=GEN3))


def test_between_the_bands_is_a_warning_and_limits_move_them() -> None:
    assert set(said("bw.h2d", sample("h2d", 18.4))) == {"WARN"}


def test_noisy_rates_never_fail() -> None:
    assert set(said("bw.h2d", sample("h2d", 3.78, link=GEN3, spread=0.2))) == {"WARN"}


def test_memory_of_another_node_and_small_copies_are_not_judged() -> None:
    assert set(said("bw.h2d", sample("h2d", 3.78, node_is_local=False))) == {"SKIP"}
    assert set(said("bw.h2d", sample("h2d", 3.78, size_bytes=1 << 20))) == {"SKIP"}


def test_a_link_that_was_not_read_is_unknown() -> None:
    assert set(said("bw.h2d", sample("h2d", 23.85, links=()))) == {"UNKNOWN"}


@pytest.mark.proves("bw.asymmetry", "PASS", on="values")
@pytest.mark.proves("bw.asymmetry", "WARN", on="values")
def test_directions() -> None:
    assert set(said("bw.asymmetry", sample("h2d", 23.85), sample("d2h", 26.55))) == {"PASS"}
    assert "54 %" in said("bw.asymmetry", sample("h2d", 26.55), sample("d2h", 12.3))["WARN"].reason


@pytest.mark.proves("bw.siblings", "PASS", on="values")
@pytest.mark.proves("bw.siblings", "FAIL", on="values")
def test_the_odd_one_out() -> None:
    found = said("bw.siblings", sample("h2d", 26.5), sample("h2d", 23.0, NV1), sample("h2d", 10.0, AMD))
    assert (found["PASS"].devices, found["FAIL"].devices) == ((NV0,), (NV1,))
    already = said("bw.siblings", sample("h2d", 26.5), sample("h2d", 3.0, NV1))
    assert set(already) == {"SKIP"}, "bw.h2d says it"


@pytest.mark.proves("bw.staged.cross", "PASS", on="values")
@pytest.mark.proves("bw.staged.cross", "FAIL", on="values")
def test_staged_copies_against_the_slower_side() -> None:
    sides = sample("d2h", 26.55), sample("h2d", 12.15, AMD)
    assert "PASS" in said("bw.staged.cross", *sides, sample("staged", 10.0, **STAGED))
    assert "WARN" in said("bw.staged.cross", *sides, sample("staged", 6.0, **STAGED))
    assert "25 % of the slower side" in said("bw.staged.cross", *sides, sample("staged", 3.0, **STAGED))["FAIL"].reason
    assert "UNKNOWN" in said("bw.staged.cross", sample("staged", 3.0, **STAGED))


@pytest.mark.proves("bw.staged.gain", "PASS", on="values")
@pytest.mark.proves("bw.staged.gain", "WARN", on="values")
def test_overlap() -> None:
    sides = sample("d2h", 12.0), sample("h2d", 12.0, AMD)
    serial = sample("serial", 6.0, **STAGED)
    assert "PASS" in said("bw.staged.gain", *sides, serial, sample("staged", 11.0, **STAGED))
    assert "1.02 times" in said("bw.staged.gain", *sides, serial, sample("staged", 6.1, **STAGED))["WARN"].reason


@pytest.mark.proves("bw.concurrent_all", "PASS", on="values")
@pytest.mark.proves("bw.concurrent_all", "WARN", on="values")
def test_all_at_once() -> None:
    alone = sample("h2d", 24.0), sample("h2d", 24.0, NV1)
    small = 16 << 20
    good = [sample("together", 20.0, key, size_bytes=small) for key in (NV0, NV1)]
    assert "PASS" in said("bw.concurrent_all", *alone, *good)
    shared = [sample("together", 12.0, key, size_bytes=small) for key in (NV0, NV1)]
    assert "50 %" in said("bw.concurrent_all", *alone, *shared)["WARN"].reason


@pytest.mark.proves("pcie.speed_under_load", "PASS", on="values")
@pytest.mark.proves("pcie.speed_under_load", "FAIL", on="values")
def test_a_link_that_stays_slow_under_load() -> None:
    assert set(said("pcie.speed_under_load", sample("h2d", 23.85))) == {"PASS"}
    assert "2.5 GT/s under load" in said("pcie.speed_under_load", sample("h2d", 3.0, link=(2.5, 4e9)))["FAIL"].reason


@pytest.mark.proves("pcie.flap", "PASS", on="values")
@pytest.mark.proves("pcie.flap", "WARN", on="values")
@pytest.mark.proves("bw.link_consistent", "PASS", on="values")
@pytest.mark.proves("bw.link_consistent", "WARN", on="values")
def test_a_link_that_changes_while_it_is_used() -> None:
    still = sample("h2d", 23.85)
    speeds = ((0.0, 2.5, 4e9), (0.1, 16.0, 31.51e9), (0.2, 2.5, 4e9), (0.3, 16.0, 31.51e9))
    links = tuple(LinkReading(at=at, hop=NV0, speed_gts=gts, width=16, bytes_per_s=many) for at, gts, many in speeds)
    for gate in ("pcie.flap", "bw.link_consistent"):
        assert set(said(gate, still)) == {"PASS"}
        assert set(said(gate, replace(still, links=links))) == {"WARN"}
        assert set(said(gate, replace(still, links=links[:2]))) == {"PASS"}, "it woke up"


@pytest.mark.proves("bw.stability", "PASS", on="values")
@pytest.mark.proves("bw.stability", "WARN", on="values")
def test_spread() -> None:
    assert set(said("bw.stability", sample("h2d", 23.85))) == {"PASS"}
    assert set(said("bw.stability", sample("h2d", 23.85, spread=0.2))) == {"WARN"}


@pytest.mark.proves("bw.not_on_tiny", "PASS", on="values")
@pytest.mark.proves("bw.not_on_tiny", "WARN", on="values")
def test_small_copies_are_named() -> None:
    assert set(said("bw.not_on_tiny", sample("h2d", 23.85))) == {"PASS"}
    assert set(said("bw.not_on_tiny", sample("h2d", 23.85, size_bytes=4 << 20))) == {"WARN"}
    assert set(said("bw.not_on_tiny", sample("h2d", 0.1, size_bytes=4 << 20))) == {"PASS"}, "it takes 40 ms"


def test_a_missing_measurement_fails_closed_and_a_reason_to_ignore_it_opens() -> None:
    whole = [verified("roundtrip", "host", key) for key in (NV0, NV1, AMD)]
    asked = {"level": "full", "trials": trials(*whole)}
    assert judged(two_and_one(), "bw.missing_data", "xfer.roundtrip", **asked).fit is None
    gates = [gate for gate in all_gates() if gate.id in {"bw.missing_data", "xfer.roundtrip"}]
    ignoring = judge(subject_of(two_and_one(), **asked), gates=gates, ignore={"bw.missing_data": "no rates wanted"})
    assert ignoring.fit is True


@pytest.mark.proves("bw.missing_data", "PASS", on="values")
@pytest.mark.proves("bw.missing_data", "ERROR", on="values")
def test_what_is_missing_is_an_error_and_no_pass() -> None:
    whole = [
        each
        for key in (NV0, NV1, AMD)
        for each in (sample("h2d", 23.85, key), sample("d2h", 23.85, key), verified("roundtrip", "host", key))
    ]
    assert set(said("bw.missing_data", *whole)) == {"PASS"}
    assert said("bw.missing_data", *whole[1:])["ERROR"].reason == "not measured: h2d"
    for bad in (0.0, float("nan"), float("inf")):
        broken = replace(sample("h2d", 23.85), seconds=(bad, 1.0))
        assert said("bw.missing_data", broken, *whole[1:])["ERROR"].devices == (NV0,)
    lost = Untried(kind="open", source=NV0, target=None, reason="the device is lost", status="ERROR")
    assert said("bw.missing_data", *whole[3:], untried=(lost,))["ERROR"].reason == "open: the device is lost"
    used = Untried(kind="device", source=NV0, target=None, reason="in use by python (7)")
    assert set(said("bw.missing_data", *whole[3:], untried=(used,))) == {"SKIP"}


def test_rates_of_simulated_devices_are_not_judged() -> None:
    memory = sample("h2d", 3.0, notes=(SIMULATED,))
    assert set(said("bw.h2d", memory)) == {"SKIP"}
    assert set(said("bw.stability", memory)) == {"SKIP"}


def test_siblings_are_compared_where_links_cannot_be_read() -> None:
    found = said("bw.siblings", sample("h2d", 26.5, links=()), sample("h2d", 20.0, NV1, links=()))
    assert (found["PASS"].devices, found["FAIL"].devices) == ((NV0,), (NV1,))

"""What arrives wrong blocks, and takes out the device that it is laid to; a lie about peers is the platform's."""

from __future__ import annotations

import pytest

from tests.gates.judging import judged
from tests.gates.transfer.tried import AMD, NV0, NV1, said, sample, trials, two_and_one, verified, wrong

ALONE = {"xfer.roundtrip": "roundtrip", "xfer.pageable": "pageable", "xfer.epoch": "epoch"}


@pytest.mark.proves("xfer.roundtrip", "PASS", on="values")
@pytest.mark.proves("xfer.roundtrip", "FAIL", on="values")
@pytest.mark.proves("xfer.pageable", "PASS", on="values")
@pytest.mark.proves("xfer.pageable", "FAIL", on="values")
@pytest.mark.proves("xfer.epoch", "PASS", on="values")
@pytest.mark.proves("xfer.epoch", "FAIL", on="values")
def test_a_wrong_byte_takes_out_its_device_alone() -> None:
    for gate, kind in ALONE.items():
        found = said(gate, verified(kind), verified(kind, "host", NV1, wrong()))
        assert found["PASS"].devices == (NV0,)
        assert found["FAIL"].devices == (NV1,)
        assert found["FAIL"].blocks
        assert "flipped" in found["FAIL"].reason


@pytest.mark.proves("xfer.d2d_local", "PASS", on="values")
@pytest.mark.proves("xfer.d2d_local", "FAIL", on="values")
def test_a_card_whose_own_memory_is_wrong() -> None:
    found = said("xfer.d2d_local", verified("d2d_local", NV0, NV0), verified("d2d_local", AMD, AMD, wrong()))
    assert (found["PASS"].devices, found["FAIL"].devices) == ((NV0,), (AMD,))


@pytest.mark.proves("xfer.staged.cross", "PASS", on="values")
@pytest.mark.proves("xfer.staged.cross", "FAIL", on="values")
@pytest.mark.parametrize(
    ("hop", "blamed"),
    [("first", (NV0,)), ("loading", (NV0,)), ("second", (AMD,)), ("reading", (AMD,)), (None, (NV0, AMD))],
)
def test_the_hop_says_which_end_of_a_staged_copy_is_wrong(hop: str | None, blamed: tuple[str, ...]) -> None:
    right = verified("staged", NV1, AMD, route="staged")
    found = said("xfer.staged.cross", right, verified("staged", NV0, AMD, wrong(hop=hop), route="staged"))
    assert found["FAIL"].devices == blamed
    assert found["PASS"].devices == (NV1, AMD)


@pytest.mark.proves("xfer.p2p.lie", "FAIL", on="values")
@pytest.mark.proves("xfer.p2p.nv", "PASS", on="values")
def test_a_lying_peer_is_a_finding_of_its_own_and_takes_nothing_out() -> None:
    tried = trials(verified("p2p", NV0, NV1, wrong("zeros"), route="peer"))
    judgement = judged(two_and_one(), "xfer.*", level="full", trials=tried)
    assert [each.id for each in judgement.verdicts if each.status == "FAIL"] == ["xfer.p2p.lie"]
    assert judgement.unfit == {}


@pytest.mark.proves("xfer.p2p.lie", "PASS", on="values")
@pytest.mark.proves("xfer.p2p.nv", "FAIL", on="values")
def test_bytes_that_peers_change_block() -> None:
    tried = trials(verified("p2p", NV0, NV1, wrong("torn"), route="peer"))
    judgement = judged(two_and_one(), "xfer.*", level="full", trials=tried)
    assert [each.id for each in judgement.verdicts if each.status == "FAIL"] == ["xfer.p2p.nv"]
    assert set(judgement.unfit) == {NV0, NV1}


@pytest.mark.proves("xfer.p2p.amd", "PASS", on="values")
@pytest.mark.proves("xfer.p2p.amd", "FAIL", on="values")
def test_amd_peers() -> None:
    assert said("xfer.p2p.amd", verified("p2p", AMD, AMD, route="peer"))["PASS"].devices == (AMD,)
    assert said("xfer.p2p.amd", verified("p2p", AMD, AMD, wrong(), route="peer"))["FAIL"].blocks


@pytest.mark.proves("xfer.host_canary", "PASS", on="values")
@pytest.mark.proves("xfer.host_canary", "FAIL", on="values")
def test_a_canary_that_was_written_to_takes_everything_out() -> None:
    fact = {"size_bytes": 64 << 20, "locked": True, "changed": []}
    assert "PASS" in said("xfer.host_canary", facts={"host_canary": fact})
    tried = trials(facts={"host_canary": {**fact, "changed": [4 << 20]}})
    judgement = judged(two_and_one(), "xfer.host_canary", level="full", trials=tried)
    assert set(judgement.unfit) == {NV0, NV1, AMD}
    assert "UNKNOWN" in said("xfer.host_canary")


@pytest.mark.proves("xfer.hostreg", "PASS", on="values")
@pytest.mark.proves("xfer.hostreg", "WARN", on="values")
def test_memory_that_cannot_be_pinned_is_a_warning_with_its_reason() -> None:
    unpinned = sample("h2d", 9.6, NV1, pinned=False, notes=("CUDA_ERROR_OUT_OF_MEMORY",))
    found = said("xfer.hostreg", sample("h2d", 23.85), unpinned)
    assert (found["PASS"].devices, found["WARN"].devices) == ((NV0,), (NV1,))
    assert found["WARN"].evidence[0].found == "CUDA_ERROR_OUT_OF_MEMORY"


@pytest.mark.proves("numa.host_buffer_node", "PASS", on="values")
@pytest.mark.proves("numa.host_buffer_node", "WARN", on="values")
def test_a_buffer_on_another_node() -> None:
    far = sample("h2d", 3.78, NV1, node=1, node_is_local=False)
    found = said("numa.host_buffer_node", sample("h2d", 12.15), far)
    assert (found["PASS"].devices, found["WARN"].devices) == ((NV0,), (NV1,))


def test_without_trials_nothing_is_judged() -> None:
    judgement = judged(two_and_one(), "xfer.*", "bw.*", level="full")
    assert {each.status for each in judgement.verdicts} == {"SKIP"}

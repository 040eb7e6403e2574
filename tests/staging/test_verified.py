"""A verified copy finds what a driver does wrong, says in which hop, and nothing where nothing is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fakes.machine import FakeMachine

SIZES = (1, 3, 4097, (1 << 20) + 13)


@pytest.fixture
def staging() -> Any:
    pytest.importorskip("execnet", reason="needs execnet")
    from pytest_gpucoexist.staging.service import Staging

    with Staging() as service:
        yield service


def test_nothing_is_wrong(devices: Callable[..., Any], staging: Any) -> None:
    from pytest_gpucoexist.staging.verified import verified_copy, verified_roundtrip

    nvidia, amd = devices("nvidia", 2), devices("amd", 2)
    for source, target, routes in [
        (nvidia[0], amd[0], ["auto", "serial"]),
        (amd[0], nvidia[0], ["auto", "serial"]),
        (nvidia[0], nvidia[1], ["auto", "peer"]),
        (amd[1], amd[1], ["local", "staged"]),
    ]:
        for route in routes:
            how: Any = route
            found = verified_copy(staging, source, target, SIZES, seed=7, route=how)
            assert found.wrong == ()
            assert (found.source, found.target, found.sizes) == (source.key, target.key, SIZES)
    for each in (*nvidia, *amd):
        assert verified_roundtrip(staging, each, SIZES, seed=8).wrong == ()


CASES = [
    ("nvidia.0.copy.d2h", "flip 70", "flipped", "first"),
    ("nvidia.0.copy.h2d", "flip 4200", "flipped", "loading"),
    ("nvidia.0.copy.h2d", "flip 70", "flipped", "loading"),
    ("amd.0.copy.h2d", "flip 70", "flipped", "second"),
    ("amd.0.copy.d2h", "flip 4200", "flipped", "reading"),
    ("nvidia.0.copy.d2h", "drop", "untouched", "first"),
    ("amd.0.copy.h2d", "drop", "untouched", "second"),
    ("amd.0.copy.h2d", "noise", "garbage", "second"),
    ("nvidia.0.copy.d2h", "zeros", "zeros", "first"),
]


@pytest.mark.parametrize(("key", "action", "kind", "hop"), CASES)
def test_what_is_wrong_and_in_which_hop(
    devices_of_fakes: Callable[..., Any],
    fake_gpus: FakeMachine,
    staging: Any,
    key: str,
    action: str,
    kind: str,
    hop: str,
) -> None:
    from pytest_gpucoexist.staging.verified import verified_copy

    (source,), (target,) = devices_of_fakes("nvidia"), devices_of_fakes("amd")
    assert verified_copy(staging, source, target, (8191, 8191), seed=1).wrong == ()
    # The source is loaded in one copy and so is the destination; then the ring, and then both are read back.
    order = fake_gpus.order(key, action, at={"loading": 1, "first": 1, "second": 2, "reading": 1}[hop])
    found = verified_copy(staging, source, target, (8191,), seed=2).wrong
    assert order.struck == 1
    assert {(each.kind, each.hop) for each in found} == {(kind, hop)}
    assert all(each.sentence for each in found)
    order.withdraw()
    assert verified_copy(staging, source, target, (8191,), seed=3).wrong == ()


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_a_peer_that_says_yes_and_writes_zeros(
    devices_of_fakes: Callable[..., Any], fake_gpus: FakeMachine, staging: Any, vendor: str
) -> None:
    from pytest_gpucoexist.staging.verified import verified_copy

    first, second = devices_of_fakes(vendor, 2)
    order = fake_gpus.order(f"{vendor}.0.copy.peer.1", "zeros", each=True)
    found = verified_copy(staging, first, second, (8, 4 << 20), route="peer").wrong
    order.withdraw()
    assert {each.kind for each in found} == {"zeros"}
    assert {each.hop for each in found} == {None}
    assert verified_copy(staging, first, second, (8, 4 << 20), route="staged").wrong == ()

"""Four devices, one slow link, one path that corrupts, one peer that lies: those three show, and nothing else does."""

from __future__ import annotations

from itertools import permutations
from statistics import median
from typing import TYPE_CHECKING, Any

import tests.transfer.needs_numpy  # noqa: F401 - above all that imports NumPy

if TYPE_CHECKING:
    from tests.proofs.rig import Rig

DEVICES = ("nvidia.0", "nvidia.1", "amd.0", "amd.1")
PEERS = (("nvidia.0", "nvidia.1"), ("nvidia.1", "nvidia.0"), ("amd.0", "amd.1"), ("amd.1", "amd.0"))
SIZES = (4097, 65537)
SLOW, SLOW_GBPS = "nvidia.1", 0.02
CORRUPTS = "amd.0"
LIAR = ("nvidia.1", "nvidia.0")
SIZE = 1 << 20


def test_what_shows_of_four_devices(rig: Rig) -> None:
    from pytest_gpucoexist.staging.service import Staging
    from pytest_gpucoexist.staging.verified import verified_copy, verified_roundtrip

    rig.machine.put({f"{SLOW}.d2h_gbps": SLOW_GBPS})
    orders = [
        rig.machine.order(f"{CORRUPTS}.copy.d2h", "flip 4200", each=True),
        rig.machine.order(f"{LIAR[0]}.copy.peer.{LIAR[1][-1]}", "zeros", each=True),
    ]
    wrong: dict[tuple[str, ...], set[Any]] = {}
    with Staging() as staging:
        for device in DEVICES:
            found = verified_roundtrip(staging, rig.end(device), SIZES)
            wrong[device,] = {(each.kind, each.hop) for each in found.wrong}
        for source, target in permutations(DEVICES, 2):
            found = verified_copy(staging, rig.end(source), rig.end(target), SIZES, route="staged")
            wrong["staged", source, target] = {(each.kind, each.hop) for each in found.wrong}
        for source, target in PEERS:
            found = verified_copy(staging, rig.end(source), rig.end(target), SIZES, route="peer")
            wrong["peer", source, target] = {(each.kind, each.hop) for each in found.wrong}
        seconds = {device: _from_device(staging, rig, device) for device in DEVICES}
    for order in orders:
        assert order.struck
        order.withdraw()
    rig.machine.put({f"{SLOW}.d2h_gbps": None})

    lies = wrong.pop(("peer", *LIAR))
    assert lies == {("zeros", None)}
    bad = {path for path, kinds in wrong.items() if kinds}
    # All that is read from that device is wrong, whoever asks; what is only written to it is not.
    assert {path for path in bad if CORRUPTS not in path} == set()
    assert {("staged", CORRUPTS, other) for other in DEVICES if other != CORRUPTS} <= bad
    assert {kind for path in bad for kind, _ in wrong[path]} == {"flipped"}
    assert wrong[CORRUPTS,]
    # No driver is faster than it was ordered to be: a bound from below, which a busy machine does not change.
    assert median(seconds[SLOW]) >= SIZE / (SLOW_GBPS * 1e9)
    assert [each for each in DEVICES if min(seconds[each]) >= SIZE / (SLOW_GBPS * 1e9)] == [SLOW]


def _from_device(staging: Any, rig: Rig, device: str) -> list[float]:
    """Time copies out of a device by its own events."""
    from pytest_gpucoexist.staging.memory import Bounce

    times = []
    with rig.end(device).allocate(SIZE) as buffer:
        for _ in range(5):
            bounce = Bounce(staging, rig.end(device))
            bounce.read(buffer, 0, SIZE, lambda _memory, _at: None)
            times.append(bounce.seconds)
    return times

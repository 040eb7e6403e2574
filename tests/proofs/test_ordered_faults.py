"""Each fault that can be ordered, through the real service and its processes: seen, named right, nothing left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import tests.transfer.needs_numpy  # noqa: F401 - above all that imports NumPy
from pytest_gpucoexist.errors import GpuCoexistError, VendorEndedError, VendorLaunchError
from pytest_gpucoexist.transfer.signatures import CUDA, HIP
from tests.proofs.orders import THOROUGH, key_and_place

if TYPE_CHECKING:
    from tests.proofs.chaos import Chaos
    from tests.proofs.rig import Rig

SIZE = 65537
LATE = 65537 + (5 << 20)  # of several chunks
WAYS = [("nvidia.0", "amd.1"), ("amd.0", "nvidia.1")]
SILENT = ["flip 4200", "drop", "stale", "torn", "shift 24", "zeros", "noise"]
PEERS = [("nvidia.0", "nvidia.1"), ("nvidia.1", "nvidia.0"), ("amd.0", "amd.1"), ("amd.1", "amd.0")]
ENDS = ["lost 719", "hang", "kill", "segv"]
MEMORY = [("nvidia.0", "cuda.0.fault.cuMemAlloc"), ("amd.0", "hip.0.fault.hipMalloc")]
REGISTER = [("nvidia.0", "cuda.0.fault.cuMemHostRegister"), ("amd.0", "hip.0.fault.hipHostRegister")]
# Children are killed in these functions; where everything runs, in all that the tables have.
STEPS = {
    "cuda": ("cuInit", "cuMemHostRegister"),
    "hip": ("hipMemcpyAsync", "hipFree"),
}


def _chaos(source: str, target: str, phase: Any, action: str, size: int = SIZE, chunk: int = 0) -> Chaos:
    from tests.proofs.chaos import Chaos

    key, at = key_and_place(phase, source, target, chunk)
    family: Any = "ends" if action in ENDS else "silent"
    route: Any = phase if phase in {"local", "peer"} else "staged"
    return Chaos(
        seed=0,
        family=family,
        source=source,
        target=target,
        route=route,
        phase=phase,
        size=size,
        action=action,
        key=key,
        at=at,
    )


@pytest.mark.parametrize("way", WAYS, ids="->".join)
def test_what_a_driver_does_in_silence(rig: Rig, way: tuple[str, str]) -> None:
    from tests.proofs.chaos import unleash

    actions = SILENT if THOROUGH or way == WAYS[0] else SILENT[:1]
    cases = [(phase, action) for phase in ("first", "second") for action in actions]
    cases += [("loading", "flip 4200"), ("reading", "flip 4200"), ("reading", "drop"), ("reading", "zeros")]
    for phase, action in cases:
        assert unleash(rig, _chaos(*way, phase, action)) or action == "stale", (phase, action)
    for phase in ("first", "second"):
        assert unleash(rig, _chaos(*way, phase, "drop", LATE, chunk=1)), phase


def test_a_stale_write(rig: Rig) -> None:
    """Of a copy within a device, whose source is at the same place the second time."""
    from tests.proofs.chaos import unleash

    for device in ("nvidia.0", "amd.1"):
        assert unleash(rig, _chaos(device, device, "local", "stale")), device


@pytest.mark.parametrize("way", PEERS, ids="->".join)
def test_a_peer_that_lies(rig: Rig, way: tuple[str, str]) -> None:
    """It says yes and writes zeros, or nothing at all."""
    from tests.proofs.chaos import unleash

    for action in ("zeros", "drop", "flip 100"):
        assert unleash(rig, _chaos(*way, "peer", action)), action


@pytest.mark.parametrize("action", ENDS)
@pytest.mark.parametrize("phase", ["first", "second"])
def test_what_ends_a_copy(rig: Rig, phase: str, action: str) -> None:
    from tests.proofs.chaos import unleash

    chunk = 1  # in the middle: one has passed, others wait
    assert unleash(rig, _chaos("nvidia.0", "amd.0", phase, action, LATE, chunk))


@pytest.mark.parametrize("side", [0, 1], ids=["nvidia", "amd"])
def test_memory(rig: Rig, side: int) -> None:
    """A device that has none left; and host memory that one side cannot pin, which is copied instead, and said."""
    from tests.proofs.chaos import Chaos, unleash

    common: dict[str, Any] = {"seed": 0, "source": "nvidia.0", "target": "amd.0", "route": "staged", "phase": "first"}
    for family, key in (("memory", MEMORY[side][1]), ("register", REGISTER[side][1])):
        kind: Any = family
        assert unleash(rig, Chaos(**common, family=kind, size=SIZE, action="status 2", key=key)), family


def _steps(library: str) -> tuple[str, ...]:
    table = {"cuda": CUDA, "hip": HIP}[library]
    every = tuple(function.name.removesuffix("_v2") for function in table.functions.values())
    assert set(STEPS[library]) <= set(every)
    return every if THOROUGH else STEPS[library]


@pytest.mark.parametrize("library", ["cuda", "hip"])
def test_a_child_killed_at_each_step(rig: Rig, library: str) -> None:
    """In each function of its driver, from the first that opens the device to the last that gives its memory back."""
    never = set()
    for function in _steps(library):
        assert rig.end_all() == []
        order = rig.machine.order(f"{library}.fault.{function}", "kill")
        error = None
        try:
            wrong = _life(rig)
            assert wrong == (), function
        except GpuCoexistError as failure:
            error = failure
        endings = [process.ending for process in rig.processes() if process.ending is not None]
        if order.struck:
            # Where memory is given back, the copy is over: then it is the process that says how it ended.
            assert isinstance(error, (VendorEndedError, VendorLaunchError)) or error is None, (function, error)
            assert [each.signal for each in endings] == ["SIGKILL"], (function, endings)
            assert error is None or "SIGKILL" in str(error), (function, error)
        else:
            assert error is None, (function, error)
            never.add(function)
        order.withdraw()
        assert rig.end_all() == [], function
    assert THOROUGH or never == set()
    print(f"not called by a copy: {sorted(never)}")


def _life(rig: Rig) -> tuple[Any, ...]:
    """Everything that is done with devices between the start of two processes and their end."""
    from pytest_gpucoexist.staging.service import Staging
    from pytest_gpucoexist.staging.verified import verified_copy
    from tests.proofs.rig import COPY_S

    with Staging(copy_s=COPY_S) as staging:
        found = verified_copy(staging, rig.end("nvidia.0"), rig.end("amd.0"), (SIZE,)).wrong
        return (*found, *verified_copy(staging, rig.end("amd.0"), rig.end("nvidia.0"), (SIZE,)).wrong)

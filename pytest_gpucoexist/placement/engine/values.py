"""What the scheduler is told and what it answers: devices, demands, tests, units, assignments. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_gpucoexist.leases.lease import Share
from pytest_gpucoexist.model.groups import Group
from pytest_gpucoexist.model.machine import Machine

__all__ = [
    "Assignment",
    "Demand",
    "Device",
    "Downed",
    "Idle",
    "Interval",
    "Share",
    "Site",
    "Statistics",
    "Test",
    "Unit",
    "Wait",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device of one machine that tests may be given.

    `capacity_bytes` is the memory that shares are taken from; None: unknown, so that the device is only given whole.
    `parent` is the key of what it is a part of (a MIG instance's card, a partition's function): a parent that is a
    device itself is never given whole while a part of it is held, and a part is lost with its parent.
    """

    key: str
    capacity_bytes: int | None = None
    vendor: str = "other"
    numa_node: int | None = None
    parent: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What tests of one kind need of one machine: devices for all groups at once, distinct ones.

    A requirement with `memory_bytes` that is not `exclusive` takes a share of each device, any other whole ones.
    """

    groups: tuple[Group, ...]
    closest_pair: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One machine that workers run on. `demands[n]` is demand n there, None where it lacks what that demand needs."""

    name: str
    machine: Machine
    devices: tuple[Device, ...]
    demands: tuple[Demand | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Tests that share a wider fixture or lease, so that they stay on a worker.

    `demand` is what that worker holds from the first of them to the last, None: nothing between tests.
    `setup_s` is what setting it up once more costs, by measurement; None: unknown. A unit that is not `divisible`
    (an `xdist_group`) is never split.
    """

    name: str
    demand: int | None = None
    setup_s: float | None = None
    divisible: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Test:
    """One test of the suite; `id` is its place in the suite's order.

    `demand` is an index into `Site.demands`, None for a test that needs no device. `duration_s` is how long it held
    its devices when it last ran, its unit's set-up not counted; None: unknown. `unit` names its unit, if it has one.
    """

    __test__ = False

    id: int
    demand: int | None = None
    unit: str | None = None
    duration_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A test that a worker is to run next: one tuple of keys per group of its demand, all whole but `shares`.

    `after` names the (worker, test) pairs that still hold what it is given: it begins when the kernel's locks are
    free. If one of them is the worker itself it needs no word from the controller between the two; another worker
    makes ready and waits for the lock. `unmet` says why no worker's machine can run the test: this worker is to skip
    it (or to fail it) by its own means, without a device.
    """

    worker: str
    test: int
    devices: tuple[tuple[str, ...], ...] = ()
    shares: tuple[Share, ...] = ()
    after: tuple[tuple[str, int], ...] = ()
    unmet: str | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """All devices, in the order of the groups."""
        return tuple(key for group in self.devices for key in group)


@dataclass(frozen=True, slots=True, kw_only=True)
class Downed:
    """What a worker had when it went down: the test that ran, if any, and those that went back to be run elsewhere."""

    running: int | None
    returned: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A test that held (a part of) a device from `start_s` to `end_s` of the caller's clock.

    `end_s` is None while it runs. `memory_bytes` is its share, None where it held the device whole.
    """

    site: str
    key: str
    worker: str
    test: int
    start_s: float
    end_s: float | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """A device that nobody held from `start_s` to `end_s`, and why, in words: no test left, no worker, reserved, …."""

    site: str
    key: str
    start_s: float
    end_s: float
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A test that was next but had to wait: for the (worker, test) pairs that held what it could use."""

    test: int
    since_s: float
    until_s: float
    holders: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """What a run did with the devices. `busy_s` per (site, key): seconds in which a test or a unit held it."""

    started_s: float
    ended_s: float
    busy_s: Mapping[tuple[str, str], float]
    intervals: tuple[Interval, ...] = ()
    idle: tuple[Idle, ...] = ()
    waits: tuple[Wait, ...] = ()
    setups: Mapping[str, int] = field(default_factory=dict)
    """How often each unit was begun, by name."""

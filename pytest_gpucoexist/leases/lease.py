"""What a lease is, who holds it, and what gives leases. Values and one seam; nothing here does I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from pytest_gpucoexist.model.groups import Group

__all__ = ["Holder", "Lease", "Leaser", "OnWait", "Share", "Waiting"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A part of a device's memory. Without one, a device is held whole."""

    key: str
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Devices that belong to `owner` until they are released: one tuple of keys per group of the request.

    Each is held whole, but those of `shares`. `number` names the lease within this process.
    """

    owner: str
    devices: tuple[tuple[str, ...], ...]
    number: int = 0
    shares: tuple[Share, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """All devices, in the order of the groups."""
        return tuple(key for group in self.devices for key in group)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who keeps a device from others, as far as it can be seen.

    `lease`: a process with a lease. `elsewhere`: a process that uses the device without one. `leftover`: what keeps
    memory of a holder that died. `unknown`: a lock whose holder left no record that this user may read.
    Ids are those of this process's PID namespace where they are known to be; `since_s` is seconds since the epoch.
    """

    key: str
    kind: Literal["lease", "elsewhere", "leftover", "unknown"]
    pid: int | None = None
    uid: int | None = None
    user: str | None = None
    program: str | None = None
    session: str | None = None
    worker: str | None = None
    test: str | None = None
    since_s: float | None = None
    memory_bytes: int | None = None
    """The share of a lease; None where it is whole. Of other kinds, the memory in use, where it can be seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A request that waits: for how long already, and who holds what it could use."""

    owner: str
    waited_s: float
    holders: tuple[Holder, ...] = ()
    ahead: int = 0
    """Requests before it in the queue that could use the same devices."""


OnWait = Callable[[Waiting], None]


class Leaser(Protocol):
    """What gives devices to tests of this process, so that no other process of the machine has them too."""

    def acquire(
        self,
        groups: Sequence[Group],
        owner: str,
        preferred: Sequence[str] = (),
        *,
        closest_pair: bool = False,
        timeout_s: float | None = None,
        on_wait: OnWait | None = None,
    ) -> Lease:
        """Wait until all groups can be served with distinct devices, first come, first served, and hold them.

        A requirement with `memory_bytes` that is not `exclusive` gets a share of each device, any other whole ones.
        `on_wait` is called once a wait has begun, and again about every second. Raises DeviceBusyError after
        `timeout_s` (0: does not wait), and GpuCoexistError when the request could not be met with every device free.
        """
        ...

    def release(self, lease: Lease, keys: Sequence[str] | None = None) -> None:
        """Give devices back, all or those in `keys`. Releasing twice is no error."""
        ...

    def held(self) -> dict[str, str]:
        """Return the owner of each device that this process holds now."""
        ...

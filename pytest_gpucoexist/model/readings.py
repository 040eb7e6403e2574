"""What one source said about one field, and how sure it is.

A fact that could not be read keeps the reason. It never becomes 0, an empty string or a silent None.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import Any, Literal, get_args

__all__ = ["STATUSES", "Fact", "Observation", "Reading", "Status", "status_of_errno"]

Status = Literal["ok", "unsupported", "denied", "absent", "broken"]
"""`ok`: read. `unsupported`: the device or driver has no such thing. `denied`: permissions. `absent`: no such file,
library or device. `broken`: it should have answered and did not, or answered nonsense."""

STATUSES: tuple[Status, ...] = get_args(Status)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """Where a field's value came from, or why there is none."""

    source: str
    status: Status = "ok"
    detail: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One value of one field from one source. `value` is None unless `status` is `ok`."""

    field: str
    value: Any
    source: str
    status: Status = "ok"
    detail: str | None = None

    @property
    def fact(self) -> Fact:
        """Provenance without the value."""
        return Fact(source=self.source, status=self.status, detail=self.detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What one probe says about one device.

    The device is named by `pci_address` (plus `partition`) or, where there is no PCI function, by `uuid`; by its DRM
    `card` only in a recorded tree that tells neither. `creates` is true when the observation may add a device that
    PCI sysfs does not show.
    """

    probe: str
    pci_address: str | None = None
    partition: str | None = None
    uuid: str | None = None
    card: str | None = None
    readings: tuple[Reading, ...] = ()
    creates: bool = False


_ERRNO_STATUS: dict[int, Status] = {
    errno.ENOENT: "absent",
    errno.ENOTDIR: "absent",
    errno.ENXIO: "absent",
    errno.EACCES: "denied",
    errno.EPERM: "denied",
    errno.EINVAL: "unsupported",
    errno.EOPNOTSUPP: "unsupported",
    errno.ENODATA: "unsupported",
    errno.ENOSYS: "unsupported",
    errno.EISDIR: "unsupported",
}


def status_of_errno(code: int | None) -> Status:
    """Translate an errno from a failed read; what is not known is `broken` (EIO, ENODEV, ETIMEDOUT, …)."""
    return _ERRNO_STATUS.get(code or 0, "broken")

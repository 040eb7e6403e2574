"""What an epoch means: which transfer of a session, and which of its kinds of content.

Everything that a transfer writes, and everything that lies under and beside it beforehand, has an epoch of its own:
`epoch = 8 * transfer + role`. So a word says whose it is without a list of epochs that anybody must keep.
"""

from __future__ import annotations

from pytest_gpucoexist.transfer.splitmix import EPOCHS

__all__ = [
    "AFTER",
    "DATA",
    "DESTINATION_ZONE",
    "RING_ZONE",
    "ROLES",
    "SOURCE_ZONE",
    "TRANSFERS",
    "UNDER_DESTINATION",
    "UNDER_READING",
    "UNDER_RING",
    "epoch_of",
    "meaning",
]

ROLES = 8
TRANSFERS = EPOCHS // ROLES
"""How many transfers one seed has epochs for: 8,192."""

DATA, UNDER_DESTINATION, UNDER_RING, UNDER_READING, SOURCE_ZONE, DESTINATION_ZONE, RING_ZONE = range(7)

AFTER = 1 << 40
"""Where in the stream of a red zone's epoch the zone after a payload begins; the one before it begins at 0."""


def epoch_of(transfer: int, role: int) -> int:
    """Return the epoch of a kind of content (`DATA`, `UNDER_RING`, …) of a transfer."""
    return ROLES * transfer + role


def meaning(epoch: int) -> tuple[int, int]:
    """Return (transfer, role) of an epoch."""
    return divmod(epoch, ROLES)

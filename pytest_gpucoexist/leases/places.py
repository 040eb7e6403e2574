"""Where leases are kept, and against whom they therefore protect."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pytest_gpucoexist.errors import UserError

if TYPE_CHECKING:
    from pytest_gpucoexist.host import Host

__all__ = ["ADMIN_FOLDER", "Place", "find_place"]

ADMIN_FOLDER = "/run/gpucoexist"
_FUNCTIONS = "/sys/bus/pci/devices"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A folder with a table, and the folder of this machine's PCI functions where they can be locked."""

    kind: Literal["folder", "user"]
    folder: str | None
    functions: str | None = None
    notes: tuple[str, ...] = ()


def find_place(host: Host, lease_dir: str | None = None) -> Place:
    """Choose the place. Raises UserError when `lease_dir` cannot be used."""
    functions = _FUNCTIONS if not host.simulated and host.platform == "linux" else None
    if lease_dir is not None:
        if not os.path.isdir(lease_dir):
            raise UserError(f"gpu_lease_dir: {lease_dir!r} is no folder: make it, or leave the key out")
        return Place(kind="folder", folder=os.path.abspath(lease_dir), functions=functions)
    if os.path.isdir(ADMIN_FOLDER) and os.access(ADMIN_FOLDER, os.W_OK):
        return Place(kind="folder", folder=ADMIN_FOLDER, functions=functions)
    folder = f"/tmp/gpucoexist-{os.getuid()}"
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        found = os.lstat(folder)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise UserError(f"{folder} belongs to somebody else") from None
    return Place(kind="user", folder=folder, functions=functions)

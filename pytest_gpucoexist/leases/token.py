"""A lease that children inherit: a text in their environment, checked against the record of the process that holds it.

A token is no secret and no right: it says whose devices a process means to use. It counts for as long as that process
lives and holds the lease. Several processes that inherit one lease exclude each other within it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["VARIABLE", "Inherited", "inherited", "space_of", "token_text"]

VARIABLE = "PYTEST_GPU_LEASE_TOKEN"

_TOKEN = re.compile(r"1:(\d{1,9}):([0-9a-f]{16}):(/.+)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inherited:
    """Devices of another process's lease that this process may use: bytes of a share by key, None for the whole.

    `space` is a name for the lease; `machine` that of the replayed machine, if it is one; `folder` that of its table.
    `pid` holds it, for `owner`.
    """

    space: str
    machine: str
    folder: str
    devices: Mapping[str, int | None]
    pid: int
    owner: str


def token_text(path: str, nonce: str, number: int) -> str:
    """Write the token of a lease; `path` is that of its process's record."""
    return f"1:{number}:{nonce}:{path}"


def space_of(nonce: str, number: int) -> str:
    """Name a lease as no other one is named."""
    return f"{nonce}/{number}"


def inherited(environ: Mapping[str, str]) -> Inherited | None:
    """Return what the environment's token stands for; None without one, or when that lease has ended.

    Raises nothing: a token that means nothing any more is like none.
    """
    found = _TOKEN.fullmatch(environ.get(VARIABLE, ""))
    if found is None:
        return None
    from pytest_gpucoexist.leases.reading import read_record

    number, nonce, path = int(found[1]), found[2], found[3]
    seen = read_record(path)
    if seen is None or not seen.live or seen.nonce != nonce:
        return None
    for lease in seen.leases:
        if lease.number == number:
            return Inherited(
                space=space_of(nonce, number),
                machine=seen.machine,
                folder=os.path.dirname(os.path.dirname(path)),
                devices=lease.devices,
                pid=seen.pid,
                owner=lease.owner,
            )
    return None

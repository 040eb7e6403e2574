"""Who may open what, from mode, owner and groups: the classic UNIX rule, for recorded nodes."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_gpucoexist.host.base import Identity, Node

__all__ = ["may_open_node"]


def may_open_node(node: Node, identity: Identity | None, *, write: bool) -> int:
    """Return 0, EACCES, or ENODATA when the answer depends on an identity that is not known.

    Root passes everything (CAP_DAC_OVERRIDE). Access control lists are not recorded; `may_open` of the record holds
    what `access` really said.
    """
    wanted = 0o2 if write else 0o4
    if identity is None:
        # What everybody may, anybody may; what not even the owner may, still root might.
        everybody = all(node.mode >> shift & wanted for shift in (0, 3, 6))
        return 0 if everybody else errno.ENODATA
    if identity.uid == 0:
        return 0
    if identity.uid == node.uid:
        shift = 6
    elif node.gid == identity.gid or node.gid in identity.groups:
        shift = 3
    else:
        shift = 0
    return 0 if node.mode >> shift & wanted else errno.EACCES

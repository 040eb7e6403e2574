"""Whether this process may open a device node and, when not, what a person can do about it.

Rules: Linux' discretionary access (owner, group, others, by the process's own groups) and the device cgroup, which
answers EPERM where the mode would have allowed (security/device_cgroup.c). An owner of 65534 is a user namespace that
does not map the real one (user_namespaces(7)).
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucoexist.model.readings import Status, status_of_errno

if TYPE_CHECKING:
    from pytest_gpucoexist.host.base import Host, Identity, Node

__all__ = ["NodeProblem", "node_problem"]

_OVERFLOW_ID = 65534


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProblem:
    """Why a node cannot be opened for reading and writing.

    `withheld` is true when the node is not there or a device cgroup refuses it: nothing that a user's own groups
    could change. `known` is false when the recording does not say. `code` is the errno.
    """

    path: str
    reason: str
    status: Status
    code: int
    withheld: bool = False
    known: bool = True


def node_problem(host: Host, path: str) -> NodeProblem | None:
    """Return None when this process may open `path` for reading and writing, else why not."""
    try:
        host.may_open(path, write=True)
    except OSError as error:
        code = error.errno or errno.EIO
    else:
        return None
    if code == errno.ENODATA:
        return NodeProblem(path=path, reason=f"{path} is not recorded", status="absent", code=code, known=False)
    if code in {errno.ENOENT, errno.ENOTDIR}:
        return NodeProblem(path=path, reason=f"no {path}", status="absent", code=code, withheld=True)
    if code not in {errno.EACCES, errno.EPERM}:
        words = errno.errorcode.get(code, str(code))
        reason = f"{path} cannot be opened ({words}): no driver answers behind it"
        return NodeProblem(path=path, reason=reason, status=status_of_errno(code), code=code)
    try:
        node = host.stat(path)
    except OSError:
        return NodeProblem(path=path, reason=f"no permission to open {path}", status="denied", code=code)
    reason, withheld = _denial(path, node, host.identity())
    return NodeProblem(path=path, reason=reason, status="denied", code=code, withheld=withheld)


def _denial(path: str, node: Node, me: Identity) -> tuple[str, bool]:
    """Explain a refusal. The second value is true when the mode allows it, so that something else refuses."""
    if _mode_allows(node, me):
        return f"{path} is refused although its mode allows it (device cgroup of a container or a job, or an ACL)", True
    if _OVERFLOW_ID in {node.uid, node.gid} and node.gid not in me.groups:
        owner = f"{path} belongs to an owner that this user namespace does not map (65534)"
        return f"{owner}: keep the host's groups (podman --group-add keep-groups) or map its gid", False
    if node.mode & 0o060 == 0o060 and node.uid != me.uid:
        return f"user not in group {_group(node.gid, me)}, which {path} belongs to", False
    return f"{path} has mode {node.mode & 0o777:04o} and owner uid {node.uid}; this process is uid {me.uid}", False


def _mode_allows(node: Node, me: Identity) -> bool:
    """Whether the mode grants reading and writing: the first class that applies decides, as in the kernel."""
    if me.uid == 0:
        return True
    if node.uid == me.uid:
        return node.mode & 0o600 == 0o600
    if node.gid == me.gid or node.gid in me.groups:
        return node.mode & 0o060 == 0o060
    return node.mode & 0o006 == 0o006


def _group(gid: int, me: Identity) -> str:
    name = next((name for name, number in me.group_names.items() if number == gid), None)
    return f"{name} (gid {gid})" if name else f"with gid {gid}"

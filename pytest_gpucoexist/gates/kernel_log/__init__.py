"""What the kernel logged about the GPUs, their ports and the host: in this session, earlier this boot, and before."""

from __future__ import annotations

__all__ = ["UNBUILT"]

UNBUILT: dict[str, str] = {
    "klog.join_lines": "lines are joined where the log is read, and the tests of that hold the parser to it",
    "klog.nv.xid_dedupe": "done within klog.nv.xid, which counts repeated lines and names the first Xid of a chain",
    "klog.race.first_driver": "nothing about it is wrong by itself; klog.race.late_registration and"
    " klog.race.card_order show which driver came first",
}
"""Rows of the catalogue that are no gate of their own, and why."""

"""Memory that devices and processor share: address registers, IOMMU, peers, host memory for staging."""

__all__ = ["UNBUILT"]

UNBUILT = {
    "mem.rebar_cap": "recorded by mem.rebar.amd, mem.rebar.nv and mem.rebar.intel, which read resourceN_resize",
    "mem.p2p_cross_vendor": "always staged through host memory with the vendors' own drivers: nothing can be wrong",
}
"""Rows of the catalogue that are no gate of their own, and why."""

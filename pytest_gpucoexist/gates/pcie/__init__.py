"""PCI Express: does the GPU answer, over which link, with how many errors, and what do the ports allow."""

__all__ = ["UNBUILT"]

UNBUILT = {
    "pcie.walk": "recorded by pcie.width and pcie.limited_by, whose evidence is every hop of the walk",
    "pcie.expected": "recorded by pcie.width: what it expects, and from which ends of the link",
    "pcie.speed_idle": "an idle link is never at fault, so there is nothing to judge; pcie.width shows the speed",
    "pcie.thunderbolt": "recorded by pcie.width and pcie.limited_by, which do not blame an external GPU for its cable",
    "pcie.shared_uplink": "recorded by pcie.limited_by, which names the GPUs that share a narrow link",
}
"""Rows of the catalogue that are no gate of their own, and why."""

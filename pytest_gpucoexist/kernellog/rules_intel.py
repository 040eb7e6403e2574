"""What i915 and xe print.

Wording: drivers/gpu/drm/i915 (gt/intel_reset.c, gt/uc, i915_gpu_error.c) and drivers/gpu/drm/xe (xe_device.c,
xe_guc*.c, xe_gt_pagefault.c) of Linux. Newer kernels put `Tile0: GT0:` before the text.
"""

from __future__ import annotations

from pytest_gpucoexist.kernellog.rule import BDF, Rule

__all__ = ["RULES"]

RULES: tuple[Rule, ...] = (
    Rule(
        id="intel.hang",
        vendor="intel",
        severity="fail",
        earlier="warn",
        regex=r"GPU HANG: ecode (?P<ecode>[0-9a-fA-F:x]+)",
        anchors=("GPU HANG: ecode",),
        meaning="the GPU hung; i915 keeps a dump in /sys/class/drm/cardN/error",
        action="look at the named process; update kernel and firmware; reboot if the reset failed",
    ),
    Rule(
        id="intel.reset_fail",
        vendor="intel",
        severity="fail",
        regex=(
            r"\*ERROR\* (?:GT\d+:? )?(?:\[[\w ]+\] )?\w+:? reset request timed out"
            r"|(?:\*ERROR\*|i915 \S+:) GPU recovery failed|GuC failed to reset engine"
            r"|G[Uu]C: Engine reset (?:request )?failed|GuC engine reset request failed"
            r"|\*ERROR\* (?:Tile\d+: )?GT\d+: reset failed"
            r"|(?:drm|i915|xe)\b.*(?:Failed to reset chip|declaring (?:it )?wedged)"
        ),
        anchors=(
            "reset request timed out",
            "GPU recovery failed",
            "failed to reset engine",
            "ngine reset failed",
            "ngine reset request failed",
            ": reset failed",
            "Failed to reset chip",
            "declaring ",
        ),
        meaning="an engine or the whole GPU could not be started or reset",
        action="reboot",
    ),
    Rule(
        id="intel.reset_chip",
        vendor="intel",
        severity="warn",
        regex=(
            r"Resetting (?:chip|(?:[rbv]cs|vecs|ccs|gsc)\d+"
            r"|(?:render|blitter|bsd|video enhancement) ring) (?:for|after) "
            r"|\b(?:i915|xe)\b.*Resetting \w+ (?:for|after) "
        ),
        anchors=("Resetting ",),
        meaning="i915 reset an engine or the whole GPU",
        action="restart the programs that used the GPU; look for the hang before it",
    ),
    Rule(
        id="intel.xe_wedged",
        vendor="intel",
        severity="fail",
        regex=rf"CRITICAL: Xe has declared device {BDF} as wedged",
        anchors=("Xe has declared device",),
        meaning="xe gave the GPU up and refuses all work",
        action="unbind and bind the driver again, or reboot",
    ),
    Rule(
        id="intel.guc_load",
        vendor="intel",
        severity="fail",
        regex=(
            r"\*ERROR\* (?:Tile\d+: )?(?:GT\d+: )?(?:GuC )?load failed: status|G[Uu]C:? load failed: status"
            r"|\*ERROR\* (?:Tile\d+: )?(?:GT\d+: )?(?:GuC init(?:ialization)? failed|Enabling uc failed"
            r"|Failed to initialize uC)"
        ),
        anchors=("load failed: status", "GuC init", "nabling uc failed", "to initialize uC"),
        meaning="the GPU's scheduler firmware (GuC) did not load or start",
        action="update linux-firmware; power off and on",
    ),
    Rule(
        id="intel.xe_timedout",
        vendor="intel",
        severity="fail",
        earlier="warn",
        regex=rf"xe {BDF}: .*(?:Timedout job: seqno=|Kernel-submitted job timed out|VM job timed out on)",
        anchors=("Timedout job: seqno", "submitted job timed out", "VM job timed out"),
        meaning="a job on the GPU did not end in time",
        action="look at the named process; update kernel and GuC firmware",
    ),
    Rule(
        id="intel.xe_engine_reset",
        vendor="intel",
        severity="warn",
        regex=rf"xe {BDF}: .*Engine reset: engine_class=(?P<cls>\w+)",
        anchors=("Engine reset: engine_class",),
        meaning="xe reset an engine of the GPU",
        action="restart the programs that used the GPU; look for the hang before it",
    ),
    Rule(
        id="intel.fault_resp",
        vendor="intel",
        severity="warn",
        regex=r"Fault response: Unsuccessful -",
        anchors=("Fault response: Unsuccessful",),
        meaning="a page fault on the GPU could not be resolved",
        action="look at the program that ran: it touched memory that it did not map",
    ),
    Rule(
        id="intel.force_probe",
        vendor="intel",
        severity="fail",
        regex=r"Your graphics device (?P<id>[0-9a-f]{4}) is not (?:officially|properly) supported",
        anchors=("Your graphics device",),
        meaning="the driver left this GPU alone: it does not know it well enough",
        action="use a newer kernel, the other Intel driver, or force_probe=<id>",
    ),
    Rule(
        id="intel.probe_fail",
        vendor="intel",
        severity="fail",
        regex=(
            rf"(?:xe|i915) {BDF}: probe with driver (?:xe|i915) failed with error -\d+"
            r"|(?:xe|i915): probe of (?P<bdf_old>(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])"
            r" failed with error -\d+"
            r"|\bi915\b.*Device initialization failed \(-\d+\)"
        ),
        anchors=(
            "probe with driver xe",
            "probe with driver i915",
            "xe: probe of",
            "i915: probe of",
            "Device initialization failed (",
        ),
        meaning="Intel's driver did not attach to the GPU",
        action="read the lines of xe or i915 right before this one: they say why",
    ),
)

"""What NVIDIA's kernel modules and nouveau print.

Wording: `NVRM:` messages of NVIDIA/open-gpu-kernel-modules (kernel-open/nvidia/nv.c, nv-pci.c, os-interface.c,
src/nvidia/src/kernel), nvidia-drm, nvidia-peermem, and drivers/gpu/drm/nouveau of Linux.
"""

from __future__ import annotations

from pytest_gpucoexist.kernellog.rule import BDF, BDF_OLD, Rule

__all__ = ["RULES"]

RULES: tuple[Rule, ...] = (
    Rule(
        id="nv.xid",
        vendor="nvidia",
        severity="by-code",
        # The address has no function digit; "PCI:" may be missing; a MIG instance is named "GPU-I:05" behind it.
        regex=(
            rf"NVRM:\s+Xid\s+\((?:PCI:)?{BDF_OLD}(?:[ ,]+GPU-I:\d+)?[^)]*\):\s*(?P<xid>\d+)(?:,|\s|$)"
            r"(?:\s*pid=(?P<pid>[^,]+),?)?(?:\s*name=(?P<name>[^,]+),?)?"
        ),
        anchors=("Xid ",),
        meaning="the GPU reported an error; its code decides",
        action="",
    ),
    Rule(
        id="nv.sxid",
        vendor="nvidia",
        severity="by-code",
        regex=(
            rf"nvidia-nvswitch(?P<sw>\d+): SXid \((?:PCI:)?{BDF}\): "
            r"(?P<sxid>\d+), (?P<fatality>Fatal|Non-fatal)(?:, Link (?P<link>\d+))?"
        ),
        anchors=("SXid (",),
        meaning="an NVSwitch reported an error",
        action="look for the Xid of the GPUs behind the switch; reset the fabric if it was fatal",
    ),
    Rule(
        id="nv.fallen_off_bus",
        vendor="nvidia",
        severity="fail",
        regex=(rf"NVRM:\s+(?:(?:The NVIDIA )?(?:GPU )?(?:at )?(?:PCI:)?{BDF}(?:: GPU)? has )?fallen off the bus"),
        anchors=("fallen off the bus",),
        meaning="the GPU no longer answers on PCIe",
        action="power the machine off and on; then check the card's seat, riser, power cables, temperature and ASPM",
    ),
    Rule(
        id="nv.nova_bound",
        vendor="nvidia",
        severity="fail",
        regex=rf"NVRM: GPU {BDF} is already bound to (?P<drv>Nova\w*)",
        anchors=("is already bound to",),
        meaning="the kernel's own nova driver took the GPU before NVIDIA's",
        action="blacklist nova_core (and nova_drm) in /etc/modprobe.d, rebuild the initramfs, reboot",
    ),
    Rule(
        id="nv.probe_not_called",
        vendor="nvidia",
        severity="fail",
        regex=r"NVRM: The NVIDIA probe routine was not called for (?P<n>\d+) device",
        anchors=("NVIDIA probe routine was not called",),
        meaning="another driver (nouveau, nova_core, vfio-pci, …) holds GPUs that NVIDIA's module was loaded for",
        action="see `lspci -nnk` for the driver in use; unbind or blacklist it, then reload the nvidia module",
    ),
    Rule(
        id="nv.probe_failed",
        vendor="nvidia",
        severity="fail",
        regex=r"NVRM: The NVIDIA probe routine failed for (?P<n>\d+) device",
        anchors=("NVIDIA probe routine failed",),
        meaning="NVIDIA's module was loaded but could not start a GPU",
        action="read the NVRM lines right before this one: they say why",
    ),
    Rule(
        id="nv.no_devices",
        vendor="nvidia",
        severity="fail",
        regex=r"NVRM: (?:No NVIDIA (?:devices probed|GPU found|graphics adapter (?:found|probed))"
        r"|None of the NVIDIA (?:devices|graphics adapters) were (?:initialized|probed))",
        anchors=("No NVIDIA ", "None of the NVIDIA "),
        meaning="NVIDIA's module was loaded and got no GPU",
        action="see `lspci -nnk` for missing cards and foreign drivers, and the NVRM lines before this one",
    ),
    Rule(
        id="nv.api_mismatch",
        vendor="nvidia",
        severity="fail",
        regex=r"NVRM: API mismatch: th(?:e|is) client",
        anchors=("NVRM: API mismatch",),
        meaning="the driver libraries and the loaded kernel module have different versions",
        action="reboot (or reload the module) after a driver update; in a container, use the host's driver libraries",
    ),
    Rule(
        id="nv.gsp",
        vendor="nvidia",
        severity="fail",
        regex=(
            # drivers before 535 left the colon out
            r"NVRM:? .*(?:Cannot initialize GSP firmware RM|failed to wait for GFW_BOOT|No firmware image found"
            r"|_kgspIsHeartbeatTimedOut|GSP Timeout|GSP task|unexpected WPR2 already up|GSP Crashcat Report)"
        ),
        anchors=(
            "initialize GSP firmware",
            "wait for GFW_BOOT",
            "No firmware image",
            "HeartbeatTimedOut",
            "GSP T",
            "GSP task",
            "WPR2 already up",
            "Crashcat Report",
        ),
        meaning="the GPU's system processor (GSP) has no firmware, did not start, or hangs",
        action="install the firmware of exactly this driver version and reset the GPU; power-cycle if it stays",
    ),
    Rule(
        id="nv.rminit",
        vendor="nvidia",
        severity="fail",
        regex=(
            rf"NVRM: (?:GPU (?:at )?(?:PCI:)?{BDF}: )?"
            r"(?:RmInitAdapter failed!(?: \((?P<code>0x[0-9a-fA-F]+:0x[0-9a-fA-F]+:\d+)\))?"
            r"|rm_init_adapter(?:\(\d+\))? failed"
            r"|.*osInitNvMapping failed, bailing out of RmInitAdapter)"
        ),
        anchors=("RmInitAdapter failed!", "rm_init_adapter", "bailing out of RmInit"),
        meaning="the driver is loaded but could not initialise this GPU",
        action="reset or power-cycle the GPU; check its power, slot and BIOS settings, and that the driver supports it",
    ),
    Rule(
        id="nv.bar_invalid",
        vendor="nvidia",
        severity="fail",
        regex=(
            r"NVRM: (?:This PCI I/O region assigned to your NVIDIA device is invalid|BAR\d+ is \d+M @ 0x0\b"
            r"|The system BIOS may have misconfigured your GPU|request_mem_region failed"
            r"|This is a 64-bit BAR mapped above|FATAL: Failed to re-allocate BAR)"
        ),
        anchors=(
            "assigned to your NVIDIA",
            "M @ 0x0",
            "misconfigured your GPU",
            "request_mem_region failed",
            "64-bit BAR mapped",
            "re-allocate BAR",
        ),
        meaning="the BIOS or the kernel gave the GPU no memory window",
        action='turn "Above 4G decoding" on in the BIOS; try the kernel parameter pci=realloc=on',
    ),
    Rule(
        id="nv.unsupported_by_flavor",
        vendor="nvidia",
        severity="fail",
        regex=(
            r"NVRM: (?:installed in this system is not supported by open|Open nvidia\.ko is only ready for use on"
            r"|.*requires use of the NVIDIA open kernel modules)"
        ),
        anchors=("not supported by open", "Open nvidia.ko is only", "use of the NVIDIA open kernel"),
        meaning="the kernel modules are of the wrong flavour (open or proprietary) for this GPU",
        action="install the other flavour: open modules from Blackwell on, proprietary ones before Turing",
    ),
    Rule(
        id="nv.vbios",
        vendor="nvidia",
        severity="fail",
        regex=r"NVRM: (?:GPU \S+: )?[Ff]ailed to copy vbios",
        anchors=("ailed to copy vbios",),
        meaning="the driver could not read the card's VBIOS",
        action="often power or D3cold: cold boot; keep the card awake (power/control=on)",
    ),
    Rule(
        id="nv.drm_alloc",
        vendor="nvidia",
        severity="warn",
        regex=r"\[nvidia-drm\] \[GPU ID 0x[0-9a-fA-F]+\] Failed to allocate NvKmsKapiDevice",
        anchors=("allocate NvKmsKapiDevice",),
        meaning="the display part of the driver could not attach to the GPU",
        action="look for an RmInitAdapter failure before it; for compute alone it does not matter",
    ),
    Rule(
        id="nv.modeset_mismatch",
        vendor="nvidia",
        severity="fail",
        regex=r"nvidia-modeset: Version mismatch: nvidia\.ko\((?P<a>[\d.]+)\) nvidia-modeset\.ko\((?P<b>[\d.]+)\)",
        anchors=("nvidia-modeset: Version mismatch",),
        meaning="two of NVIDIA's kernel modules come from different driver versions",
        action="remove the older build (`dkms status`), run depmod, rebuild the initramfs, reboot",
    ),
    Rule(
        id="nv.attach_sanity",
        vendor="nvidia",
        severity="fail",
        regex=(
            r"NVRM:? .*(?:API_GPU_ATTACHED_SANITY_CHECK failed|RC all channels for critical error (?P<xid>\d+)"
            r"|rpcSendMessage failed with status|GPU lost from the bus|NV_ERR_GPU_IS_LOST)"
        ),
        anchors=(
            "ATTACHED_SANITY_CHECK",
            "RC all channels for critical",
            "rpcSendMessage failed",
            "GPU lost from the bus",
            "ERR_GPU_IS_LOST",
        ),
        meaning="the driver still talks to a GPU that is gone",
        action="the same as for a GPU that fell off the bus: power the machine off and on",
    ),
    Rule(
        id="nv.probe_err",
        vendor="nvidia",
        severity="fail",
        regex=rf"nvidia: probe of {BDF} failed with error -\d+|probe with driver nvidia failed with error -\d+",
        anchors=("nvidia: probe of", "probe with driver nvidia"),
        meaning="NVIDIA's driver did not attach to the GPU",
        action="read the NVRM lines right before this one: they say why",
    ),
    Rule(
        id="nv.peermem",
        vendor="nvidia",
        severity="warn",
        regex=r"nvidia-peermem .*ERROR",
        anchors=("nvidia-peermem ",),
        meaning="GPUDirect RDMA's module lost its context",
        action="restart the programs that use RDMA; update driver and peermem together",
    ),
    Rule(
        id="nv.nvlink_mask",
        vendor="nvidia",
        severity="warn",
        regex=r"NVRM:? knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed",
        anchors=("PostRxDetectLinkMask",),
        meaning="NVLink did not find its partner",
        action="check the NVLink bridge; GPUs without a bridge print this as well",
    ),
    Rule(
        id="nv.loaded",
        vendor="nvidia",
        severity="info",
        regex=r"NVRM: loading NVIDIA UNIX (?P<flavor>Open )?.*?(?P<ver>\d+\.\d+(?:\.\d+)?)",
        anchors=("loading NVIDIA UNIX",),
        meaning="NVIDIA's kernel module was loaded",
        action="",
    ),
    Rule(
        id="nouveau.active",
        vendor="nvidia",
        severity="fail",
        # "unknown chipset" and files that it does not find are no sign that it holds the GPU
        regex=(
            rf"nouveau {BDF}: (?:DRM|fifo|bios|vgaarb|enabling|NVIDIA|fb|gsp|gr|disp|bus|mmu|pmu|therm|\[drm\])"
            rf"|NVRM: GPU {BDF_OLD.replace('<bdf>', '<bdf_old>')} is already bound to nouveau|Initialized nouveau \d"
        ),
        anchors=("nouveau ", "already bound to nouveau"),
        meaning="the nouveau driver holds an NVIDIA GPU: no CUDA there",
        action="blacklist nouveau in /etc/modprobe.d (options nouveau modeset=0), rebuild the initramfs, reboot",
    ),
)

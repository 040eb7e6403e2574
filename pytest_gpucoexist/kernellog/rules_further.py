"""Rules for what else is worth saying; they come last, so that none takes a line from the catalogue's own rules."""

from __future__ import annotations

from pytest_gpucoexist.kernellog.rule import BDF, Rule

__all__ = ["RULES"]

RULES: tuple[Rule, ...] = (
    Rule(
        id="nv.legacy_gpu",
        vendor="nvidia",
        severity="fail",
        # The next line goes on with the driver's version: "NVRM: NVIDIA 580.65.06 driver release."
        regex=(
            r"NVRM: .*(?:in this system is not supported by the\b"
            r"|supported through the NVIDIA [\dx.]+ Legacy)"
        ),
        anchors=("system is not supported by the", "supported through the NVIDIA"),
        meaning="this driver version does not support the GPU",
        action="install the (legacy) driver branch that supports it",
    ),
    Rule(
        id="nv.uvm_fatal",
        vendor="nvidia",
        severity="fail",
        regex=r"uvm encountered (?:a )?global fatal error",
        anchors=("global fatal error",),
        meaning="NVIDIA's unified memory module is broken, for all GPUs: new programs will fail",
        action="reboot",
    ),
    Rule(
        id="nv.modeset_stuck",
        vendor="nvidia",
        severity="warn",
        regex=(
            r"nvidia-modeset: ERROR: GPU:\d+: "
            r"(?:Error while waiting for GPU progress|Idling display engine timed out)"
        ),
        anchors=("waiting for GPU progress", "display engine timed out"),
        meaning="the display part of the driver waits for a GPU that does not get on",
        action="look for an Xid of that GPU before it; reboot if it goes on",
    ),
    Rule(
        id="nova.active",
        vendor="nvidia",
        severity="fail",
        regex=rf"Nova(?:Core|Drm)? {BDF}: ",
        anchors=("Nova",),
        meaning="the kernel's own nova driver holds an NVIDIA GPU: no CUDA there",
        action="blacklist nova_core (and nova_drm) in /etc/modprobe.d, rebuild the initramfs, reboot",
    ),
    Rule(
        id="amd.lost",
        vendor="amd",
        severity="fail",
        regex=r"\bamdgpu\b.*: device lost from bus!",
        anchors=("device lost from bus",),
        meaning="the GPU no longer answers on PCIe",
        action="power the machine off and on; then check the card's seat, riser, power cables, temperature and ASPM",
    ),
    Rule(
        id="amd.kfd_not_added",
        vendor="amd",
        severity="fail",
        regex=r"kfd kfd: (?:amdgpu: )?device (?P<id>[0-9a-f]{4}:[0-9a-f]{4}) NOT added due to errors",
        anchors=("NOT added due to errors",),
        meaning="the GPU was not registered for compute",
        action="read the kfd lines right before this one: they say why",
    ),
    Rule(
        id="amd.radeon_lockup",
        vendor="amd",
        severity="fail",
        earlier="warn",
        regex=rf"radeon {BDF}: (?:ring \d+ stalled for more than|GPU lockup|GPU reset failed)",
        anchors=("radeon ",),
        meaning="a GPU under the old radeon driver hung",
        action="reboot; this driver has no compute support",
    ),
    Rule(
        id="intel.xe_cat_error",
        vendor="intel",
        severity="warn",
        regex=r"Engine memory (?:CAT|cat) error",
        anchors=("Engine memory ",),
        meaning="a program touched memory that is not mapped on the GPU",
        action="look at the program that ran",
    ),
    Rule(
        id="intel.fw_fetch",
        vendor="intel",
        severity="warn",
        regex=r"(?:GuC|HuC|GSC) firmware \S+: fetch failed",
        anchors=(": fetch failed",),
        meaning="a firmware file of the GPU is missing",
        action="install or update the firmware package (linux-firmware), rebuild the initramfs",
    ),
    Rule(
        id="drm.needs_recovery",
        vendor="any",
        severity="fail",
        regex=r"\[drm\] device wedged, needs recovery",
        anchors=("device wedged, needs",),
        meaning="the driver gave the GPU up until it is bound again or the machine is rebooted",
        action="unbind and bind the driver again, or reboot",
    ),
    Rule(
        id="drm.recovered",
        vendor="any",
        severity="warn",
        regex=r"\[drm\] device wedged, but (?:recovered through reset|no recovery needed)",
        anchors=("device wedged, but",),
        meaning="the GPU hung and was reset",
        action="restart every program that had used the GPU; look for the hang before it",
    ),
    Rule(
        id="pci.bar_reserve",
        vendor="any",
        severity="warn",
        regex=(
            rf"(?:nvidia|amdgpu|i915|xe|radeon|nouveau|vfio-pci) {BDF}: (?:BAR \d+: can't reserve \[mem"
            r"|BAR \d+ \[mem [^\]]*\]: can't reserve|device not available \(can't reserve)"
        ),
        anchors=("can't reserve",),
        meaning="the driver did not get the device's memory window: something else holds it",
        action="look in /proc/iomem for its owner (often a boot framebuffer: initcall_blacklist, video=efifb:off)",
    ),
    Rule(
        id="iommu.timeout",
        vendor="any",
        severity="warn",
        regex=(
            r"AMD-Vi: (?:Completion-Wait loop timed out|(?:Event logged )?\[?IOTLB_INV_TIMEOUT)"
            r"|DMAR: VT-d detected Invalidation Time-out Error"
        ),
        anchors=("AMD-Vi: ", "Invalidation Time-out Error"),
        meaning="a device behind the IOMMU does not answer: it hangs or is gone",
        action="look for the device's own messages; reboot",
    ),
    Rule(
        id="iommu.smmu",
        vendor="any",
        severity="warn",
        regex=r"arm-smmu(?:-v3)? \S+: (?:Unhandled context fault|event: F_(?:TRANSLATION|PERMISSION|ADDR_SIZE|ACCESS))",
        anchors=("Unhandled context fault", "event: F_"),
        meaning="the IOMMU refused an access of a device to memory",
        action="with peer copies: turn them off or set iommu.passthrough=1; else report it to the driver's authors",
    ),
    Rule(
        id="mod.missing",
        vendor="any",
        severity="fail",
        regex=r"modprobe(?:\[\d+\])?: FATAL: Module (?:nvidia[\w-]*|amdgpu|i915|xe) not found",
        anchors=(": FATAL: Module",),
        meaning="the GPU's kernel module is not installed for the running kernel",
        action="install or build it for this kernel (dkms autoinstall), or boot the kernel that has it",
    ),
    Rule(
        id="sys.rcu_stall",
        vendor="any",
        severity="warn",
        regex=r"\brcu(?:_\w+)?: .*(?:self-detected stall|detected (?:expedited )?stalls) on CPU",
        anchors=("detected stall", "detected expedited stalls"),
        meaning="a processor did not get on for a long time",
        action="look at the trace for the driver that held it; do not trust timings",
    ),
    Rule(
        id="sys.memory_failure",
        vendor="any",
        severity="warn",
        regex=r"Memory failure: 0x[0-9a-f]+: |Uncorrected hardware memory error in|due to hardware memory corruption",
        anchors=("Memory failure: 0x", "Uncorrected hardware memory", "hardware memory corruption"),
        meaning="a page of the host's memory was taken out of use after an error",
        action="replace the memory module if it comes back",
    ),
    Rule(
        id="sys.bert",
        vendor="any",
        severity="warn",
        regex=r"BERT: (?:Error records from previous boot|\[Hardware Error\]: Skipped)",
        anchors=("BERT: ",),
        meaning="the boot before this one ended in a hardware error",
        action="read the record's lines for the device; reseat it; try pcie_aspm.policy=performance",
    ),
    Rule(
        id="user.nvml_no_driver",
        vendor="nvidia",
        severity="fail",
        regex=(
            r"Failed to initialize NVML: (?:Driver Not Loaded|Insufficient Permissions|GPU access blocked)"
            r"|NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver"
        ),
        anchors=("initialize NVML: ", "NVIDIA-SMI has failed"),
        meaning="NVIDIA's library does not reach the kernel module",
        action="check that the nvidia module is loaded (`lsmod`, `dkms status`) and that /dev/nvidiactl can be opened",
    ),
    Rule(
        id="user.rock_missing",
        vendor="amd",
        severity="fail",
        regex=r"ROCk module is NOT loaded",
        anchors=("ROCk module is NOT",),
        meaning="rocminfo finds no amdgpu driver with compute support",
        action="check that amdgpu is loaded and that /dev/kfd exists",
    ),
    Rule(
        id="user.nvml_lost",
        vendor="nvidia",
        severity="fail",
        regex=rf"Unable to determine the device handle for (?:GPU|gpu) ?\d*:? ?{BDF}: (?:GPU is lost|Unknown Error)",
        anchors=("Unable to determine the device handle",),
        meaning="nvidia-smi cannot reach this GPU any more",
        action="power the machine off and on; check the kernel's log for Xid 79",
    ),
)

"""What the PCI core, the IOMMU drivers, DMA and the firmware and module loaders print, whatever the vendor.

Wording: drivers/pci (pcie/aer.c, pcie/dpc.c, hotplug, setup-res.c, pci.c), drivers/iommu, kernel/dma/swiotlb.c,
drivers/base/firmware_loader, kernel/module of Linux; old and new wordings side by side.
"""

from __future__ import annotations

from pytest_gpucoexist.kernellog.rule import BDF, Rule

__all__ = ["RULES"]

RULES: tuple[Rule, ...] = (
    Rule(
        id="fw.missing",
        vendor="any",
        severity="fail",
        regex=r"Direct firmware load for (?P<fw>(?:nvidia|amdgpu|i915|xe|radeon)/\S+) failed with error -\d+",
        anchors=("Direct firmware load for",),
        meaning="a firmware file of the GPU is missing",
        action="install or update the firmware package (linux-firmware, or the driver's own), rebuild the initramfs",
    ),
    Rule(
        id="pci.aer_norecover",
        vendor="any",
        severity="fail",
        regex=r"AER: (?:can't recover|[Dd]evice recovery failed|[\w ]+ reset failed)",
        anchors=("AER: can't recover", "evice recovery failed", " reset failed"),
        meaning="a PCIe error could not be recovered from: the device's state is unknown",
        action="reboot; then reseat the card, lower the link generation, turn ASPM off",
    ),
    Rule(
        id="pci.aer_uncorr",
        vendor="any",
        severity="fail",
        regex=(
            r"AER: (?:Multiple )?Uncorrect(?:ed|able) \((?:Non-Fatal|Fatal)\) error (?:message )?received"
            r"|PCIe Bus Error: severity=Uncorrect"
        ),
        anchors=("Uncorrect",),
        meaning="PCIe lost or corrupted a packet and could not repair it",
        action="reseat the card; check riser and power; lower the link generation in the BIOS",
    ),
    Rule(
        id="pci.aer_corr",
        vendor="any",
        severity="warn",
        regex=(r"AER: (?:Multiple )?Correct(?:ed|able) error (?:message )?received|PCIe Bus Error: severity=Correct"),
        anchors=("AER: Correct", "AER: Multiple Correct", "severity=Correct"),
        meaning="PCIe repaired an error; many of them mean a bad contact or riser",
        action="if they are frequent: reseat the card, lower the link generation, turn ASPM off",
    ),
    Rule(
        id="pci.aer_bit",
        vendor="any",
        severity="info",
        regex=(
            r":\s*(?:AER: *)?\[\s*(?P<bit>\d+)\]\s+(?P<name>RxErr|BadTLP|BadDLLP"
            r"|Rollover|Timeout|NonFatalErr|CorrIntErr|HeaderOF"
            r"|SDES|Surprise Down Error|DLP|TLP|FCP|CmpltTO|CmpltAbrt|UnxCmplt|RxOF|MalfTLP|ECRC|UnsupReq|ACSViol"
            # the words of kernels before 4.19, and those of bits that were named later
            r"|Receiver Error|Bad TLP|Bad DLLP|RELAY_NUM Rollover|Replay Timer Timeout|Advisory Non-Fatal"
            r"|Corrected Internal Error"
            r"|Header Log Overflow|Data Link Protocol|Poisoned TLP|Flow Control Protocol"
            r"|Completion Timeout|Completer Abort"
            r"|Unexpected Completion|Receiver Overflow|Malformed TLP|Unsupported Request|ACS Violation"
            r"|Uncorrectable Internal Error|UncorrIntErr|BlockedTLP|AtomicOpBlocked|PoisonTLPBlocked|DMWrReqBlocked)"
        ),
        anchors=("[ 5]", "[12]"),
        meaning="which error the PCIe error line before it means",
        action="",
    ),
    Rule(
        id="pci.aer_ghes",
        vendor="any",
        severity="warn",
        regex=r"(?:AER: |[\da-f]\.[0-7]: )aer_(?:status|layer|cor_status|uncor_status)",
        anchors=(": aer_",),
        meaning="the firmware reported a PCIe error to the kernel",
        action="if they are frequent: reseat the card, lower the link generation, turn ASPM off",
    ),
    Rule(
        id="pci.aer_status",
        vendor="any",
        severity="info",
        regex=(
            r"device \[(?P<id>[0-9a-f]{4}:[0-9a-f]{4})\] error status/mask=(?P<status>[0-9a-f]{8})"
            r"/(?P<mask>[0-9a-f]{8})"
        ),
        anchors=("error status/mask=",),
        meaning="the raw status of the PCIe error before it, and the device's vendor and model",
        action="",
    ),
    Rule(
        id="pci.aer_no_driver",
        vendor="any",
        severity="info",
        regex=r"device has no AER-aware driver",
        anchors=("no AER-aware driver",),
        meaning="the driver cannot help to recover from a PCIe error",
        action="",
    ),
    Rule(
        id="pci.dpc",
        vendor="any",
        severity="fail",
        # "DPC: error containment capabilities: …" is what a healthy port says at boot.
        regex=(
            r"\bDPC:? (?:containment event|unmasked uncorrectable|error containment(?! capabilities)"
            r"|(?:ERR_FATAL|ERR_NONFATAL|RP PIO error|software trigger) detected)"
            r"|EDR: EDR event received"
        ),
        anchors=("DPC: ", "DPC containment", "DPC unmasked", "EDR event received"),
        meaning="the port cut its device off to contain an error",
        action="reboot; then reseat the card, check riser and power",
    ),
    Rule(
        id="pci.link_down",
        vendor="any",
        severity="fail",
        regex=r"[Ss]lot\([^)]*\): (?:Link Down(?!/Up ignored)|Card not present)|[Cc]ard not present on [Ss]lot\(",
        anchors=("lot(",),
        meaning="the link to a card was lost",
        action="check seat, riser, power and (external) cable; then rescan the bus or reboot",
    ),
    Rule(
        id="pci.d3cold",
        vendor="any",
        severity="fail",
        regex=(
            r"[Uu]nable to change power state from (?:D3cold|D3hot|unknown) to D0"
            r"|can't change power state from D3(?:cold|hot) to D0|[Rr]efused to change power state"
            r"|not ready \d+ms after (?:resume|bus reset|FLR|DPC|PM D3)"
        ),
        anchors=("change power state", "not ready "),
        meaning="the device did not wake up",
        action="cold boot; keep it awake (power/control=on, amdgpu.runpm=0); try pcie_aspm=off",
    ),
    Rule(
        id="pci.bar_io",
        vendor="any",
        severity="info",
        regex=(
            r"BAR \d+(?:: (?:no space for|failed to assign) \[io\b"
            r"| \[io [^\]]*\]: (?:can't assign; no space|failed to assign))"
        ),
        anchors=("no space", "failed to assign"),
        meaning="an I/O port window was not assigned; GPUs do not need it",
        action="",
    ),
    Rule(
        id="pci.vf_bar",
        vendor="any",
        severity="info",
        regex=r"VF BAR \d+ \[mem [^\]]*\]: (?:can't assign; no space|failed to assign)",
        anchors=("no space", "failed to assign"),
        meaning="a window for virtual functions was not assigned; only vGPU needs it",
        action="",
    ),
    Rule(
        id="pci.bar_mem",
        vendor="any",
        severity="fail",
        regex=(
            rf"(?P<dev>(?:pci|pcieport|nvidia|amdgpu|i915|xe) ){BDF}: BAR \d+"
            r"(?:: (?:no space for|failed to assign) \[mem"
            r"| \[mem [^\]]*\]: (?:can't assign; no space|failed to assign))"
        ),
        anchors=("no space", "failed to assign"),
        meaning="a memory window of the device was not assigned",
        action='turn "Above 4G decoding" (and resizable BAR) on in the BIOS; try pci=realloc=on',
    ),
    Rule(
        id="pci.limited",
        vendor="any",
        severity="info",
        regex=(
            r"(?P<have>[\d.]+) Gb/s available PCIe bandwidth, limited by (?P<gts>[\d.]+) GT/s (?:PCIe )?x(?P<w>\d+)"
            rf" link at {BDF} \(capable of (?P<max>[\d.]+) Gb/s"
        ),
        anchors=("available PCIe bandwidth, limited",),
        meaning="a link on the way to this device is slower than the device",
        action="",
    ),
    Rule(
        id="iommu.default",
        vendor="any",
        severity="info",
        regex=r"iommu: Default domain type: (?P<type>\w+)",
        anchors=("iommu: Default domain",),
        meaning="whether the IOMMU translates the addresses of devices (peer copies may suffer)",
        action="",
    ),
    Rule(
        id="iommu.amd",
        vendor="any",
        severity="fail",
        earlier="warn",
        regex=r"AMD-Vi: (?:Event logged )?\[?IO_PAGE_FAULT|^IO_PAGE_FAULT device=",
        anchors=("IO_PAGE_FAULT",),
        meaning="the IOMMU refused an access of the device to memory",
        action="with peer copies: turn them off or set iommu=pt; else report it to the driver's authors",
    ),
    Rule(
        id="iommu.dmar",
        vendor="any",
        severity="fail",
        earlier="warn",
        regex=r"DMAR:\s?\[(?:DMA|INTR)[^\]]*\] Request device \[+(?P<rid>[0-9a-fA-F:.]+)\]",
        anchors=("Request device [",),
        meaning="the IOMMU refused an access of the device to memory, or an interrupt",
        action="with peer copies: turn them off or set iommu=pt; else report it to the driver's authors",
    ),
    Rule(
        id="iommu.dmar_status",
        vendor="any",
        severity="info",
        regex=r"(?:DMAR|dmar): DRHD: handling fault status reg",
        anchors=("DRHD: handling fault",),
        meaning="an IOMMU fault follows",
        action="",
    ),
    Rule(
        id="dma.swiotlb",
        vendor="any",
        severity="warn",
        regex=r"swiotlb (?:buffer is full|addr \S+ overflow)|Out of SW-IOMMU space for|: overflow 0x\S+ of DMA mask",
        anchors=("swiotlb ", "Out of SW-IOMMU", " of DMA mask"),
        meaning="transfers of the device go through a bounce buffer, and it ran out",
        action="use the IOMMU in translating mode; a larger buffer: swiotlb=262144; check memory encryption and Xen",
    ),
    Rule(
        id="mod.key_rejected",
        vendor="any",
        severity="fail",
        regex=(
            r"Key was rejected by service|PKCS#7 signature not signed with a trusted key"
            r"|Required key not available|[Ll]oading of unsigned module is rejected"
            r"|unsigned module loading is restricted"
        ),
        anchors=("Key was rejected by", "not signed with a trusted", "Required key not", "unsigned module "),
        meaning="Secure Boot refused a kernel module",
        action="sign the module and enrol the key (mokutil --import), or use the distribution's signed modules",
    ),
    Rule(
        id="mod.sig_taint",
        vendor="any",
        severity="info",
        regex=r"module verification failed: signature and/or required key missing",
        anchors=("module verification failed",),
        meaning="an unsigned kernel module was loaded; it works",
        action="",
    ),
    Rule(
        id="mod.vermagic",
        vendor="any",
        severity="fail",
        regex=(
            r"version magic '(?P<a>[^']+)' should be '(?P<b>[^']+)'"
            r"|could not insert '[\w-]+': (?:Invalid module format|Exec format error)"
            r"|section size must match the kernel's built struct module size"
        ),
        anchors=("version magic '", "Invalid module format", "Exec format error", "built struct module size"),
        meaning="the module was built for another kernel",
        action="rebuild it for the running kernel (dkms autoinstall), or boot the kernel that it was built for",
    ),
    Rule(
        id="mod.symver",
        vendor="any",
        severity="fail",
        regex=r"disagrees about version of symbol|Unknown symbol \w+ \(err -?\d+\)",
        anchors=("disagrees about version", "Unknown symbol "),
        meaning="the module does not fit the running kernel or the modules that it builds on",
        action="rebuild it for the running kernel (dkms autoinstall); remove leftovers of another version",
    ),
)

"""Whether copies arrive as they were sent."""

from __future__ import annotations

from functools import partial

from pytest_gpucoexist.gates.later.row import later

_integrity = partial(later, group="transfer-integrity", severity="fail")
_BOTH = ("nvidia", "amd")

roundtrip = _integrity(
    "xfer.roundtrip",
    "Data comes back as it was sent",
    reads="pinned copies to each GPU and back, from one byte to 64 MiB and sizes that are no multiple of a page",
    criterion="every bit, and the red zones on both sides untouched",
    why="a wrong byte here makes every later result wrong",
    action="Read which of stale, shifted, torn or random it is: the report names the first wrong offset.",
    source="nvbandwidth verifies a pattern with a period of 2 MiB, p2pBandwidthLatencyTest nothing",
)
pageable = _integrity(
    "xfer.pageable",
    "Pageable memory is copied right",
    reads="the same with memory that is not pinned, 64 MiB",
    criterion="every bit",
    why="the driver stages such copies itself, through another path than pinned ones",
    action="Update the driver; report it with the offsets.",
    source="NVIDIA/DCGM, plugin pcie",
)
bitwalk = _integrity(
    "xfer.bitwalk",
    "No bit sticks",
    reads="64 MiB of zeros, ones, alternating bits and a walking one",
    criterion="every bit",
    why="a stuck data line or memory cell shows with the pattern that it contradicts",
    action="Reseat the card, then replace it.",
    source="NVIDIA/DCGM, plugin memtest; ROCmValidationSuite mem.so",
)
epoch = _integrity(
    "xfer.epoch",
    "No data of an earlier copy",
    reads="twenty copies, each tagged with its number in every word",
    criterion="no word of an earlier copy",
    why="data that was right a moment ago looks right to a fixed pattern",
    action="Suspect a missing flush or wait, an IOMMU, a cache.",
    source="no tool that was surveyed can see it",
)
d2d_local = _integrity(
    "xfer.d2d_local",
    "Copies within a GPU are right",
    reads="64 MiB copied inside the GPU, then read back",
    criterion="every bit",
    why="it tells the GPU's memory from the way to it",
    action="Replace the card when it repeats.",
    source="NVIDIA/DCGM, plugin memory",
)
p2p_nv = _integrity(
    "xfer.p2p.nv",
    "NVIDIA peers really exchange data",
    reads="each ordered pair that calls itself peers, eight bytes first, then 4 and 64 MiB, checked at both ends",
    criterion="every bit, for every pair",
    why="under some IOMMU settings peer copies report success and deliver zeros",
    action="iommu=pt, ACS off, or NCCL_P2P_DISABLE=1 and staged copies.",
    source="NVIDIA/DCGM BrokenP2P; CAPS-UMU/FIDESlib#28; NVIDIA/cuda-samples#390",
    vendors=("nvidia",),
)
p2p_amd = _integrity(
    "xfer.p2p.amd",
    "AMD peers really exchange data",
    reads="the same through HIP, in a child process, only when asked for",
    criterion="every bit; no page fault, no reset",
    why="a broken peer path can take the display down with it",
    action="Leave peer access off; large BAR and the IOMMU as ROCm's documentation says.",
    source="ROCm/legacy-rocm-build#1495, #1902",
    vendors=("amd",),
    level="full",
)
p2p_intel = _integrity(
    "xfer.p2p.intel",
    "Intel peers really exchange data",
    reads="copies between devices through Level Zero, in a child process, only when asked for",
    criterion="every bit; no lost device",
    why="ACS redirection on a switch breaks them",
    action="iommu=pt.",
    source="intel/compute-runtime#942",
    vendors=("intel",),
    level="full",
)
p2p_lie = _integrity(
    "xfer.p2p.lie",
    "A pair that calls itself peers is one",
    reads="what the runtime says about peer access, and what the copies showed",
    criterion="they agree",
    why="the cause is the platform, not the card: replacing the card mends nothing",
    action="Look at mem.iommu.p2p_nv and pcie.acs.",
    source="NVIDIA/cuda-samples#48; tinygrad/open-gpu-kernel-modules#18",
)
hostreg = _integrity(
    "xfer.hostreg",
    "Both runtimes pin one buffer",
    reads="one buffer registered with CUDA and HIP, in both orders",
    criterion="both succeed",
    why="otherwise copies between the vendors need a copy by the processor as well",
    action="Two buffers and a copy between them; raise the limit of locked memory.",
    source="ROCm/legacy-rocm-build#1483",
    vendors=_BOTH,
    severity="warn",
)
staged_cross = _integrity(
    "xfer.staged.cross",
    "Data crosses from one vendor to the other",
    reads="each ordered pair of vendors through pinned host memory, 64 MiB and a tail, checked between the hops",
    criterion="every bit",
    why="it is the only way between two vendors with stock drivers",
    action="The hop that broke is named: source, destination or host memory.",
    source="pattern of tinygrad's staging ring; no tool that was surveyed tests it",
)
staged_pipeline = _integrity(
    "xfer.staged.pipeline",
    "A pipeline of slots keeps its order",
    reads="200 chunks with three slots or more in flight, each tagged",
    criterion="every bit",
    why="a slot that is used again before it was read gives data of another chunk",
    action="Report it: it is a fault of synchronisation.",
    source="tinygrad hcq.py; NVlabs/cuda-oxide PR#976",
)
staged_concurrent = _integrity(
    "xfer.staged.concurrent",
    "All vendors copy at once",
    reads="all GPUs copying into parts of one buffer, and into their own, for five seconds",
    criterion="every bit of every region",
    why="faults of ordering and translation show under concurrency alone",
    action="Look at the kernel log for IOMMU faults.",
    source="proposed here",
)
host_canary = _integrity(
    "xfer.host_canary",
    "Host memory is left alone",
    reads="a locked buffer and a cached file with known hashes, before and after the other gates",
    criterion="unchanged",
    why="a GPU that resets again and again has corrupted the page cache",
    action="Stop and reboot: nothing on this machine can be trusted.",
    source="intel/compute-runtime#966",
    vendors=(),
)
two_process = _integrity(
    "xfer.two_process",
    "Two processes stage through shared memory",
    reads="one process for each vendor, a memfd between them",
    criterion="every bit",
    why="it is how tests of two vendors run by default",
    action="Raise the memory limit of the container; look at seccomp.",
    source="ggml-org/llama.cpp#11506",
    vendors=_BOTH,
)
dmabuf_probe = _integrity(
    "xfer.dmabuf_probe",
    "What dma-buf between the vendors does here",
    reads="export from one vendor and import by the other, in a child process, only when asked for",
    criterion="the result is recorded; a success must pass the other gates before it is used",
    why="stock drivers refuse it, and it has killed compositors",
    action="Stage through host memory.",
    source="NVIDIA/open-gpu-kernel-modules nv-dmabuf.c; hoshinolina/libfunnel#6",
    vendors=_BOTH,
    level="full",
    severity="info",
)
ipc = _integrity(
    "xfer.ipc",
    "Memory handles open in another process",
    reads="an IPC handle opened by a child, on the same GPU and on a peer",
    criterion="it opens on the same GPU; on a peer only where peer access works",
    why="frameworks share tensors between processes this way",
    action="Copy through host memory.",
    source="ROCm/ROCR-Runtime#355; dora-rs/dora PR#2619",
    vendors=_BOTH,
    severity="warn",
)
after_stress = _integrity(
    "xfer.after_stress",
    "Copies are right when the GPU is hot",
    reads="the round trip again after 30 s of load",
    criterion="every bit",
    why="power and temperature make marginal links fail",
    action="Cooling, power supply, cables.",
    source="NVIDIA/DCGM runs stress before PCIe in level 3",
    level="full",
)

"""Whether copies are as fast as the slowest hop allows."""

from __future__ import annotations

from functools import partial

from pytest_gpucoexist.gates.later.row import later

_bandwidth = partial(later, group="transfer-bandwidth")

h2d = _bandwidth(
    "bw.h2d",
    "Host to GPU is as fast as its link",
    reads="pinned copies of 256 MiB near the GPU, the link read meanwhile; median of ten",
    criterion="70 % of the slowest hop; below 50 % is a failure",
    why="half a link is lost without any message",
    action="Read the pcie gates; put the buffer on the GPU's node.",
    source="azurehpc-health-checks; stas00/ml-engineering (88 % on H200); NVlabs/cuda-oxide PR#976 (76 % on RTX 4090)",
    severity="fail",
    limits={"pass_percent": 70.0, "fail_percent": 50.0},
)
d2h = _bandwidth(
    "bw.d2h",
    "GPU to host is as fast as its link",
    reads="the same in the other direction",
    criterion="as bw.h2d",
    why="the directions differ: read completions and posted writes have other limits",
    action="As bw.h2d.",
    source="azurehpc-health-checks; stas00/ml-engineering",
    severity="fail",
    limits={"pass_percent": 70.0, "fail_percent": 50.0},
)
bidir = _bandwidth(
    "bw.bidir",
    "Both directions at once gain",
    reads="copies in both directions at the same time",
    criterion="1.3 times the faster direction",
    why="one copy engine, or a path that is half-duplex",
    action="Look for Thunderbolt, bounce buffers, a single copy engine.",
    source="NVIDIA/DCGM, plugin pcie",
    limits={"gain": 1.3},
)
asymmetry = _bandwidth(
    "bw.asymmetry",
    "The directions are alike",
    reads="bw.h2d and bw.d2h",
    criterion="within 25 %",
    why="payload size, read requests or memory channels limit one of them",
    action="Look at pcie.mps and the memory population.",
    source="derived from measured pairs (55.4/55.1, 23.9/26.6 GB/s)",
    limits={"percent": 25.0},
)
siblings = _bandwidth(
    "bw.siblings",
    "Equal cards on equal links are equally fast",
    reads="bw.h2d of cards of one model",
    criterion="within 5 %; more than 10 % is worth a look",
    why="the odd one out has a fault that no absolute limit shows",
    action="Swap the slots: does the fault go with the card?",
    source="microsoft/superbenchmark (5 % rule)",
    limits={"pass_percent": 5.0, "warn_percent": 10.0},
)
pageable_ratio = _bandwidth(
    "bw.pageable_ratio",
    "Pinned memory is faster than pageable",
    reads="both at 64 MiB",
    criterion="1.2 times",
    why="otherwise pinning does not work",
    action="Look at the limit of locked memory and for bounce buffers.",
    source="NVlabs/cuda-oxide PR#976 (1.9 times)",
    limits={"ratio": 1.2},
)
ramp = _bandwidth(
    "bw.ramp",
    "Small copies start quickly",
    reads="copies of 4 KiB to 256 MiB, a line fitted through their times",
    criterion="30 µs to start; 60 % of the plateau at 1 MiB",
    why="power states and virtualisation cost at the start",
    action="Persistence mode; look at the host's load.",
    source="NVlabs/cuda-oxide PR#976",
    limits={"start_us": 30.0, "plateau_percent": 60.0},
)
stability = _bandwidth(
    "bw.stability",
    "The measurement is steady",
    reads="the spread of the ten samples",
    criterion="a coefficient of variation of 5 %",
    why="a noisy number decides nothing",
    action="Stop what else runs; it is measured again once, and never failed.",
    source="nvbandwidth (median of 3); microsoft/superbenchmark",
    limits={"percent": 5.0},
)
link_consistent = _bandwidth(
    "bw.link_consistent",
    "The link stays as it is while copying",
    reads="speed and width before, during and after",
    criterion="unchanged during the copies",
    why="a link that retrains under load loses time and sometimes data",
    action="As pcie.flap.",
    source="local-inference-lab/rtx6kpro PR#88",
)
p2p_nv = _bandwidth(
    "bw.p2p.nv",
    "NVIDIA peers are as fast as their link",
    reads="peer copies of each ordered pair that xfer.p2p.nv passed",
    criterion="60 % of the slowest link; NVLink as configured",
    why="a pair that falls back to host memory is silent about it",
    action="Look at the matrix of gpucoexist doctor --json.",
    source="azurehpc-health-checks; ROCm/ROCR-Runtime#355 (65 % through a switch)",
    vendors=("nvidia",),
    limits={"percent": 60.0},
)
p2p_amd = _bandwidth(
    "bw.p2p.amd",
    "AMD peers are as fast as their link",
    reads="peer copies of each pair",
    criterion="60 % of the slowest link; XGMI as configured",
    why="as bw.p2p.nv",
    action="Look at the matrix of gpucoexist doctor --json.",
    source="azurehpc-health-checks; ROCm/TransferBench",
    vendors=("amd",),
    level="full",
    limits={"percent": 60.0},
)
staged_cross = _bandwidth(
    "bw.staged.cross",
    "Copies between vendors overlap",
    reads="1 GiB in chunks of 4 MiB through four slots",
    criterion="60 % of the slower side; below 35 % is a failure",
    why="without overlap the rate is that of both sides one after the other",
    action="NUMA node of the buffer; a copy by the processor in the path.",
    source="dora-rs/dora PR#2619; tinygrad PR#1523",
    severity="fail",
    limits={"pass_percent": 60.0, "fail_percent": 35.0},
)
staged_gain = _bandwidth(
    "bw.staged.gain",
    "The pipeline gains over one copy at a time",
    reads="bw.staged.cross against a serial copy",
    criterion="1.3 times",
    why="copies that should run beside each other wait for each other",
    action="Pageable buffers, one stream, one lock.",
    source="derived",
    limits={"gain": 1.3},
)
chunk_sweep = _bandwidth(
    "bw.staged.chunk_sweep",
    "Which chunk is best here",
    reads="chunks of 256 KiB to 64 MiB",
    criterion="recorded; the plateau begins at 4 MiB or below",
    why="tests use it",
    action="None.",
    source="tinygrad hcq.py (2 MiB)",
    severity="info",
)
concurrent_all = _bandwidth(
    "bw.concurrent_all",
    "All GPUs copy at once",
    reads="copies to all GPUs together",
    criterion="70 % of the sum, bounded by shared uplinks and host memory",
    why="GPUs behind one uplink share it",
    action="Spread them over root ports.",
    source="NVIDIA/DCGM",
    severity="info",
    limits={"percent": 70.0},
)
numa_penalty = _bandwidth(
    "bw.numa_penalty",
    "What the wrong node costs",
    reads="a buffer on the GPU's node and one on another",
    criterion="half as fast at least",
    why="the wrong socket has cost a factor of three",
    action="Bind workers to the GPU's node.",
    source="mpicbg-scicomp/gearshifft PR#82",
    severity="info",
    limits={"ratio": 0.5},
)
host_memcpy = _bandwidth(
    "bw.host_memcpy",
    "Host memory is faster than the links",
    reads="copies by one core and by all on the GPU's node",
    criterion="twice the sum of both directions",
    why="staged copies read and write it",
    action="Populate the memory channels.",
    source="azurehpc-health-checks (stream)",
    vendors=(),
    limits={"ratio": 2.0},
)
regression = _bandwidth(
    "bw.regression",
    "As fast as in the baseline",
    reads="a stored measurement of this host, GPU, link and driver",
    criterion="95 %; below 85 % is worth a look",
    why="a slow decay is seen by nobody",
    action="Accept the new measurement, or find what changed.",
    source="microsoft/superbenchmark",
    limits={"pass_percent": 95.0, "warn_percent": 85.0},
)
missing_data = _bandwidth(
    "bw.missing_data",
    "Every measurement was made",
    reads="the results of the other gates",
    criterion="none is absent, zero or no number",
    why="a missing number must not count as a good one",
    action="Read why the measurement broke.",
    source="NVIDIA/cluster-readiness-engine PR#6; microsoft/superbenchmark PR#675",
    severity="fail",
)
not_on_tiny = _bandwidth(
    "bw.not_on_tiny",
    "Limits judge large copies alone",
    reads="the sizes of the copies that were judged",
    criterion="64 MiB or more",
    why="a probe of a few bytes says nothing about bandwidth",
    action="None.",
    source="scitix/sichek#52",
    severity="info",
)
gpu_memory = _bandwidth(
    "bw.gpu_memory",
    "The GPU's own memory is as fast as specified",
    reads="a copy of 1 GiB inside the GPU, read and write",
    criterion="60 % of the specification",
    why="clocks and ECC take their part; more is a fault",
    action="Look at clocks and throttling.",
    source="NVIDIA/DCGM; ROCmValidationSuite babel.so",
    severity="info",
    limits={"percent": 60.0},
)

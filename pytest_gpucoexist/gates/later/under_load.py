"""What shows under load alone: links, clocks, power, a first computation."""

from __future__ import annotations

from pytest_gpucoexist.gates.later.row import later

_BOTH = ("nvidia", "amd")

speed_under_load = later(
    "pcie.speed_under_load",
    "The link trains up under load",
    group="pcie-link",
    reads="current_link_speed every 50 ms during two seconds of pinned copies",
    criterion="the expected speed is reached; less than half is a failure",
    why="an idle GPU slows its link down, so only load shows a link that cannot do better",
    action="Firmware setting of the slot's generation; riser; another slot.",
    source="Syllo/nvtop#6; open-mpi/hwloc#653; NVIDIA/open-gpu-kernel-modules#1010",
)
flap = later(
    "pcie.flap",
    "The link does not retrain under load",
    group="pcie-link",
    reads="current_link_speed of the GPU and its port, 20 times, idle and under load",
    criterion="no change under load",
    why="each renegotiation can end in a completion timeout",
    action="nvidia-persistenced; pcie_aspm=off; newer VBIOS.",
    source="local-inference-lab/rtx6kpro PR#88; NVIDIA/open-gpu-kernel-modules#1229",
)
replay_nv = later(
    "pcie.replay.nv",
    "Packets are not repeated",
    group="pcie-link",
    reads="NVML's replay counters before and after the copies",
    criterion="80 at most, and no faster than a bit error rate of 1e-12 explains",
    why="repeated packets are signal quality",
    action="Reseat; lower the generation of the slot.",
    source="NVIDIA/DCGM (max_pcie_replays), #184",
    vendors=("nvidia",),
    limits={"most": 80.0},
)
host_buffer_node = later(
    "numa.host_buffer_node",
    "Buffers lie on the node that was asked for",
    group="numa",
    reads="move_pages on the staging buffer",
    criterion="every sampled page",
    why="a policy that is not permitted is ignored in silence",
    action="numactl --membind; the seccomp profile of the container.",
    source="ROCm/TransferBench, CheckPages",
)
clocks_event = later(
    "pwr.nv.clocks_event",
    "Clocks are not held down under load",
    group="power",
    reads="NVML's clock event reasons under load",
    criterion="no hardware slowdown, no power brake",
    why="a throttled GPU makes timeouts and slow tests",
    action="Cooling; power supply and cables.",
    source="azurehpc-health-checks; scitix/sichek; leptonai/gpud",
    vendors=("nvidia",),
    severity="fail",
)
violation_time = later(
    "pwr.nv.violation_time",
    "Little time is lost to limits",
    group="power",
    reads="NVML's violation times before and after the load",
    criterion="thermal: less than 1 % of the time; reports of zero seconds count for nothing",
    why="as pwr.nv.clocks_event, over time",
    action="Cooling.",
    source="NVIDIA/DCGM#242",
    vendors=("nvidia",),
    limits={"percent": 1.0},
)
pstate = later(
    "pwr.nv.pstate",
    "The GPU wakes up under load",
    group="power",
    reads="NVML's performance state under load",
    criterion="P0 to P2",
    why="a GPU stuck in a low state computes right and very slowly",
    action="Locked clocks; power connectors.",
    source="scitix/sichek",
    vendors=("nvidia",),
)
cooldown = later(
    "pwr.cooldown",
    "The GPU has settled before it is measured",
    group="power",
    reads="utilisation and clock events, for up to 60 s",
    criterion="below 10 %, no thermal event",
    why="a measurement right after a stress test fails for no fault",
    action="A longer pause.",
    source="NVIDIA/DCGM#272",
    limits={"percent": 10.0, "wait_s": 60.0},
)
power_draw_sane = later(
    "pwr.power_draw_sane",
    "The power sensor moves",
    group="power",
    reads="power idle and under load",
    criterion="1.2 times idle under load, and no more than 1.1 times the cap",
    why="a stuck sensor means that the management firmware is stuck",
    action="Trust none of its sensors; reboot.",
    source="ROCm/legacy-rocm-build#2196",
    severity="info",
)
one_process = later(
    "lib.mixed.one_process",
    "Both runtimes live in one process",
    group="libraries",
    reads="child processes that load CUDA then HIP, and HIP then CUDA, each with verified copies on both",
    criterion="they end well, and the data is right",
    why="it has crashed on shared symbols",
    action="One process for each vendor, which is the default here.",
    source="ROCm/ROCR-Runtime#31; ggml-org/llama.cpp#11506",
    vendors=_BOTH,
)
compute_smoke = later(
    "lib.compute_smoke",
    "Each GPU computes",
    group="libraries",
    reads="a small computation on each GPU in a child process, compared with the processor's",
    criterion="the same result, within 30 s",
    why="one bad GPU has held a suite for hours",
    action="Leave the GPU out.",
    source="pytorch/helion test workflow; ROCm/FlyDSL#858; NVIDIA/DCGM#122",
    severity="fail",
    limits={"timeout_s": 30.0},
)

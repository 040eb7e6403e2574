"""What the rest of the kernel prints about a host that cannot be trusted, and what vendors' programs print.

Wording: arch/x86/kernel, mm, kernel/hung_task.c, kernel/watchdog.c, drivers/edac, drivers/acpi/apei of Linux; standard
error of nvidia-smi, rocminfo and ROCr.
"""

from __future__ import annotations

from pytest_gpucoexist.kernellog.rule import Rule

__all__ = ["RULES"]

RULES: tuple[Rule, ...] = (
    Rule(
        id="sys.oops",
        vendor="any",
        severity="fail",
        # "traps: name[pid] general protection fault ip:…" is a program's own crash.
        regex=(
            r"BUG: kernel NULL pointer dereference"
            r"|\bOops: (?=[0-9a-f]{4}|.*\[#\d)|(?<!traps: )general protection fault(?! ip:)"
            r"|Kernel [Pp]anic\b"
            r"|kernel BUG at|BUG: unable to handle |Unable to handle kernel |\binvalid opcode: \d+ \[#"
        ),
        anchors=(
            "BUG: kernel NULL",
            "Oops: ",
            "general protection fault",
            "Kernel panic",
            "Kernel Panic",
            "kernel BUG at",
            "nable to handle ",
            "invalid opcode: ",
        ),
        meaning="the kernel itself crashed: nothing on this host can be trusted until it is rebooted",
        action="reboot; look at the module named in the trace",
    ),
    Rule(
        id="sys.soft_lockup",
        vendor="any",
        severity="fail",
        regex=r"BUG: soft lockup - CPU#\d+ stuck|[Ww]atchdog detected hard LOCKUP",
        anchors=("BUG: soft lockup", "hard LOCKUP"),
        meaning="a processor is stuck in the kernel",
        action="reboot; look at the module named in the trace",
    ),
    Rule(
        id="sys.hung_task",
        vendor="any",
        severity="warn",
        regex=r"INFO: task (?P<comm>.+):\d+ (?:is )?blocked (?:in I/O wait |on \S+ )?for more than \d+ seconds",
        anchors=("for more than ",),
        meaning="a program waits in the kernel and cannot be ended",
        action="look at the trace for the driver that it waits for",
    ),
    Rule(
        id="sys.edac_ue",
        vendor="any",
        severity="fail",
        regex=r"EDAC \w+: \d+ UE ",
        anchors=(" UE ",),
        meaning="the host's memory had an error that could not be corrected; copies through it may be wrong",
        action="replace the named memory module",
    ),
    Rule(
        id="sys.apei_pcie",
        vendor="any",
        severity="warn",
        regex=(
            r"\[Hardware Error\]:\s+(?:section_type: PCIe error|Hardware error from APEI)"
            r"|Hardware error from APEI Generic"
        ),
        anchors=("section_type: PCIe", "Hardware error from APEI"),
        meaning="the firmware recorded a hardware error",
        action="read the record's lines for the device",
    ),
    Rule(
        id="sys.mce",
        vendor="any",
        severity="warn",
        regex=(
            r"mce: \[Hardware Error\]: Machine check events logged"
            r"|\[Hardware Error\]: "
            r"(?:Machine check: |Machine check events logged|CPU ?\d+: Machine Check|System Fatal error)"
        ),
        anchors=("Machine check events logged", ": Machine Check", "]: Machine check: ", "System Fatal error"),
        meaning="a processor recorded a hardware error",
        action="read it with rasdaemon or mcelog",
    ),
    Rule(
        id="sys.nccl_segv",
        vendor="any",
        severity="warn",
        regex=(
            r"(?:segfault at|general protection(?: fault)? ip:?) ?.* in lib(?:nccl|rccl|cuda|amdhip64"
            r"|hsa-runtime64|nvrtc"
            r"|nvidia-(?:ml|ptxjit|nvvm)|ze_intel_gpu|amdocl64)"
        ),
        anchors=("segfault at ", "general protection"),
        meaning="a program crashed inside a GPU library",
        action="look at that program; check that library and driver versions fit",
    ),
    Rule(
        id="sys.oom",
        vendor="any",
        severity="warn",
        regex=r"Out of memory: Kill(?:ed)? process|oom-kill:|\w invoked oom-killer: |Memory cgroup out of memory",
        anchors=("Out of memory: Kill", "oom-kill:", " invoked oom-killer: ", "cgroup out of memory"),
        meaning="the kernel killed a program for want of memory",
        action="see which one; give the tests more memory or run fewer at once",
    ),
    Rule(
        id="sys.rt_throttle",
        vendor="any",
        severity="warn",
        regex=r"sched: RT throttling activated",
        anchors=("RT throttling activated",),
        meaning="real-time tasks starved the processor: do not trust timings",
        action="look for what kept the processor busy",
    ),
    Rule(
        id="user.nvml_mismatch",
        vendor="nvidia",
        severity="fail",
        regex=r"Failed to initialize NVML: Driver/library version mismatch",
        anchors=("NVML: Driver/library",),
        meaning="NVIDIA's libraries and the loaded kernel module have different versions",
        action="reboot (or reload the module) after a driver update",
    ),
    Rule(
        id="user.nvml_unknown",
        vendor="nvidia",
        severity="fail",
        regex=r"Failed to initialize NVML: Unknown Error",
        anchors=("NVML: Unknown Error",),
        meaning="a container lost its access to the GPUs",
        action="restart the container; use CDI, so that systemctl daemon-reload does not take the devices away",
    ),
    Rule(
        id="user.kfd_open",
        vendor="amd",
        severity="fail",
        regex=r"Unable to open /dev/kfd read-write: (?P<err>[\w ]+)",
        anchors=("Unable to open /dev/kfd",),
        meaning="the user cannot open AMD's compute device",
        action="add the user to the groups render and video; check that amdgpu is loaded",
    ),
    Rule(
        id="user.hsa_fault",
        vendor="amd",
        severity="fail",
        earlier="warn",
        regex=(
            r"Memory access fault by GPU node-\d+|HW Exception by GPU node-\d+"
            r"|Aborting with error : HSA_STATUS_ERROR"
        ),
        anchors=("fault by GPU node-", "Exception by GPU node-", "error : HSA_STATUS"),
        meaning="a program touched memory that is not mapped on the GPU, and was ended",
        action="look at that program; if it copied between GPUs, turn peer access off",
    ),
)

"""Machines that lived: other people's work, repaired faults, settings of admin and user, two of everything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.host.base import Identity
from pytest_gpucoexist.testing.builder import MachineBuilder, a_machine
from tests.gates.places.ground import attributes, boot_log, cuda, files, limits, rocm

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PLACES"]

_SITE = "/opt/venv/lib/python3.12/site-packages"
_SOMEBODY = Identity(uid=1003, gid=1003, groups=(1003,), group_names={"render": 105, "video": 44})
_NO_ERRORS = {"corrected_volatile": 0, "uncorrected_volatile": 0, "corrected_aggregate": 0, "uncorrected_aggregate": 0}


def _server() -> MachineBuilder:
    machine = a_machine("server").with_gpu("a100").with_gpu("a100").with_running_system()
    return cuda(limits(machine))


def shared_workstation() -> MachineBuilder:
    """Somebody without groups on a shared machine: dmesg denied, hidepid=2, other people's jobs on one of two GPUs."""
    machine = _server().with_identity(_SOMEBODY).without("/var/log/dmesg")
    machine = machine.with_process("nvidia1", 88123, 61 * 2**30)
    for pid in (1, 2, 812):
        machine = machine.without(f"/proc/{pid}")
    for number in (0, 1):
        machine = machine.with_error(f"/dev/dri/renderD{128 + number}", 13)
    return files(
        machine,
        {
            "/proc/4711/mountinfo": (
                "24 30 0:22 / /sys rw,nosuid,nodev,noexec,relatime shared:7 - sysfs sysfs rw\n"
                "25 30 0:23 / /proc rw,nosuid,nodev,noexec,relatime shared:14 - proc proc rw,hidepid=invisible,gid=27\n"
                "33 26 0:29 / /dev/shm rw,nosuid,nodev shared:4 - tmpfs tmpfs rw,size=65921544k,inode64\n"
            ),
            "/proc/sys/kernel/dmesg_restrict": "1\n",
        },
    )


def rebooted_after_xid() -> MachineBuilder:
    """A GPU died yesterday; the machine was rebooted since, and this boot is clean."""
    machine = files(
        _server(),
        {
            "/var/log/kern.log.1": (
                "Nov 28 03:12:44 server kernel: [812233.12] NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', "
                " GPU has fallen off the bus.\n"
                "Nov 28 03:12:44 server kernel: [812233.12] NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.\n"
            ),
        },
    )
    return boot_log(machine, "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.133.07  Release Build")


def noisy_log() -> MachineBuilder:
    """A log full of lines that sound bad and mean nothing for the GPUs."""
    machine = limits(
        a_machine("noisy").with_gpu("rtx4090").with_gpu("rx7900xtx").with_running_system(), open_files="4096"
    )
    return boot_log(
        rocm(cuda(machine)),
        "Spectre V2 : WARNING: Unprivileged eBPF is enabled with eIBRS on, data leaks possible!",
        "ACPI Warning: \\_SB.PCI0.GPP0._PRW: Return Package type mismatch at index 0",
        "x86/cpu: SGX disabled by BIOS.",
        "pci 0000:00:01.1: BAR 13: no space for [io  size 0x1000]",
        "pci 0000:00:01.1: BAR 13: failed to assign [io  size 0x1000]",
        "pci 0000:01:00.0: 63.008 Gb/s available PCIe bandwidth, limited by 16.0 GT/s PCIe x4 link at 0000:00:01.1",
        "pnp 00:03: disabling [mem 0xfec10002-0xfec11001] because it overlaps 0000:04:00.0 BAR 0",
        "hpet_acpi_add: no address or irqs in _CRS",
        "i8042: Warning: Keylock active",
        "usb 1-4: device not accepting address 5, error -71",
        "ata2.00: exception Emask 0x10 SAct 0x0 SErr 0x400100 action 0x6 frozen",
        "nvme nvme0: missing or invalid SUBNQN field.",
        "nvidia: loading out-of-tree module taints kernel.",
        "nvidia: module verification failed: signature and/or required key missing - tainting kernel",
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.133.07  Release Build",
        "nvidia-nvlink: Unregistered Nvlink Core, major device number 235",
        "NVRM: GPU 0000:01:00.0: RmInitAdapter succeeded",
        "amdgpu 0000:04:00.0: amdgpu: SMU driver if version not matched",
        "amdgpu 0000:04:00.0: amdgpu: use vbios provided pptable",
        "amdgpu 0000:04:00.0: amdgpu: psp gfx command LOAD_TA(0x1) failed and response status is (0x7)",
        "amdgpu 0000:04:00.0: amdgpu: MES FW version must be >= 0x7f to enable LR compute workaround.",
        "amdgpu 0000:04:00.0: [drm] REG_WAIT timeout 1us * 100 tries - dcn32_program_compbuf_size line:138",
        "[drm] DMUB hardware initialized: version=0x07002A00",
        "amdgpu: Overdrive is enabled, please disable it before reporting any bugs unrelated to overdrive.",
        "hid-generic 0003:046D:C52B.0003: hiddev0: timeout initializing reports",
        "perf: interrupt took too long (3131 > 3128), lowering kernel.perf_event_max_sample_rate to 63750",
        "traps: chrome[21212] trap int3 ip:55 sp:7f error:0 in chrome[55+aa]",
        "python3[9901]: segfault at 8 ip 00007f11 sp 00007ffd error 4 in _multiarray.so[7f11+8]",
        "Out of memory: Killed process 31337 (node) total-vm:22345678kB, anon-rss:9345678kB, file-rss:0kB",
        "workqueue: amdgpu_irq_handle_ih_soft [amdgpu] hogged CPU for >10000us 4 times",
        "mce: CPU3: Core temperature above threshold, cpu clock throttled (total events = 1)",
    )


def corrected_errors() -> MachineBuilder:
    """ECC corrected a few errors, and the counters of the bus have a few corrected ones."""
    machine = _server()
    machine = machine.with_health(
        "nvidia0", ecc_errors={**_NO_ERRORS, "corrected_volatile": 2, "corrected_aggregate": 17}
    )
    machine = machine.with_health(
        "nvidia0",
        sram={"threshold_exceeded": False, "uncorrectable_aggregate": 0, "uncorrectable_volatile": 0, "correctable": 3},
    )
    fatal = "Undefined 0\nDLP 0\nSDES 0\nTLP 0\nFCP 0\nTOTAL_ERR_FATAL 0"
    return attributes(
        machine,
        "0000:01:00.0",
        {
            "aer_dev_correctable": "RxErr 2\nBadTLP 1\nBadDLLP 4\nTimeout 1\nTOTAL_ERR_COR 8",
            "aer_dev_nonfatal": fatal.replace("FATAL", "NONFATAL"),
            "aer_dev_fatal": fatal,
        },
    )


def remapped_row() -> MachineBuilder:
    """A row was remapped after an uncorrectable error, and the GPU was reset since: repaired, nothing is pending."""
    machine = _server()
    rows = {"correctable": 0, "uncorrectable": 1, "pending": False, "failure": False}
    banks = {"max": 639, "high": 1, "partial": 0, "low": 0, "none": 0}
    machine = machine.with_health("nvidia0", remapped_rows=rows, row_histogram=banks)
    return machine.with_health("nvidia0", ecc_errors={**_NO_ERRORS, "uncorrected_aggregate": 1})


def tuned() -> MachineBuilder:
    """The admin set persistence off and a power limit; MPS runs; the user set CUDA_LAUNCH_BLOCKING to find a bug."""
    machine = _server()
    for number in (0, 1):
        power = {
            name: {"value": value}
            for name, value in (
                ("limit_mw", 250000),
                ("enforced_mw", 250000),
                ("default_mw", 300000),
                ("used_mw", 52000),
            )
        }
        machine = machine.with_health(f"nvidia{number}", power=power)
    return files(
        machine.with_environ(
            {
                "CUDA_LAUNCH_BLOCKING": "1",
                "CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps",
                "CUDA_MPS_LOG_DIRECTORY": "/var/log/nvidia-mps",
            }
        ),
        {
            "/tmp/nvidia-mps/control": "",
            "/proc/901/comm": "nvidia-cuda-mps\n",
            "/proc/901/stat": f"901 (nvidia-cuda-mps) S 1 901 901 0 -1 4194560 {' '.join(['0'] * 12)} 20 0 1 0 9 0 0\n",
            "/proc/901/cmdline": "nvidia-cuda-mps-control\0-d\0",
        },
    )


def wheel_and_toolkit() -> MachineBuilder:
    """torch for CUDA 12.6 beside the system's CUDA 12.8."""
    machine = limits(a_machine("dev").with_gpu("rtx4090").with_running_system())
    for name, version, path in (
        ("torch", "2.7.1+cu126", None),
        ("nvidia-cuda-runtime-cu12", "12.6.77", "nvidia/cuda_runtime/lib/libcudart.so.12"),
        ("nvidia-cublas-cu12", "12.6.4.1", "nvidia/cublas/lib/libcublas.so.12"),
        ("nvidia-cudnn-cu12", "9.5.1.17", "nvidia/cudnn/lib/libcudnn.so.9"),
        ("nvidia-nccl-cu12", "2.26.2", "nvidia/nccl/lib/libnccl.so.2"),
    ):
        module = (
            {"nvidia/__init__.py": ""} if path else {"torch/lib/libtorch_cuda.so": "", "torch/lib/libc10_cuda.so": ""}
        )
        machine = machine.with_distribution(
            name, version, imports=("nvidia",) if path else ("torch",), files={**module, **({path: ""} if path else {})}
        )
    return files(
        cuda(machine).with_link("/usr/local/cuda", "cuda-12.8"),
        {
            "/usr/local/cuda-12.8/version.json": '{"cuda": {"name": "CUDA SDK", "version": "12.8.1"}}\n',
            "/usr/local/cuda-12.8/lib64/libcudart.so.12.8.90": "",
            "/usr/local/cuda-12.8/lib64/libcublas.so.12.8.4.1": "",
            "/usr/local/cuda-12.8/lib64/stubs/libcuda.so": "",
            "/usr/local/cuda-12.8/lib64/stubs/libnvidia-ml.so": "",
            "/etc/ld.so.conf.d/000_cuda.conf": "/usr/local/cuda/targets/x86_64-linux/lib\n",
            "/usr/lib/x86_64-linux-gnu/libnccl.so.2.27.3": "",
        },
    )


def rocm_wheel() -> MachineBuilder:
    """torch for ROCm, which brings its own HIP, beside /opt/rocm; LD_LIBRARY_PATH is not set."""
    machine = limits(a_machine("dev").with_gpu("rx7900xtx").with_running_system())
    machine = machine.with_distribution(
        "torch",
        "2.7.1+rocm6.3",
        files={
            f"torch/lib/{name}": ""
            for name in ("libamdhip64.so", "libhsa-runtime64.so", "librccl.so", "libtorch_hip.so")
        },
    )
    return rocm(machine.with_distribution("pytorch-triton-rocm", "3.3.1", imports=("triton",)), "6.4.1")


def hip_as_loaded() -> MachineBuilder:
    """A process that imported that torch: it mapped torch's copies, and those of /opt/rocm not."""
    maps = "".join(
        f"7f{number}000000000-7f{number}000800000 r-xp 00000000 103:02 {1577002 + number}                   {path}\n"
        for number, path in enumerate(
            (
                f"{_SITE}/torch/lib/libtorch_hip.so",
                f"{_SITE}/torch/lib/libamdhip64.so",
                f"{_SITE}/torch/lib/libhsa-runtime64.so",
                "/usr/lib/x86_64-linux-gnu/libc.so.6",
            )
        )
    )
    return rocm_wheel().with_file("/proc/4711/maps", maps)


def two_pythons() -> MachineBuilder:
    """A system Python with Debian's packages and a venv; conda's libraries in LD_LIBRARY_PATH."""
    machine = cuda(limits(a_machine("dev").with_gpu("rtx4090").with_running_system()))
    machine = machine.with_distribution("torch", "2.7.1+cu126").with_distribution("nvidia-ml-py", "12.575.51")
    return files(
        machine,
        {
            "/usr/lib/python3/dist-packages/numpy/__init__.py": "",
            "/usr/lib/python3/dist-packages/torch/version.py": "__version__ = '2.1.2'\ncuda = None\nhip = None\n",
            "/usr/lib/python3/dist-packages/torch/lib/libtorch_cpu.so": "",
            "/home/me/miniconda3/lib/libcudart.so.11.0": "",
            "/home/me/miniconda3/lib/libstdc++.so.6": "",
        },
    ).with_environ({"LD_LIBRARY_PATH": "/home/me/miniconda3/lib", "CONDA_PREFIX": "/home/me/miniconda3"})


def crashes_of_others() -> MachineBuilder:
    """A lab's machine after a week: programs of others died by faults of their own, the GPUs are well."""
    return boot_log(
        _server(),
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.133.07  Release Build",
        "NVRM: Xid (PCI:0000:01:00): 13, pid=88123, name=python, Graphics SM Warp Exception on (GPC 2, TPC 1, SM 0):"
        " Out Of Range Address",
        "NVRM: Xid (PCI:0000:01:00): 43, pid=88123, name=python, Ch 00000008",
        "NVRM: Xid (PCI:0000:02:00): 31, pid=90001, name=python, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS"
        " GPCCLIENT_T1_0 faulted @ 0x7f55_80000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
        "NVRM: Xid (PCI:0000:02:00): 45, pid=90001, name=python, Ch 00000010",
        "python[90001]: segfault at 8 ip 00007f11 sp 00007ffd error 4 in libtorch_cuda.so[7f11+8]",
    )


PLACES: dict[str, Callable[[], MachineBuilder]] = {
    "shared-workstation": shared_workstation,
    "rebooted-after-xid": rebooted_after_xid,
    "noisy-log": noisy_log,
    "corrected-errors": corrected_errors,
    "remapped-row": remapped_row,
    "tuned-by-admin": tuned,
    "crashes-of-others": crashes_of_others,
    "wheel-and-toolkit": wheel_and_toolkit,
    "rocm-wheel": rocm_wheel,
    "rocm-wheel-loaded": hip_as_loaded,
    "two-pythons": two_pythons,
}

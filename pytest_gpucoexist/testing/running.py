"""What a machine shows while it runs: a process and its limits, memory, control group, mounts, others, a log.

The texts are those of Linux 6.8 (Documentation/filesystems/proc.rst, cgroup-v2.rst) on a quiet machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pytest_gpucoexist.testing.driven import DrivenGpu
    from pytest_gpucoexist.testing.parts import MachineParts

__all__ = ["ENVIRONMENT", "LINKS", "running_files"]

ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin"}

_PID = 4711
_GROUP = "/user.slice/user-1000.slice/session-3.scope"
_UPTIME_S = 93_784.12

_LIMITS = (
    ("Max cpu time", "unlimited", "unlimited", "seconds"),
    ("Max file size", "unlimited", "unlimited", "bytes"),
    ("Max stack size", "8388608", "unlimited", "bytes"),
    ("Max processes", "513892", "513892", "processes"),
    ("Max open files", "4096", "1048576", "files"),
    ("Max locked memory", "unlimited", "unlimited", "bytes"),
)

_MOUNTS = (
    "24 30 0:22 / /sys rw,nosuid,nodev,noexec,relatime shared:7 - sysfs sysfs rw",
    "25 30 0:23 / /proc rw,nosuid,nodev,noexec,relatime shared:14 - proc proc rw",
    "26 30 0:5 / /dev rw,nosuid,relatime shared:2 - devtmpfs udev rw,size=65888888k,nr_inodes=16472222,mode=755",
    "30 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw",
    "33 26 0:29 / /dev/shm rw,nosuid,nodev shared:4 - tmpfs tmpfs rw,size=65921544k,inode64",
    "36 24 0:31 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw",
)

_PROCESSES = {1: "systemd", 2: "kthreadd", 812: "systemd-journal", 4690: "bash", _PID: "python3"}


def running_files(parts: MachineParts, gpus: Sequence[DrivenGpu]) -> Mapping[str, str]:
    """Return the files, by path. `gpus` are those of the machine, for what the log and the drivers tell of them."""
    total = sum(node.memory_bytes for node in parts.nodes) // 1024
    cpus = sum(node.cpus for node in parts.nodes)
    files = {
        "/proc/uptime": f"{_UPTIME_S:.2f} {_UPTIME_S * cpus * 0.96:.2f}",
        "/proc/meminfo": (
            f"MemTotal:       {total} kB\nMemFree:        {total * 3 // 4} kB\nMemAvailable:   {total * 7 // 8} kB"
        ),
        "/proc/sys/kernel/tainted": "12288" if any(gpu.function.driver == "nvidia" for gpu in gpus) else "0",
        "/proc/sys/kernel/dmesg_restrict": "0",
        "/proc/sys/kernel/numa_balancing": "0",
        "/sys/class/devcoredump/disabled": "0",
        "/sys/module/pcie_aspm/parameters/policy": "[default] performance powersave powersupersave",
        "/sys/kernel/security/lockdown": "[none] integrity confidentiality",
        "/etc/modprobe.d/nvidia-graphics-drivers.conf": "blacklist nouveau\nblacklist nova_core\nalias nouveau off",
        "/etc/ld.so.conf": "include /etc/ld.so.conf.d/*.conf",
        "/etc/ld.so.conf.d/x86_64-linux-gnu.conf": "/usr/local/lib/x86_64-linux-gnu\n/usr/lib/x86_64-linux-gnu",
        f"/sys/fs/cgroup{_GROUP}/memory.max": "max",
        f"/sys/fs/cgroup{_GROUP}/memory.current": "73400320",
        "/sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory hugetlb pids rdma misc",
        "/var/log/dmesg": "".join(f"{line}\n" for line in _log(parts, gpus)),
        **{path: text for pid, name in _PROCESSES.items() for path, text in _process(pid, name, cpus)},
    }
    files[f"/proc/{_PID}/limits"] = _limits()
    files[f"/proc/{_PID}/mountinfo"] = "\n".join(_MOUNTS)
    files[f"/proc/{_PID}/maps"] = _maps()
    files[f"/proc/{_PID}/uid_map"] = "         0          0 4294967295"
    if any(gpu.function.driver == "amdgpu" for gpu in gpus):
        files |= {"/sys/module/amdgpu/parameters/gpu_recovery": "-1", "/sys/module/amdgpu/parameters/noretry": "-1"}
    if any(gpu.function.driver == "nvidia" for gpu in gpus):
        files |= {
            "/sys/module/nvidia_drm/parameters/modeset": "Y",
            "/sys/module/nvidia_drm/parameters/fbdev": "N",
            "/proc/driver/nvidia/params": 'ResmanDebugLevel: 4294967295\nRegistryDwords: ""\nEnableResizableBar: 1',
        }
    return files


LINKS = {"/proc/self": str(_PID), f"/proc/{_PID}/ns/pid": "pid:[4026531836]"}
"""Links, by path."""


def _process(pid: int, name: str, cpus: int) -> Iterator[tuple[str, str]]:
    parent = 4690 if pid == _PID else 1 if pid > 2 else 0
    zeros = " ".join(["0"] * 12)
    yield f"/proc/{pid}/stat", f"{pid} ({name}) S {parent} {pid} {pid} 0 -1 4194560 {zeros} 20 0 1 0 {pid * 10} 0 0"
    yield f"/proc/{pid}/comm", name
    yield f"/proc/{pid}/cgroup", "0::/init.scope" if pid == 1 else f"0::{_GROUP}"
    uid = 1000 if pid >= 4000 else 0
    allowed = f"0-{cpus - 1}" if cpus > 1 else "0"
    status = [
        f"Name:\t{name}",
        "State:\tS (sleeping)",
        f"Tgid:\t{pid}",
        f"Pid:\t{pid}",
        f"PPid:\t{parent}",
        f"Uid:\t{uid}\t{uid}\t{uid}\t{uid}",
        "CapEff:\t0000000000000000",
        "Seccomp:\t0",
        "Seccomp_filters:\t0",
        f"Cpus_allowed_list:\t{allowed}",
    ]
    yield f"/proc/{pid}/status", "\n".join(status)


def _limits() -> str:
    rows: Iterable[tuple[str, str, str, str]] = (("Limit", "Soft Limit", "Hard Limit", "Units"), *_LIMITS)
    return "\n".join(f"{name:<26}{soft:<21}{hard:<21}{units:<10}" for name, soft, hard, units in rows)


def _maps() -> str:
    lines = (
        ("55d0c8a00000-55d0c8c00000 r-xp 00000000 103:02 1572871", "/usr/bin/python3.12"),
        ("7f3a10000000-7f3a10200000 r-xp 00000000 103:02 1577002", "/usr/lib/x86_64-linux-gnu/libc.so.6"),
    )
    return "\n".join(f"{mapping:<72} {path}" for mapping, path in lines)


def _log(parts: MachineParts, gpus: Sequence[DrivenGpu]) -> Iterator[str]:
    """Write a boot in which nothing went wrong, as `dmesg` prints it."""
    yield f"[    0.000000] Linux version {parts.kernel} (buildd@lcy02-amd64-080) (gcc 13.3.0) #63-Ubuntu SMP"
    yield f"[    0.000000] Command line: BOOT_IMAGE=/boot/vmlinuz-{parts.kernel} ro quiet iommu=pt"
    yield "[    0.412345] iommu: Default domain type: Passthrough (set via kernel command line)"
    yield "[    0.431001] PCI: MMCONFIG for domain 0000 [bus 00-ff] at [mem 0xe0000000-0xefffffff] (base 0xe0000000)"
    yield "[    1.204511] pcieport 0000:00:01.1: AER: enabled with IRQ 28"
    seconds = 4.0
    for gpu in gpus:
        address, driver = gpu.address, gpu.function.driver
        if driver == "amdgpu":
            yield f"[{seconds:12.6f}] amdgpu {address}: enabling device (0006 -> 0007)"
            ids = f"{gpu.part.model.vendor_id[2:]}:{gpu.part.model.device_id[2:]}"
            yield f"[{seconds + 0.9:12.6f}] kfd kfd: amdgpu: added device {ids}"
        elif driver == "nvidia":
            yield f"[{seconds:12.6f}] nvidia {address}: enabling device (0000 -> 0003)"
        seconds += 1.1
    if any(gpu.function.driver == "nvidia" for gpu in gpus):
        version = parts.nvidia_driver
        yield (
            f"[{seconds:12.6f}] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  {version}"
            "  Release Build  (dvs-builder@U16-I1-N08-05-1)"
        )
    yield "[   18.220031] systemd[1]: Startup finished in 3.912s (kernel) + 14.301s (userspace) = 18.214s."

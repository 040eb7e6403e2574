"""What many places share: files of a running Linux, driver libraries, processes in containers, kernel logs."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_gpucoexist.host.base import HelperReply, Identity, Node
from pytest_gpucoexist.host.replay import ReplayHost
from pytest_gpucoexist.testing.assemble import assemble
from pytest_gpucoexist.testing.catalogue import CATALOGUE, GpuModel

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucoexist.testing.builder import MachineBuilder

__all__ = [
    "DEBIAN",
    "FEDORA",
    "ROOT",
    "attributes",
    "boot_log",
    "cuda",
    "files",
    "in_container",
    "limits",
    "model",
    "node",
    "refusing",
    "rocm",
    "with_nvml_of",
    "without_rocm",
]

DEBIAN, FEDORA = "/usr/lib/x86_64-linux-gnu", "/usr/lib64"
ROOT = Identity(uid=0, gid=0, groups=(0,))
_DRIVER = "570.133.07"


def model(base: str, **changes: object) -> GpuModel:
    """Return a GPU of the catalogue with other ids or another size."""
    return replace(CATALOGUE[base], **changes)  # type: ignore[arg-type]


def files(machine: MachineBuilder, texts: Mapping[str, str]) -> MachineBuilder:
    """Put many files."""
    for path, text in texts.items():
        machine = machine.with_file(path, text)
    return machine


def attributes(machine: MachineBuilder, address: str, values: Mapping[str, str]) -> MachineBuilder:
    """Put attributes of a PCI function, below its real folder."""
    folder = machine.host().resolve(f"/sys/bus/pci/devices/{address}")
    return files(machine, {f"{folder}/{name}": f"{value}\n" for name, value in values.items()})


def cuda(machine: MachineBuilder, folder: str = DEBIAN, driver: str = _DRIVER) -> MachineBuilder:
    """Install the libraries that come with NVIDIA's driver."""
    for stem in ("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler"):
        machine = machine.with_file(f"{folder}/{stem}.so.{driver}", b"\x7fELF")
        machine = machine.with_link(f"{folder}/{stem}.so.1", f"{stem}.so.{driver}")
    machine = machine.with_link(f"{folder}/libcuda.so", "libcuda.so.1")
    return machine.with_nvidia_driver(driver)


def rocm(machine: MachineBuilder, version: str = "6.4.1") -> MachineBuilder:
    """Install ROCm as AMD's packages do, with its line for the linker."""
    major, minor, patch = (int(part) for part in version.split("."))
    number = f"{major}.{minor}.{major}0{minor}0{patch}"
    root = f"/opt/rocm-{version}"
    for stem, short in (("libamdhip64", str(major)), ("libhsa-runtime64", "1"), ("libamd_smi", "25")):
        machine = machine.with_file(f"{root}/lib/{stem}.so.{number}", b"\x7fELF")
        machine = machine.with_link(f"{root}/lib/{stem}.so.{short}", f"{stem}.so.{number}")
    return files(
        machine.with_link("/opt/rocm", f"rocm-{version}"),
        {
            f"{root}/.info/version": f"{version}-83\n",
            "/etc/ld.so.conf.d/10-rocm-opencl.conf": f"{root}/lib\n",
        },
    )


def without_rocm(machine: MachineBuilder) -> MachineBuilder:
    """Let AMD's libraries be absent: amdgpu comes with the kernel, they do not."""
    absent = HelperReply(status="absent", data={"cause": "no-library"}, detail="libamd_smi.so: cannot open")
    for helper in ("amdsmi", "hip"):
        machine = machine.with_reply(helper, absent)
    return machine


def boot_log(machine: MachineBuilder, *lines: str, kernel: str = "6.8.0-60-generic") -> MachineBuilder:
    """Let the kernel have logged this, two lines a second."""
    whole = [f"Linux version {kernel} (buildd@lcy02-amd64-080) (gcc 13.3.0) #63-Ubuntu SMP", *lines]
    text = "".join(f"[{number / 2:12.6f}] {line}\n" for number, line in enumerate(whole))
    return machine.with_file("/var/log/dmesg", text)


def limits(machine: MachineBuilder, *, open_files: str = "1024", memlock: str = "8388608") -> MachineBuilder:
    """Set the limits of the process that looks."""
    text = (
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        "Max cpu time              unlimited            unlimited            seconds   \n"
        f"Max open files            {open_files:<20} 1048576              files     \n"
        f"Max locked memory         {memlock:<20} {memlock:<20} bytes     \n"
    )
    return machine.with_file("/proc/4711/limits", text)


def in_container(
    machine: MachineBuilder,
    *,
    cgroup: str = "0::/\n",
    shm: str = "65536k",
    caps: str = "00000000a80425fb",
    seccomp: int = 2,
    mounts: str = "",
    cpus: str = "0-7",
    uid_map: str = "         0          0 4294967295\n",
    environ: Mapping[str, str] | None = None,
    identity: Identity = ROOT,
) -> MachineBuilder:
    """Look from inside a container: no log of the kernel, masked files of /proc, a control group of its own."""
    machine = machine.with_running_system().without("/var/log/dmesg").without("/etc/modprobe.d")
    for path in ("/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/scsi"):
        machine = machine.with_file(path, "")
    root = (
        "1497 1490 0:129 / / rw,relatime - overlay overlay rw,lowerdir=/var/lib/docker/overlay2/l/A:B\n"
        "1498 1497 0:132 / /proc rw,nosuid,nodev,noexec,relatime - proc proc rw\n"
        "1499 1497 0:133 / /dev rw,nosuid - tmpfs tmpfs rw,size=65536k,mode=755\n"
        "1501 1497 0:135 / /sys ro,nosuid,nodev,noexec,relatime - sysfs sysfs ro\n"
        "1502 1501 0:29 / /sys/fs/cgroup ro,nosuid,nodev,noexec,relatime - cgroup2 cgroup rw\n"
    )
    status = (
        f"Name:\tpython3\nState:\tR (running)\nTgid:\t4711\nPid:\t4711\nPPid:\t1\nCapEff:\t{caps}\nNoNewPrivs:\t0\n"
        f"Seccomp:\t{seccomp}\nSeccomp_filters:\t{int(seccomp > 0)}\nCpus_allowed_list:\t{cpus}\n"
        "Mems_allowed_list:\t0\n"
    )
    machine = files(
        machine,
        {
            "/proc/4711/cgroup": cgroup,
            "/proc/1/cgroup": cgroup,
            "/proc/4711/status": status,
            "/proc/4711/mountinfo": f"{root}{mounts}1500 1499 0:131 / /dev/shm rw,nosuid - tmpfs shm rw,size={shm}\n",
            "/proc/4711/uid_map": uid_map,
            "/proc/sys/kernel/dmesg_restrict": "1\n",
            "/sys/fs/cgroup/memory.max": "max\n",
            "/sys/fs/cgroup/memory.current": f"{6 * 2**30}\n",
            "/sys/fs/cgroup/cpuset.cpus.effective": f"{cpus}\n",
        },
    )
    for pid in (2, 812, 4690):
        machine = machine.without(f"/proc/{pid}")
    return (
        limits(machine, open_files="1048576", memlock="8388608")
        .with_identity(identity)
        .with_environ({"HOME": "/root", **(environ or {})})
    )


def refusing(machine: MachineBuilder, *paths: str) -> ReplayHost:
    """Let access(2) deny these nodes, whatever their mode: a device cgroup does."""
    built = assemble(machine.parts)
    denied = {"read": errno.EACCES, "write": errno.EACCES}
    manifest = replace(built.manifest, may_open={**built.manifest.may_open, **dict.fromkeys(paths, denied)})
    return ReplayHost(built.tree, manifest, name=machine.parts.name)


def with_nvml_of(machine: MachineBuilder, other: MachineBuilder) -> MachineBuilder:
    """Let NVML and CUDA answer as on another machine."""
    for helper in ("nvml", "cuda"):
        machine = machine.with_reply(helper, assemble(other.parts).manifest.helpers[helper])
    return machine


def node(major: int, minor: int, *, mode: int = 0o666, uid: int = 0, gid: int = 0) -> Node:
    """A character device."""
    return Node(kind="chardev", mode=mode, uid=uid, gid=gid, major=major, minor=minor)

"""Four containers as they really look, and the host that they run on.

- `pod`: Kubernetes with NVIDIA's container runtime in its legacy mode. `/sys` is the host's; `/dev` has the nodes of
  two of four GPUs; nvidia-container-cli lays a tmpfs over `/proc/driver/nvidia` that holds the injected GPUs alone,
  with `ModifyDeviceFiles: 0` (libnvidia-container nvc_mount.c, mount_procfs; libnvidia-container#105); the libraries
  are bind mounts.
- `cdi`: the Container Device Interface. Nothing masks `/proc`: all four GPUs are listed in it, one has its node here,
  and `NVIDIA_VISIBLE_DEVICES=void` keeps NVIDIA's own runtime from injecting anything (nvidia-ctk cdi generate).
- `rootless`: podman in a user namespace with `--device /dev/kfd --device /dev/dri/renderD129 --group-add keep-groups`:
  nodes belong to nobody (65534), because the namespace does not map the host's root and groups, and 65534 is among
  the process's groups (podman-container-tools/podman#10166).
- `mig`: one MIG instance of an A100 given to a pod: `/dev/nvidia0`, and of `/dev/nvidia-caps` the two nodes that belong
  to the instance (kubernetes-sigs/dra-driver-nvidia-gpu#787).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.host.base import Identity, Node
from pytest_gpucoexist.testing.builder import MachineBuilder, a_machine
from pytest_gpucoexist.testing.vendor_replies import MigInstance

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucoexist.host.base import Host

__all__ = ["LAYOUTS", "cdi", "mig", "pod", "rootless", "with_process_files"]

DRIVER = "570.133.07"
_LIBRARIES = "/usr/lib/x86_64-linux-gnu"
_MAPS = """\
55d0c8a4a000-55d0c8a4b000 r--p 00000000 08:02 393401                     /usr/bin/python3.12
7f6e1c000000-7f6e1c021000 rw-p 00000000 00:00 0
7f6e20a28000-7f6e20bb0000 r-xp 00028000 08:02 396612                     /usr/lib/x86_64-linux-gnu/libc.so.6
"""
_MASKED = ("/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/scsi")
_OVERFLOW_ID = 65534
_MIG_UUID = "MIG-c5a9c1d0-6f4f-5a33-9f0c-6b1f2d3e4a5b"
# docker's default capabilities (moby daemon/pkg/oci/caps, DefaultCapabilities).
_DOCKER_CAPS = "00000000a80425fb"


def with_process_files(
    machine: MachineBuilder,
    *,
    cpus: str = "0-31",
    nodes: str = "0-1",
    caps: str = "0000000000000000",
    seccomp: int = 0,
    mounts: str = "",
    uid_map: str = "         0          0 4294967295\n",
    shm: str = "size=16384000k",
    open_files: int = 1048576,
) -> MachineBuilder:
    """Give the process that looks what `/proc/self` has (fs/proc/array.c, proc_pid_limits, proc_pid_mountinfo)."""
    status = (
        f"Name:\tpython3\nUmask:\t0022\nState:\tR (running)\nPid:\t4711\nCapEff:\t{caps}\nNoNewPrivs:\t0\n"
        f"Seccomp:\t{seccomp}\nSeccomp_filters:\t{int(seccomp > 0)}\nCpus_allowed_list:\t{cpus}\n"
        f"Mems_allowed_list:\t{nodes}\n"
    )
    limits = (
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        f"Max open files            {open_files:<20} {open_files:<20} files     \n"
        "Max locked memory         8388608              8388608              bytes     \n"
    )
    mountinfo = f"{mounts}1500 1497 0:131 / /dev/shm rw,nosuid,nodev,noexec,relatime - tmpfs shm rw,{shm}\n"
    return (
        machine.with_file("/proc/self/status", status)
        .with_file("/proc/self/limits", limits)
        .with_file("/proc/self/mountinfo", mountinfo)
        .with_file("/proc/self/uid_map", uid_map)
        .with_file("/proc/sys/kernel/dmesg_restrict", "1\n")
        .with_file("/proc/sys/kernel/tainted", "12288\n")
        .with_file(
            "/proc/meminfo",
            "MemTotal:       263968260 kB\nMemFree:        180112004 kB\nMemAvailable:   240112004 kB\n",
        )
        .with_file("/proc/self/maps", _MAPS)
        .with_file(
            "/proc/devices", "Character devices:\n  1 mem\n195 nvidia\n226 drm\n511 nvidia-uvm\n\nBlock devices:\n"
        )
    )


def _in_container(machine: MachineBuilder, cgroup: str, **process: str | int) -> MachineBuilder:
    """Add what every container has: a control group that is its own root, masked files of `/proc`, no kernel log."""
    for path in _MASKED:
        machine = machine.with_file(path, "")
    machine = (
        machine.with_file("/proc/self/cgroup", "0::/\n")
        .with_file("/proc/1/cgroup", f"0::{cgroup}\n")
        .with_file("/sys/fs/cgroup/memory.max", f"{64 * 2**30}\n")
        .with_file("/sys/fs/cgroup/memory.current", f"{6 * 2**30}\n")
        .with_file("/sys/fs/cgroup/memory.stat", f"anon {2 * 2**30}\ninactive_file {3 * 2**30}\n")
        .with_file("/sys/fs/cgroup/cpuset.cpus.effective", "0-31\n")
    )
    return with_process_files(machine, **{"seccomp": 2, "caps": _DOCKER_CAPS, **process})  # type: ignore[arg-type]


def _with_driver_libraries(machine: MachineBuilder) -> MachineBuilder:
    for stem in ("libcuda", "libnvidia-ml"):
        machine = machine.with_file(f"{_LIBRARIES}/{stem}.so.{DRIVER}", b"\x7fELF").with_link(
            f"{_LIBRARIES}/{stem}.so.1", f"{stem}.so.{DRIVER}"
        )
    return machine


def _four_gpus() -> MachineBuilder:
    machine = a_machine("node7").with_numa_nodes(2, cpus=16).with_nvidia_driver(DRIVER)
    for number in range(4):
        machine = machine.with_gpu("rtx4090", numa_node=number // 2)
    return machine


def _params(modify: int) -> str:
    return f"ModifyDeviceFiles: {modify}\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\n"


def pod() -> MachineBuilder:
    """A pod that holds two of the node's four GPUs."""
    machine = _four_gpus().without_nodes("nvidia2").without_nodes("nvidia3")
    for gpu in machine.host().list_dir("/proc/driver/nvidia/gpus")[2:]:
        machine = machine.without(f"/proc/driver/nvidia/gpus/{gpu}")
    mounts = "".join(
        f"{number} 1490 {device} / {path} ro,nosuid,nodev - {kind}\n"
        for number, (device, path, kind) in enumerate(
            [
                ("0:130", "/proc/driver/nvidia", "tmpfs tmpfs rw,mode=555"),
                ("8:2", f"{_LIBRARIES}/libcuda.so.{DRIVER}", "ext4 /dev/sda2 rw"),
                ("0:6", "/dev/nvidiactl", "devtmpfs udev rw,size=263968260k,mode=755"),
            ],
            1510,
        )
    )
    machine = _in_container(
        _with_driver_libraries(machine), "/kubepods.slice/kubepods-burstable.slice", mounts=mounts, shm="size=65536k"
    )
    machine = machine.with_file("/proc/driver/nvidia/params", _params(0))
    for path in ("/dev/nvidia-modeset", "/dev/dri"):
        machine = machine.without(path)
    information = [machine.host().read_text(f"/proc/driver/nvidia/gpus/{gpu}/information") for gpu in _granted(machine)]
    uuids = ",".join(text.partition("GPU UUID: \t ")[2].split()[0] for text in information)
    return machine.with_identity(Identity(uid=0, gid=0, groups=(0,))).with_environ(
        {
            "HOME": "/root",
            "KUBERNETES_SERVICE_HOST": "10.96.0.1",
            "NVIDIA_VISIBLE_DEVICES": uuids,
            "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        }
    )


def _granted(machine: MachineBuilder) -> list[str]:
    return machine.host().list_dir("/proc/driver/nvidia/gpus")


def cdi() -> MachineBuilder:
    """Docker with `--device nvidia.com/gpu=1`."""
    machine = _with_driver_libraries(_four_gpus())
    for number in (0, 2, 3):
        machine = machine.without_nodes(f"nvidia{number}")
    machine = _in_container(machine, "/docker/4f1c0b6a").with_file("/.dockerenv", "")
    machine = machine.with_file("/proc/driver/nvidia/params", _params(1)).without("/dev/dri")
    return machine.with_identity(Identity(uid=0, gid=0, groups=(0,))).with_environ(
        {"HOME": "/root", "NVIDIA_VISIBLE_DEVICES": "void"}
    )


def rootless() -> MachineBuilder:
    """Podman without root, on a workstation with an NVIDIA and two AMD cards, of which one AMD card was passed in."""
    machine = (
        a_machine("desk")
        .with_numa_nodes(2, cpus=16)
        .with_gpu("rtx4090")
        .with_gpu("mi210", numa_node=0)
        .with_gpu("mi210", numa_node=1)
        .without_nodes("nvidia0")
        .without_nodes("amd1")
    )
    for path in ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"):
        machine = machine.without(path)
    nobody = {"uid": _OVERFLOW_ID, "gid": _OVERFLOW_ID, "mode": 0o660}
    machine = (
        machine.with_node("/dev/kfd", Node(kind="chardev", major=510, minor=0, **nobody))
        .with_node("/dev/dri/renderD129", Node(kind="chardev", major=226, minor=129, **nobody))
        .with_node("/dev/dri/card1", Node(kind="chardev", major=226, minor=1, **nobody))
        .with_file("/opt/rocm/.info/version", "6.4.1-83\n")
        .with_file("/opt/rocm/lib/libamdhip64.so.6.4.60401", b"\x7fELF")
        .with_file("/run/.containerenv", 'engine="podman-5.4.2"\nrootless=1\n')
    )
    machine = _in_container(
        machine,
        "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-8d1e.scope/container",
        uid_map="         0       1000          1\n         1     524288      65536\n",
    )
    return machine.with_identity(
        Identity(uid=0, gid=0, groups=(0, _OVERFLOW_ID), group_names={"root": 0, "nogroup": _OVERFLOW_ID})
    ).with_environ({"HOME": "/root", "container": "podman"})


def mig() -> MachineBuilder:
    """A pod with one MIG instance of a node's A100."""
    machine = (
        a_machine("node9")
        .with_numa_nodes(2, cpus=16)
        .with_nvidia_driver(DRIVER)
        .with_gpu("a100")
        .with_mig("nvidia0", MigInstance(uuid=_MIG_UUID, name="1g.10gb", gi=7, memory_total_bytes=9856 * 2**20))
    )
    instance = "/proc/driver/nvidia/capabilities/gpu0/mig/gi7"
    for path, number in ((f"{instance}/access", 66), (f"{instance}/ci0/access", 67)):
        machine = machine.with_file(path, f"DeviceFileMinor: {number}\nDeviceFileMode: 292\nDeviceFileModify: 0\n")
        node = Node(kind="chardev", mode=0o444, major=238, minor=number)
        machine = machine.with_node(f"/dev/nvidia-caps/nvidia-cap{number}", node)
    machine = _in_container(_with_driver_libraries(machine), "/kubepods.slice/kubepods-pod1.slice", shm="size=8388608k")
    machine = machine.with_file("/proc/driver/nvidia/params", _params(0)).without("/dev/dri")
    return machine.with_identity(Identity(uid=0, gid=0, groups=(0,))).with_environ(
        {
            "HOME": "/root",
            "KUBERNETES_SERVICE_HOST": "10.96.0.1",
            "NVIDIA_VISIBLE_DEVICES": _MIG_UUID,
            "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        }
    )


LAYOUTS: dict[str, Callable[[], Host]] = {
    "pod-two-of-four": lambda: pod().host(),
    "cdi-void": lambda: cdi().host(),
    "rootless-podman": lambda: rootless().host(),
    "mig-instance": lambda: mig().host(),
}

"""Containers and jobs: what a batch system, a runtime or a cloud's runner leaves of a machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.host.base import Identity
from pytest_gpucoexist.testing.assemble import assemble
from pytest_gpucoexist.testing.builder import MachineBuilder, a_machine
from pytest_gpucoexist.testing.vendor_replies import MigInstance
from tests.gates.places.ground import DEBIAN, cuda, files, in_container, limits, node, refusing, rocm, with_nvml_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpucoexist.host.replay import ReplayHost

__all__ = ["PLACES"]

_SOMEBODY = Identity(uid=1000, gid=1000, groups=(1000,), group_names={"render": 105, "video": 44})
_NOBODY = 65534


def _eight() -> MachineBuilder:
    machine = a_machine("node").with_numa_nodes(2, cpus=32)
    for number in range(4):
        machine = machine.with_gpu("a100", numa_node=number // 2)
    return cuda(machine)


def _only(machine: MachineBuilder, *kept: int, count: int = 4) -> MachineBuilder:
    for number in range(count):
        if number not in kept:
            machine = machine.without_nodes(f"nvidia{number}")
    return machine


def _masked(machine: MachineBuilder, *kept: int) -> MachineBuilder:
    """Lay libnvidia-container's tmpfs over /proc/driver/nvidia: it lists what was injected alone."""
    listed = machine.host().list_dir("/proc/driver/nvidia/gpus")
    for number, name in enumerate(listed):
        if number not in kept:
            machine = machine.without(f"/proc/driver/nvidia/gpus/{name}")
    return machine.with_file(
        "/proc/driver/nvidia/params", "ModifyDeviceFiles: 0\nDeviceFileUID: 0\nDeviceFileMode: 438\n"
    )


def slurm() -> ReplayHost:
    """A Slurm job step on bare metal: devices and CPUs by control groups; every node in /dev, one may be opened."""
    machine = limits(_eight().with_running_system(), open_files="131072", memlock="unlimited")
    group = "/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0"
    status = (
        "Name:\tpython3\nState:\tR (running)\nTgid:\t4711\nPid:\t4711\nPPid:\t4690\nUid:\t1000\t1000\t1000\t1000\n"
        "CapEff:\t0000000000000000\nSeccomp:\t0\nCpus_allowed_list:\t8-15\nMems_allowed_list:\t0-1\n"
    )
    machine = files(
        machine.with_identity(_SOMEBODY),
        {
            "/proc/4711/cgroup": f"0::{group}\n",
            "/proc/4711/status": status,
            f"/sys/fs/cgroup{group}/memory.max": "max\n",
            "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_4711/memory.max": f"{64 * 2**30}\n",
            f"/sys/fs/cgroup{group}/cpuset.cpus.effective": "8-15\n",
        },
    ).with_environ(
        {
            "CUDA_VISIBLE_DEVICES": "0",
            "GPU_DEVICE_ORDINAL": "0",
            "ROCR_VISIBLE_DEVICES": "0",
            "SLURM_JOB_ID": "4711",
            "SLURM_STEP_GPUS": "1",
            "SLURM_JOB_GPUS": "1",
        }
    )
    # access(2) asks the device cgroup too; NVML counts what it may open.
    return refusing(with_nvml_of(machine, _only(_eight(), 1)), *(f"/dev/nvidia{number}" for number in (0, 2, 3)))


def slurm_rocm() -> ReplayHost:
    """A Slurm job with one of four MI210: KFD hides the others (EPERM), their render nodes are refused."""
    machine = a_machine("node").with_numa_nodes(2, cpus=32)
    for number in range(4):
        machine = machine.with_gpu("mi210", numa_node=number // 2)
    machine = rocm(limits(machine.with_running_system(), open_files="131072", memlock="unlimited"))
    given = machine.without_nodes("amd0").without_nodes("amd2").without_nodes("amd3")
    machine = machine.with_environ({"ROCR_VISIBLE_DEVICES": "0", "SLURM_JOB_ID": "4711", "SLURM_STEP_GPUS": "1"})
    for helper in ("amdsmi", "hip"):
        machine = machine.with_reply(helper, assemble(given.parts).manifest.helpers[helper])
    hidden = assemble(given.parts).manifest.errors
    for path, code in hidden.items():
        machine = machine.with_error(path, code)
    return refusing(
        machine,
        *(f"/dev/dri/{name}{base + number}" for name, base in (("renderD", 128), ("card", 0)) for number in (0, 2, 3)),
    )


def github_runner() -> MachineBuilder:
    """A hosted runner: a virtual machine without a GPU, and the CUDA build of torch with its wheels."""
    machine = limits(a_machine("runner").with_running_system(), open_files="65536")
    for name, version in (
        ("torch", "2.7.1+cu126"),
        ("nvidia-cuda-runtime-cu12", "12.6.77"),
        ("nvidia-cublas-cu12", "12.6.4.1"),
        ("nvidia-nccl-cu12", "2.26.2"),
        ("triton", "3.3.1"),
    ):
        machine = machine.with_distribution(name, version)
    return machine.without("/etc/modprobe.d").with_environ({"CI": "true", "GITHUB_ACTIONS": "true"})


def docker() -> MachineBuilder:
    """`docker run --gpus '"device=1"'` with the defaults: 64 MiB of shared memory, docker's seccomp filter."""
    machine = _masked(_only(_eight(), 1), 1)
    for path in ("/dev/nvidia-modeset", "/dev/dri"):
        machine = machine.without(path)
    machine = machine.with_file("/.dockerenv", "")
    return in_container(
        machine,
        cpus="0-63",
        mounts=f"1510 1497 8:2 {DEBIAN}/libcuda.so.570.133.07 {DEBIAN}/libcuda.so.570.133.07 ro - ext4 /dev/sda2 rw\n",
        environ={
            "NVIDIA_VISIBLE_DEVICES": "1",
            "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
            "CUDA_VERSION": "12.8.1",
        },
    )


def gke() -> MachineBuilder:
    """GKE: the device plugin gives nodes alone; driver libraries come from /usr/local/nvidia of the host."""
    machine = a_machine("gke").with_gpu("a100").with_gpu("a100")
    machine = _only(cuda(machine, "/usr/local/nvidia/lib64", "535.230.02"), 0, count=2)
    machine = machine.without("/dev/dri").without("/dev/nvidia-modeset")
    return in_container(
        machine,
        cgroup="0::/\n",
        environ={
            "KUBERNETES_SERVICE_HOST": "34.118.224.1",
            "LD_LIBRARY_PATH": "/usr/local/nvidia/lib:/usr/local/nvidia/lib64",
            "PATH": "/usr/local/nvidia/bin:/usr/local/cuda/bin:/usr/bin:/bin",
        },
    )


def eks() -> MachineBuilder:
    """EKS: NVIDIA's runtime, the whole node's GPUs, `NVIDIA_VISIBLE_DEVICES` as UUIDs, systemd's control groups."""
    machine = _masked(_eight(), 0, 1, 2, 3).without("/dev/dri").without("/dev/nvidia-modeset")
    host = machine.host()
    listed = [
        host.read_text(f"/proc/driver/nvidia/gpus/{gpu}/information").partition("GPU UUID: \t ")[2].split()[0]
        for gpu in host.list_dir("/proc/driver/nvidia/gpus")
    ]
    return in_container(
        machine,
        cgroup="0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1.slice/cri-containerd-4f1c.scope\n",
        cpus="0-63",
        environ={
            "KUBERNETES_SERVICE_HOST": "10.100.0.1",
            "NVIDIA_VISIBLE_DEVICES": ",".join(listed),
            "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        },
    )


def podman() -> MachineBuilder:
    """Rootless podman with `--device nvidia.com/gpu=all`: nodes belong to nobody and are open to all."""
    machine = cuda(a_machine("desk").with_gpu("rtx4090"))
    for name, major, minor in (
        ("nvidia0", 195, 0),
        ("nvidiactl", 195, 255),
        ("nvidia-modeset", 195, 254),
        ("nvidia-uvm", 511, 0),
        ("nvidia-uvm-tools", 511, 1),
    ):
        machine = machine.with_node(f"/dev/{name}", node(major, minor, uid=_NOBODY, gid=_NOBODY))
    for name, minor in (("card0", 0), ("renderD128", 128)):
        machine = machine.with_node(f"/dev/dri/{name}", node(226, minor, mode=0o660, uid=_NOBODY, gid=_NOBODY))
    machine = machine.with_file("/run/.containerenv", 'engine="podman-5.4.2"\nrootless=1\n')
    return in_container(
        machine,
        uid_map="         0       1000          1\n         1     524288      65536\n",
        shm="64000k",
        environ={"container": "podman", "NVIDIA_VISIBLE_DEVICES": "void"},
        identity=Identity(uid=0, gid=0, groups=(0, _NOBODY), group_names={"root": 0, "nogroup": _NOBODY}),
    )


def apptainer_nv() -> MachineBuilder:
    """`apptainer exec --nv`: the host's /dev, /sys and /proc, its libraries in /.singularity.d/libs, the same user."""
    machine = cuda(a_machine("node").with_gpu("a100").with_gpu("a100").with_running_system(), "/.singularity.d/libs")
    machine = limits(machine, memlock="unlimited").without("/etc/modprobe.d").without("/var/log/dmesg")
    return machine.with_identity(_SOMEBODY).with_environ(
        {
            "APPTAINER_CONTAINER": "/home/me/torch.sif",
            "SINGULARITY_CONTAINER": "/home/me/torch.sif",
            "LD_LIBRARY_PATH": "/.singularity.d/libs",
        }
    )


def apptainer_rocm() -> MachineBuilder:
    """`apptainer exec --rocm` of an image that has ROCm, on a cluster whose nodes are open to all (mode 0666)."""
    machine = rocm(a_machine("node").with_gpu("mi210").with_gpu("mi210").with_running_system())
    machine = limits(machine, memlock="unlimited").without("/etc/modprobe.d").without("/var/log/dmesg")
    machine = machine.with_file("/.singularity.d/libs/libdrm_amdgpu.so.1", b"\x7fELF")
    for number in (0, 1):
        machine = machine.with_node(f"/dev/dri/renderD{128 + number}", node(226, 128 + number, gid=105))
    machine = machine.with_node("/dev/kfd", node(234, 0, gid=105))
    return machine.with_identity(_SOMEBODY).with_environ(
        {"APPTAINER_CONTAINER": "/home/me/rocm.sif", "LD_LIBRARY_PATH": "/opt/rocm/lib:/.singularity.d/libs"}
    )


def incus() -> MachineBuilder:
    """An Incus container with a gpu device, unprivileged: systemd inside, nodes made by Incus, the host's sysfs."""
    machine = cuda(a_machine("ct").with_gpu("rtx4090").with_gpu("rtx4090"))
    machine = _only(machine, 1, count=2)
    machine = machine.with_file("/run/systemd/container", "lxc\n")
    return in_container(
        machine,
        cgroup="0::/user.slice/user-0.slice/session-c1.scope\n",
        shm="32960772k",
        seccomp=2,
        uid_map="         0    1000000 1000000000\n",
        caps="000001ffffffffff",
    )


def devcontainer() -> MachineBuilder:
    """A devcontainer of VS Code: all GPUs, a user without privileges who is not in video or render."""
    machine = _masked(cuda(a_machine("dev").with_gpu("rtx4090")), 0).without("/dev/dri").without("/dev/nvidia-modeset")
    machine = machine.with_file("/.dockerenv", "")
    return in_container(
        machine,
        caps="0000000000000000",
        identity=Identity(uid=1000, gid=1000, groups=(1000,), group_names={"vscode": 1000, "video": 44}),
        environ={
            "NVIDIA_VISIBLE_DEVICES": "all",
            "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
            "REMOTE_CONTAINERS": "true",
        },
    )


def rocm_pod() -> MachineBuilder:
    """A pod with one of two MI210 from AMD's device plugin: /dev/kfd and one render node, root inside."""
    machine = rocm(a_machine("node").with_gpu("mi210").with_gpu("mi210")).without_nodes("amd1")
    return in_container(machine, shm="8388608k", environ={"KUBERNETES_SERVICE_HOST": "10.96.0.1"})


def mig_pod() -> MachineBuilder:
    """A pod with one of an A100's MIG instances, by the device plugin."""
    uuid = "MIG-c5a9c1d0-6f4f-5a33-9f0c-6b1f2d3e4a5b"
    machine = a_machine("node").with_gpu("a100").with_gpu("a100")
    machine = machine.with_mig("nvidia0", MigInstance(uuid=uuid, name="1g.10gb", gi=7, memory_total_bytes=9856 * 2**20))
    machine = cuda(_only(machine, 0, count=2)).without("/dev/dri").without("/dev/nvidia-modeset")
    instance = "/proc/driver/nvidia/capabilities/gpu0/mig/gi7"
    for path, number in ((f"{instance}/access", 66), (f"{instance}/ci0/access", 67)):
        machine = machine.with_file(path, f"DeviceFileMinor: {number}\nDeviceFileMode: 292\nDeviceFileModify: 0\n")
        machine = machine.with_node(f"/dev/nvidia-caps/nvidia-cap{number}", node(238, number, mode=0o444))
    machine = _masked(machine, 0)
    return in_container(
        machine,
        shm="16777216k",
        environ={
            "KUBERNETES_SERVICE_HOST": "10.96.0.1",
            "NVIDIA_VISIBLE_DEVICES": uuid,
            "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        },
    )


PLACES: dict[str, Callable[[], MachineBuilder | ReplayHost]] = {
    "slurm-step": slurm,
    "slurm-step-rocm": slurm_rocm,
    "github-runner": github_runner,
    "docker-device-1": docker,
    "gke-pod": gke,
    "eks-pod": eks,
    "rootless-podman-cdi": podman,
    "apptainer-nv": apptainer_nv,
    "apptainer-rocm": apptainer_rocm,
    "incus-gpu": incus,
    "devcontainer": devcontainer,
    "rocm-pod": rocm_pod,
    "mig-pod": mig_pod,
}

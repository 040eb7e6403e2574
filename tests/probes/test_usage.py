"""Who uses each GPU: fdinfo as kernels print it, KFD, and what a vendor's library told."""

from __future__ import annotations

import errno
from dataclasses import replace

from pytest_gpucoexist.model.machine import Gpu, GpuProcess, KfdNode, Machine
from pytest_gpucoexist.model.readings import Fact
from pytest_gpucoexist.probes import usage
from pytest_gpucoexist.probes.fdinfo import parse_fdinfo
from tests.probes.memory_host import MemoryHost

# A kernel 6.1: `drm-memory-*` only.
AMDGPU_OLD = """\
pos:\t0
flags:\t02100002
mnt_id:\t24
ino:\t613
drm-driver:\tamdgpu
drm-client-id:\t{client}
drm-pdev:\t0000:03:00.0
drm-memory-vram:\t{size} KiB
drm-memory-gtt: \t2048 KiB
drm-memory-cpu: \t0 KiB
drm-engine-gfx:\t1183921 ns
"""
# A kernel 6.13: the same under two names.
AMDGPU_NEW = """\
drm-driver:\tamdgpu
drm-client-id:\t32
drm-pdev:\t0000:03:00.0
pasid:\t32790
drm-total-cpu:\t0
drm-total-gtt:\t4 MiB
drm-total-vram:\t123456 KiB
drm-shared-vram:\t0
drm-resident-vram:\t98304 KiB
drm-purgeable-vram:\t0
drm-memory-vram:\t98304 KiB
amd-evicted-vram:\t0 KiB
amd-requested-vram:\t123456 KiB
"""
# https://docs.kernel.org/gpu/xe/xe-drm-usage-stats.html
XE = """\
drm-driver:     xe
drm-client-id:  3
drm-pdev:       0000:03:00.0
drm-total-system:       0
drm-resident-gtt:       192 KiB
drm-total-vram0:        23992 KiB
drm-shared-vram0:       16 MiB
drm-active-vram0:       0
drm-resident-vram0:     23992 KiB
drm-total-stolen:       0
drm-cycles-rcs: 28257900
"""
I915 = """\
drm-driver:\ti915
drm-client-id:\t7
drm-pdev:\t0000:00:02.0
drm-total-system0:\t8 MiB
drm-resident-system0:\t8 MiB
drm-engine-render:\t9288864723 ns
drm-engine-capacity-video:\t2
"""
NO_GPU = "pos:\t0\nflags:\t02004002\nmnt_id:\t15\neventfd-count:                0\n"

AMD = Gpu(id="amd0", pci_address="0000:03:00.0", vendor="amd", kind="discrete", driver="amdgpu")
NVIDIA = Gpu(id="nvidia0", pci_address="0000:41:00.0", vendor="nvidia", kind="discrete", driver="nvidia")


def a_host(**fdinfo: str) -> MemoryHost:
    """Hold PID 1 and, for `pid_fd="text"`, descriptors of DRM devices."""
    host = MemoryHost(
        files={"/proc/1/fdinfo/0": NO_GPU, "/proc/1/comm": "systemd\n", "/proc/meminfo": "MemTotal: 1 kB"}
    )
    for key, text in fdinfo.items():
        pid, number = key.removeprefix("p").split("_")
        host.files[f"/proc/{pid}/fdinfo/{number}"] = text
        host.files[f"/proc/{pid}/comm"] = f"python{pid}\n"
        host.links[f"/proc/{pid}/fd/{number}"] = "/dev/dri/renderD128"
    return host


def used(host: MemoryHost, *gpus: Gpu) -> tuple[Gpu, ...]:
    return usage.processes(host, Machine(name="m", gpus=gpus)).gpus


def old(client: int = 7, size: int = 123) -> str:
    return AMDGPU_OLD.format(client=client, size=size)


def test_memory_of_an_older_kernel() -> None:
    client = parse_fdinfo(old())
    assert client is not None
    assert (client.driver, client.client_id, client.pci_address) == ("amdgpu", "7", "0000:03:00.0")
    assert client.memory_bytes == 123 * 1024


def test_two_names_of_one_quantity_count_once() -> None:
    client = parse_fdinfo(AMDGPU_NEW)
    assert client is not None
    assert client.memory_bytes == 98304 * 1024


def test_regions_of_xe() -> None:
    client = parse_fdinfo(XE)
    assert client is not None
    assert client.memory_bytes == 23992 * 1024


def test_an_integrated_gpu_has_no_local_memory() -> None:
    client = parse_fdinfo(I915)
    assert client is not None
    assert client.memory_bytes is None


def test_only_allocated_is_better_than_nothing() -> None:
    client = parse_fdinfo("drm-driver: i915\ndrm-total-local0: 4 MiB\ndrm-total-local1: 100\n")
    assert client is not None
    assert client.memory_bytes == (4 << 20) + 100
    assert client.pci_address is None


def test_other_descriptors_and_garbage_are_no_clients() -> None:
    assert parse_fdinfo(NO_GPU) is None
    assert parse_fdinfo("") is None
    garbage = parse_fdinfo("drm-driver: xe\ndrm-pdev: what\ndrm-memory-vram: many KiB\n")
    assert garbage is not None
    assert (garbage.pci_address, garbage.memory_bytes) == (None, None)


def test_processes_of_a_gpu() -> None:
    (gpu,) = used(a_host(p42_5=old(), p43_6=AMDGPU_NEW), AMD)
    assert gpu.processes == (
        GpuProcess(pid=42, source="drm fdinfo", memory_bytes=123 * 1024, name="python42"),
        GpuProcess(pid=43, source="drm fdinfo", memory_bytes=98304 * 1024, name="python43"),
    )
    assert gpu.facts["processes"] == Fact(source="drm fdinfo")


def test_a_duplicated_descriptor_counts_once_and_another_client_is_added() -> None:
    (gpu,) = used(a_host(p42_5=old(7, 100), p42_6=old(7, 100), p42_7=old(8, 50)), AMD)
    assert gpu.processes is not None
    assert [process.memory_bytes for process in gpu.processes] == [150 * 1024]


def test_clients_without_an_id_count_each() -> None:
    text = old(7, 100).replace("drm-client-id:\t7\n", "")
    (gpu,) = used(a_host(p42_5=text, p42_6=text), AMD)
    assert gpu.processes is not None
    assert gpu.processes[0].memory_bytes == 200 * 1024


def test_a_client_of_unknown_memory_is_still_a_user() -> None:
    host = a_host(p42_5="drm-driver:\tamdgpu\ndrm-client-id:\t1\ndrm-pdev:\t0000:03:00.0\n", p42_6=old(2, 10))
    (gpu,) = used(host, AMD)
    assert gpu.processes is not None
    assert gpu.processes[0].memory_bytes == 10 * 1024
    del host.files["/proc/42/fdinfo/6"]
    del host.links["/proc/42/fd/6"]
    (gpu,) = used(host, AMD)
    assert gpu.processes is not None
    assert gpu.processes[0].memory_bytes is None


def test_only_descriptors_of_gpus_are_read() -> None:
    host = a_host(p42_5=old())
    host.files["/proc/42/fdinfo/3"] = NO_GPU
    host.links["/proc/42/fd/3"] = "socket:[12345]"
    used(host, AMD)
    assert "/proc/42/fdinfo/3" not in host.read


def test_nobody_uses_it() -> None:
    (gpu,) = used(a_host(), AMD)
    assert gpu.processes == ()
    assert gpu.facts["processes"].status == "ok"


def test_other_users_are_unseen_not_gone() -> None:
    host = a_host(p42_5=old())
    host.errors["/proc/1/fdinfo"] = errno.EACCES
    host.errors["/proc/77/fdinfo"] = errno.EACCES
    (gpu,) = used(host, AMD)
    assert gpu.processes is not None
    assert [process.pid for process in gpu.processes] == [42]
    assert gpu.facts["processes"].detail == "2 processes could not be looked into (another user's, or protected)"
    del host.errors["/proc/77/fdinfo"]
    (gpu,) = used(host, AMD)
    assert (gpu.facts["processes"].detail or "").startswith("1 process could not")


def test_a_process_that_ends_while_we_look() -> None:
    host = a_host(p42_5=old())
    host.errors["/proc/43/fdinfo"] = errno.ENOENT
    (gpu,) = used(host, AMD)
    assert gpu.processes is not None
    assert [process.pid for process in gpu.processes] == [42]
    assert gpu.facts["processes"].detail is None


def test_a_proc_that_hides_others() -> None:
    host = a_host(p42_5=old())
    for path in [path for path in host.files if path.startswith("/proc/1/")]:
        del host.files[path]
    (gpu,) = used(host, AMD)
    assert "hidepid" in (gpu.facts["processes"].detail or "")


def test_a_proc_that_cannot_be_read() -> None:
    host = MemoryHost(errors={"/proc": errno.EACCES})
    (gpu,) = used(host, AMD)
    assert gpu.processes is None
    assert gpu.facts["processes"] == Fact(source="/proc", status="denied", detail="/proc cannot be read")


def test_a_driver_that_tells_nothing() -> None:
    (gpu,) = used(a_host(), NVIDIA)
    assert gpu.processes is None
    assert gpu.facts["processes"].status == "unsupported"
    assert "driver nvidia does not tell" in (gpu.facts["processes"].detail or "")


def test_a_pid_of_another_namespace_is_unknown_not_gone() -> None:
    told = replace(
        NVIDIA,
        processes=(
            GpuProcess(pid=42, source="nvml", memory_bytes=5),
            GpuProcess(pid=991234, source="nvml", memory_bytes=7, name="python"),
        ),
        facts={"processes": Fact(source="nvml")},
    )
    (gpu,) = used(a_host(p42_5=old()), told)
    assert gpu.processes == (
        GpuProcess(pid=42, source="nvml", memory_bytes=5, name="python42", visible=True),
        GpuProcess(pid=991234, source="nvml", memory_bytes=7, name="python", visible=False),
    )
    assert gpu.facts["processes"].source == "nvml"


def test_the_library_knows_better_and_fdinfo_fills_the_gaps() -> None:
    told = replace(
        AMD, processes=(GpuProcess(pid=42, source="amdsmi", memory_bytes=5), GpuProcess(pid=43, source="amdsmi"))
    )
    (gpu,) = used(a_host(p42_5=old(), p43_5=old(9, 1), p44_5=old(10, 2)), told)
    assert gpu.processes is not None
    assert [(process.pid, process.source, process.memory_bytes) for process in gpu.processes] == [
        (42, "amdsmi", 5),
        (43, "amdsmi", 1024),
        (44, "drm fdinfo", 2048),
    ]


def test_kfd_counts_what_rocm_allocated() -> None:
    host = a_host(p42_5=old(7, 100))
    host.files["/sys/class/kfd/kfd/proc/42/vram_4711"] = "1073741824\n"
    host.files["/sys/class/kfd/kfd/proc/45/vram_4711"] = "4096\n"
    host.files["/sys/class/kfd/kfd/proc/45/vram_4712"] = "0\n"
    host.files["/sys/class/kfd/kfd/proc/46/pasid"] = "32791\n"
    host.files["/sys/class/kfd/kfd/proc/47/vram_4711"] = "what\n"
    first = replace(AMD, kfd=KfdNode(node=1, gpu_id=4711))
    second = replace(AMD, id="amd1", pci_address="0000:83:00.0", kfd=KfdNode(node=2, gpu_id=4712))
    one, two = used(host, first, second)
    assert one.processes == (
        GpuProcess(pid=42, source="drm fdinfo", memory_bytes=1073741824, name="python42"),
        GpuProcess(pid=45, source="kfd", memory_bytes=4096, visible=False),
    )
    assert two.processes == ()


def test_kfd_that_is_not_there() -> None:
    (gpu,) = used(a_host(), replace(AMD, kfd=KfdNode(node=1, gpu_id=4711)))
    assert gpu.processes == ()


def test_a_partition_is_not_given_the_whole_functions_clients() -> None:
    part = replace(AMD, partition="3", kfd=KfdNode(node=4, gpu_id=99))
    host = a_host(p42_5=old())
    host.files["/sys/class/kfd/kfd/proc/42/vram_99"] = "512\n"
    (gpu,) = used(host, part)
    assert gpu.processes == (GpuProcess(pid=42, source="kfd", memory_bytes=512, name="python42"),)

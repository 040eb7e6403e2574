"""What this process may use: nodes, groups, containers, NVML's word, and a reason for each "no"."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from pytest_gpucoexist.host.base import Identity, Node
from pytest_gpucoexist.model.machine import DrmNodes, Gpu, KfdNode, Machine, Usable
from pytest_gpucoexist.model.readings import Fact
from pytest_gpucoexist.probes import access
from tests.probes.memory_host import RENDER_USER, ROOT, USER, MemoryHost, a_node

NVIDIA = Gpu(id="nvidia0", pci_address="0000:41:00.0", vendor="nvidia", kind="discrete", driver="nvidia")
AMD = Gpu(
    id="amd0",
    pci_address="0000:03:00.0",
    vendor="amd",
    kind="discrete",
    driver="amdgpu",
    drm=DrmNodes(card="card0", render="renderD128"),
    kfd=KfdNode(node=1, gpu_id=4711, render_minor=128),
)
AMD2 = replace(
    AMD,
    id="amd1",
    pci_address="0000:83:00.0",
    drm=DrmNodes(card="card1", render="renderD129"),
    kfd=KfdNode(node=2, gpu_id=4712, render_minor=129),
)
INTEL = Gpu(
    id="intel0",
    pci_address="0000:00:02.0",
    vendor="intel",
    kind="integrated",
    driver="i915",
    drm=DrmNodes(card="card2", render="renderD130"),
)
INFORMATION = "Model: \t\t NVIDIA L4\nDevice Minor: \t 0\nGPU Excluded:\t No\n"


def a_host(me: Identity = RENDER_USER) -> MemoryHost:
    """Stand for a workstation where everything is as it should be."""
    return MemoryHost(
        files={
            "/proc/driver/nvidia/gpus/0000:41:00.0/information": INFORMATION,
            "/sys/class/kfd/kfd/topology/nodes/0/gpu_id": "0",
            "/sys/class/kfd/kfd/topology/nodes/1/gpu_id": "4711",
            "/proc/self/cgroup": "0::/user.slice/user-1000.slice/session-2.scope\n",
            "/proc/1/cgroup": "0::/init.scope\n",
        },
        nodes={
            "/dev/nvidiactl": a_node(0o666, gid=0),
            "/dev/nvidia0": a_node(0o666, gid=0),
            "/dev/nvidia-uvm": a_node(0o666, gid=0),
            "/dev/kfd": a_node(),
            "/dev/dri/renderD128": a_node(),
            "/dev/dri/renderD129": a_node(),
            "/dev/dri/renderD130": a_node(),
        },
        me=me,
    )


def judged(host: MemoryHost, *gpus: Gpu, nvml: Fact | None = None) -> tuple[Gpu, ...]:
    return access.judge(host, Machine(name="m", gpus=gpus), nvml=nvml).gpus


def why(gpu: Gpu, runtime: str) -> str:
    return gpu.facts[f"usable.{runtime}"].detail or ""


def in_docker(host: MemoryHost) -> MemoryHost:
    host.files["/.dockerenv"] = ""
    return host


class TestCuda:
    def test_a_gpu_with_its_nodes(self) -> None:
        (gpu,) = judged(a_host(), NVIDIA)
        assert gpu.usable == Usable(cuda=True, rocm=False)
        assert gpu.granted
        assert "NVML was not asked" in why(gpu, "cuda")
        assert "/dev/nvidia0" in why(gpu, "cuda")
        assert why(gpu, "rocm") == "not an AMD GPU"

    @pytest.mark.parametrize("node", ["/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm"])
    def test_a_missing_node_outside_of_a_container(self, node: str) -> None:
        host = a_host()
        del host.nodes[node]
        (gpu,) = judged(host, NVIDIA)
        assert not gpu.usable.cuda
        assert gpu.granted
        assert why(gpu, "cuda") == f"no {node}: create it with `nvidia-modprobe -u -c 0`"
        assert gpu.facts["usable.cuda"].status == "absent"

    def test_a_missing_node_in_a_container_is_not_granted(self) -> None:
        host = in_docker(a_host())
        del host.nodes["/dev/nvidia0"]
        (gpu,) = judged(host, NVIDIA)
        assert not gpu.granted
        assert why(gpu, "cuda") == "not granted here: no /dev/nvidia0 in this container (/.dockerenv)"
        assert gpu.facts["granted"].status == "denied"

    def test_a_gpu_that_the_nvidia_container_runtime_left_out(self) -> None:
        other = replace(NVIDIA, id="nvidia1", pci_address="0000:42:00.0")
        first, second = judged(in_docker(a_host()), NVIDIA, other)
        assert first.granted
        assert first.usable.cuda
        assert not second.granted
        assert "was given other GPUs" in why(second, "cuda")

    def test_a_gpu_that_the_driver_failed_to_initialise(self) -> None:
        (gpu,) = judged(a_host(), replace(NVIDIA, pci_address="0000:42:00.0"))
        assert gpu.granted
        assert why(gpu, "cuda") == "the nvidia driver does not list 0000:42:00.0: it failed to initialise it"

    def test_permission_names_the_group(self) -> None:
        host = a_host(USER)
        host.nodes["/dev/nvidia0"] = a_node(0o660, gid=44)
        (gpu,) = judged(host, NVIDIA)
        assert gpu.granted
        assert why(gpu, "cuda") == "user not in group video (gid 44), which /dev/nvidia0 belongs to"
        assert gpu.facts["usable.cuda"].status == "denied"

    @pytest.mark.parametrize(
        ("driver", "words"),
        [
            ("nouveau", "bound to nouveau, not nvidia: blacklist nouveau"),
            ("nova_core", "bound to nova_core, not nvidia"),
            ("vfio-pci", "bound to vfio-pci, not nvidia: it is passed to a virtual machine"),
            ("strange", "bound to strange, not nvidia"),
            (None, "no driver bound"),
        ],
    )
    def test_another_driver(self, driver: str | None, words: str) -> None:
        (gpu,) = judged(a_host(), replace(NVIDIA, pci_address="0000:99:00.0", driver=driver))
        assert not gpu.usable.cuda
        assert words in why(gpu, "cuda")

    def test_the_drivers_own_list_stands_for_a_link_that_was_not_recorded(self) -> None:
        (gpu,) = judged(a_host(), replace(NVIDIA, driver=None))
        assert gpu.usable.cuda

    def test_an_excluded_gpu(self) -> None:
        host = a_host()
        host.files["/proc/driver/nvidia/gpus/0000:41:00.0/information"] = INFORMATION.replace("No", "Yes")
        (gpu,) = judged(host, NVIDIA)
        assert "NVreg_ExcludedGpus" in why(gpu, "cuda")

    def test_a_sleeping_gpu_is_judged_by_the_common_nodes(self) -> None:
        host = a_host()
        host.files["/sys/bus/pci/devices/0000:41:00.0/power/runtime_status"] = "suspended"
        (gpu,) = judged(host, replace(NVIDIA, runtime_status="suspended"))
        assert gpu.usable.cuda
        assert "/proc/driver/nvidia/gpus/0000:41:00.0/information" not in host.read

    def test_a_lost_gpu_by_its_configuration_space(self) -> None:
        host = a_host()
        host.files["/sys/bus/pci/devices/0000:41:00.0/config"] = b"\xff" * 64
        (gpu,) = judged(host, NVIDIA)
        assert "fell off the bus" in why(gpu, "cuda")
        assert gpu.facts["usable.cuda"].status == "broken"

    def test_a_lost_gpu_by_its_link(self) -> None:
        host = a_host()
        host.files["/sys/bus/pci/devices/0000:03:00.0/config"] = b"\x02\x10\x4c\x74"
        host.files["/sys/bus/pci/devices/0000:03:00.0/current_link_width"] = "63\n"
        host.files["/sys/bus/pci/devices/0000:03:00.0/current_link_speed"] = "Unknown\n"
        (gpu,) = judged(host, AMD)
        assert why(gpu, "rocm").startswith("fell off the bus: its link reads Unknown x63")

    def test_a_link_that_works_is_no_loss(self) -> None:
        host = a_host()
        host.files["/sys/bus/pci/devices/0000:03:00.0/current_link_width"] = "16\n"
        host.files["/sys/bus/pci/devices/0000:03:00.0/current_link_speed"] = "16.0 GT/s PCIe\n"
        (gpu,) = judged(host, AMD)
        assert gpu.usable.rocm

    def test_without_dev_it_is_assumed_and_says_so(self) -> None:
        host = MemoryHost(lacks=("/dev",))
        (gpu,) = judged(host, NVIDIA)
        assert gpu.usable.cuda
        assert why(gpu, "cuda").startswith("assumed: the nvidia driver is bound; the recording has no /dev")
        assert gpu.facts["granted"].detail == "assumed: the recording has no /dev"

    def test_a_node_of_which_nothing_is_recorded_decides_nothing(self) -> None:
        host = a_host()
        host.open_errors["/dev/nvidia-uvm"] = errno.ENODATA
        assert judged(host, NVIDIA)[0].usable.cuda

    def test_a_node_without_a_driver_behind_it(self) -> None:
        host = a_host()
        host.open_errors["/dev/nvidia0"] = errno.EIO
        (gpu,) = judged(host, NVIDIA)
        assert why(gpu, "cuda") == "/dev/nvidia0 cannot be opened (EIO): no driver answers behind it"

    def test_a_mig_instance_needs_its_capability_nodes(self) -> None:
        host = in_docker(a_host())
        folder = "/proc/driver/nvidia/capabilities/gpu0/mig/gi1"
        host.files[f"{folder}/access"] = "DeviceFileMinor: 12\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
        host.files[f"{folder}/ci0/access"] = "DeviceFileMinor: 13\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
        host.nodes["/dev/nvidia-caps/nvidia-cap12"] = a_node(0o666)
        instance = replace(NVIDIA, partition="mig1.0", uuid="MIG-1")
        (gpu,) = judged(host, instance)
        assert "no /dev/nvidia-caps/nvidia-cap13" in why(gpu, "cuda")
        assert not gpu.granted
        host.nodes["/dev/nvidia-caps/nvidia-cap13"] = a_node(0o666)
        assert judged(host, instance)[0].usable.cuda
        assert judged(host, replace(instance, partition="whole"))[0].usable.cuda

    def test_a_capability_without_a_minor_asks_for_no_node(self) -> None:
        host = a_host()
        host.files["/proc/driver/nvidia/capabilities/gpu0/mig/gi1/access"] = "what\n"
        assert judged(host, replace(NVIDIA, partition="mig1.0"))[0].usable.cuda

    def test_a_gpu_in_mig_mode_is_not_usable_as_a_whole(self) -> None:
        (gpu,) = judged(a_host(), replace(NVIDIA, features={"mig": True}))
        assert "its instances" in why(gpu, "cuda")


class TestNvml:
    def test_it_answers_for_this_gpu(self) -> None:
        (gpu,) = judged(a_host(), replace(NVIDIA, facts={"arch": Fact(source="nvml")}))
        assert gpu.usable.cuda
        assert gpu.facts["usable.cuda"].source == "nvml"

    def test_it_is_not_installed(self) -> None:
        said = Fact(source="nvml", status="absent", detail="NVML is not installed: libnvidia-ml.so.1")
        (gpu,) = judged(a_host(), replace(NVIDIA, facts={"arch": said}))
        assert gpu.usable.cuda
        assert "NVML is not there to ask" in why(gpu, "cuda")

    @pytest.mark.parametrize("status", ["broken", "unsupported", "denied"])
    def test_it_fails(self, status: str) -> None:
        said = Fact(source="nvml", status=status, detail="driver/library version mismatch")  # type: ignore[arg-type]
        (gpu,) = judged(a_host(), NVIDIA, nvml=said)
        assert not gpu.usable.cuda
        assert why(gpu, "cuda") == "NVML does not answer for this GPU: driver/library version mismatch"

    def test_it_lists_others(self) -> None:
        said = Fact(source="nvml", status="absent", detail="nvml lists 3 GPUs and not this one")
        (gpu,) = judged(a_host(), replace(NVIDIA, facts={"arch": said}), nvml=Fact(source="nvml"))
        assert not gpu.usable.cuda
        assert "lists 3 GPUs" in why(gpu, "cuda")


class TestRocm:
    def test_a_gpu_with_its_nodes(self) -> None:
        (gpu,) = judged(a_host(), AMD)
        assert gpu.usable == Usable(cuda=False, rocm=True)
        assert why(gpu, "cuda") == "not an NVIDIA GPU"
        assert "/dev/kfd and /dev/dri/renderD128" in why(gpu, "rocm")

    def test_no_group_names_the_group(self) -> None:
        (gpu,) = judged(a_host(USER), AMD)
        assert not gpu.usable.rocm
        assert gpu.granted
        assert why(gpu, "rocm") == "user not in group render (gid 105), which /dev/kfd belongs to"

    def test_a_group_without_a_name(self) -> None:
        (gpu,) = judged(a_host(replace(USER, group_names={})), AMD)
        assert "user not in group with gid 105" in why(gpu, "rocm")

    def test_one_refused_render_node_loses_every_amd_gpu(self) -> None:
        host = a_host()
        host.nodes["/dev/dri/renderD129"] = a_node(gid=44)
        first, second = judged(host, AMD, AMD2)
        assert not first.usable.rocm
        assert not second.usable.rocm
        assert why(first, "rocm") == (
            "ROCm loses every AMD GPU when one render node is refused: 0000:83:00.0: "
            "user not in group video (gid 44), which /dev/dri/renderD129 belongs to"
        )
        assert why(second, "rocm") == "user not in group video (gid 44), which /dev/dri/renderD129 belongs to"

    def test_a_missing_render_node_loses_only_its_gpu(self) -> None:
        host = in_docker(a_host())
        del host.nodes["/dev/dri/renderD129"]
        first, second = judged(host, AMD, AMD2)
        assert first.usable.rocm
        assert not second.granted
        assert why(second, "rocm") == "not granted here: no /dev/dri/renderD129 in this container (/.dockerenv)"

    def test_a_missing_render_node_in_a_sandbox(self) -> None:
        host = a_host()
        del host.nodes["/dev/dri/renderD128"]
        (gpu,) = judged(host, AMD)
        assert not gpu.granted
        assert "sandboxed /dev" in why(gpu, "rocm")

    def test_a_device_cgroup_refuses_what_the_mode_allows(self) -> None:
        host = in_docker(a_host(ROOT))
        host.open_errors["/dev/dri/renderD129"] = errno.EPERM
        first, second = judged(host, AMD, AMD2)
        assert first.usable.rocm
        assert not second.granted
        assert "although its mode allows it (device cgroup" in why(second, "rocm")

    def test_refused_by_an_acl_is_not_said_to_lose_the_others(self) -> None:
        host = a_host()
        host.open_errors["/dev/dri/renderD129"] = errno.EACCES
        first, _second = judged(host, AMD, AMD2)
        assert first.usable.rocm

    def test_no_kfd_in_a_container(self) -> None:
        host = in_docker(a_host())
        del host.nodes["/dev/kfd"]
        (gpu,) = judged(host, AMD)
        assert gpu.granted
        assert why(gpu, "rocm") == "no /dev/kfd in this container (/.dockerenv): pass it in (--device /dev/kfd)"

    def test_no_kfd_at_all(self) -> None:
        host = a_host()
        del host.nodes["/dev/kfd"]
        (gpu,) = judged(host, AMD)
        assert "CONFIG_HSA_AMD" in why(gpu, "rocm")

    def test_no_kfd_node(self) -> None:
        (gpu,) = judged(a_host(), replace(AMD, kfd=None))
        assert "PCIe atomics" in why(gpu, "rocm")

    def test_kfd_hides_what_the_cgroup_denies(self) -> None:
        host = in_docker(a_host())
        host.errors["/sys/class/kfd/kfd/topology/nodes/2/gpu_id"] = errno.EPERM
        (gpu,) = judged(host, replace(AMD, kfd=None))
        assert not gpu.granted
        assert "KFD hides node 2 (EPERM: device cgroup)" in why(gpu, "rocm")

    def test_a_recording_without_the_topology(self) -> None:
        host = MemoryHost(lacks=("/dev", "/sys/class/kfd"))
        (gpu,) = judged(host, replace(AMD, kfd=None))
        assert "the recording has no KFD topology" in why(gpu, "rocm")

    def test_a_recording_of_the_topology_alone_implies_the_driver(self) -> None:
        host = MemoryHost(lacks=("/dev",))
        (gpu,) = judged(host, replace(AMD, driver=None, drm=None))
        assert gpu.usable.rocm
        assert why(gpu, "rocm").startswith("assumed: amdgpu is bound")

    def test_no_topology_folder_at_all(self) -> None:
        host = a_host()
        host.files = {}
        (gpu,) = judged(host, replace(AMD, kfd=None))
        assert "no KFD node" in why(gpu, "rocm")

    def test_a_node_of_which_nothing_is_recorded_decides_nothing(self) -> None:
        host = a_host()
        host.open_errors.update({"/dev/kfd": errno.ENODATA, "/dev/dri/renderD128": errno.ENODATA})
        assert judged(host, AMD)[0].usable.rocm

    def test_without_a_known_render_node_the_kfd_decides(self) -> None:
        bare = replace(AMD, drm=None, kfd=KfdNode(node=1))
        assert why(judged(a_host(), bare)[0], "rocm").endswith("and /dev/kfd can be opened")

    def test_the_drm_node_stands_in_for_kfds(self) -> None:
        host = a_host()
        del host.nodes["/dev/dri/renderD128"]
        assert not judged(host, replace(AMD, kfd=KfdNode(node=1)))[0].granted

    @pytest.mark.parametrize(
        ("driver", "words"),
        [("radeon", "bound to radeon, not amdgpu: radeon has no compute"), ("vfio-pci", "passed to a virtual machine")],
    )
    def test_another_driver(self, driver: str, words: str) -> None:
        assert words in why(judged(a_host(), replace(AMD, driver=driver))[0], "rocm")

    def test_unbound(self) -> None:
        assert "no driver bound" in why(judged(a_host(), replace(AMD, driver=None, kfd=None))[0], "rocm")


class TestOwners:
    def test_an_unmapped_user_namespace(self) -> None:
        host = a_host(USER)
        host.nodes["/dev/kfd"] = a_node(uid=65534, gid=65534)
        (gpu,) = judged(host, AMD)
        assert "this user namespace does not map (65534)" in why(gpu, "rocm")
        assert "keep-groups" in why(gpu, "rocm")

    def test_a_node_of_root_alone(self) -> None:
        host = a_host(USER)
        host.nodes["/dev/kfd"] = a_node(0o600)
        assert why(judged(host, AMD)[0], "rocm") == "/dev/kfd has mode 0600 and owner uid 0; this process is uid 1000"

    def test_the_owner_class_decides_even_against_the_group(self) -> None:
        host = a_host()
        host.nodes["/dev/kfd"] = a_node(0o060, uid=1000)
        assert "mode 0060" in why(judged(host, AMD)[0], "rocm")

    def test_everybody_may_by_the_mode_and_still_may_not(self) -> None:
        host = a_host(USER)
        host.nodes["/dev/kfd"] = a_node(0o666)
        host.open_errors["/dev/kfd"] = errno.EACCES
        assert "although its mode allows it" in why(judged(host, AMD)[0], "rocm")

    def test_the_own_group_may_by_the_mode_and_still_may_not(self) -> None:
        host = a_host()
        host.open_errors["/dev/kfd"] = errno.EACCES
        assert "although its mode allows it" in why(judged(host, AMD)[0], "rocm")

    def test_a_refused_node_that_cannot_be_looked_at(self) -> None:
        host = a_host()
        host.open_errors["/dev/kfd"] = errno.EACCES
        del host.nodes["/dev/kfd"]
        assert why(judged(host, AMD)[0], "rocm") == "no permission to open /dev/kfd"


class TestOthers:
    @pytest.mark.parametrize("kind", ["bmc", "virtual"])
    def test_what_is_no_compute_device_is_never_usable(self, kind: str) -> None:
        for vendor in ("nvidia", "amd", "other"):
            gpu = Gpu(id="x", pci_address="0000:03:00.0", vendor=vendor, kind=kind, driver="nvidia")  # type: ignore[arg-type]
            (seen,) = judged(a_host(), gpu)
            assert seen.usable == Usable()
            assert why(seen, "cuda")
            assert why(seen, "rocm")

    def test_a_withheld_intel_gpu_is_not_granted(self) -> None:
        host = in_docker(a_host())
        assert judged(host, INTEL)[0].granted
        del host.nodes["/dev/dri/renderD130"]
        (gpu,) = judged(host, INTEL)
        assert not gpu.granted
        assert gpu.facts["granted"].detail == "not granted here: no /dev/dri/renderD130"

    def test_an_intel_gpu_behind_a_group_is_granted(self) -> None:
        assert judged(a_host(USER), INTEL)[0].granted
        assert judged(a_host(), replace(INTEL, drm=None))[0].granted


class TestPlatforms:
    WSL = Gpu(id="nvidia0", uuid="dxg0", vendor="nvidia", kind="unknown", driver="dxgkrnl")
    JETSON = Gpu(id="nvidia0", uuid="tegra0", vendor="nvidia", kind="integrated", driver="gk20a")

    def test_wsl(self) -> None:
        host = MemoryHost(nodes={"/dev/dxg": a_node(0o666)}, files={"/usr/lib/wsl/lib/libcuda.so.1": ""}, me=USER)
        (gpu,) = judged(host, self.WSL)
        assert gpu.usable.cuda
        assert "/dev/dxg can be opened" in why(gpu, "cuda")

    def test_wsl_without_a_windows_driver(self) -> None:
        host = MemoryHost(nodes={"/dev/dxg": a_node(0o666)})
        assert "install NVIDIA's driver in Windows" in why(judged(host, self.WSL)[0], "cuda")

    def test_wsl_in_a_container_without_the_node(self) -> None:
        (gpu,) = judged(in_docker(MemoryHost()), self.WSL)
        assert not gpu.granted

    def test_wsl_has_no_rocm_node(self) -> None:
        (gpu,) = judged(MemoryHost(), replace(self.WSL, vendor="amd"))
        assert "WSL2 has no KFD" in why(gpu, "rocm")

    def test_a_jetson(self) -> None:
        host = MemoryHost(
            nodes={"/dev/nvmap": a_node(gid=44), "/dev/nvhost-ctrl-gpu": a_node(gid=44)},
            me=Identity(uid=1000, gid=1000, groups=(1000, 44), group_names={"video": 44}),
        )
        assert judged(host, self.JETSON)[0].usable.cuda
        host.me = USER
        assert (
            why(judged(host, self.JETSON)[0], "cuda") == "user not in group video (gid 44), which /dev/nvmap belongs to"
        )
        del host.nodes["/dev/nvmap"]
        assert why(judged(host, self.JETSON)[0], "cuda") == "no /dev/nvmap"


@pytest.mark.parametrize(
    ("files", "environ"),
    [
        ({"/run/.containerenv": 'engine="podman-4.3.1"\n'}, {}),
        (
            {
                "/proc/self/cgroup": "0::/system.slice/docker-0f3c.scope\n",
                "/proc/1/cgroup": "11:devices:/docker/0f3c\n",
            },
            {},
        ),
        ({"/proc/1/cgroup": "0::/kubepods.slice/kubepods-besteffort.slice\n"}, {}),
        ({}, {"container": "lxc"}),
        ({}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}),
    ],
)
def test_signs_of_a_container(files: dict[str, str], environ: dict[str, str]) -> None:
    host = a_host()
    host.files.update(files)
    host.environ = environ
    del host.nodes["/dev/nvidia0"]
    (gpu,) = judged(host, NVIDIA)
    assert not gpu.granted


def test_a_node_kind_of_a_file_is_not_needed() -> None:
    """Recordings may keep nodes as plain files; the mode decides."""
    host = a_host(USER)
    host.nodes["/dev/kfd"] = Node(kind="file", mode=0o666)
    host.nodes["/dev/dri/renderD128"] = Node(kind="file", mode=0o666)
    assert judged(host, AMD)[0].usable.rocm

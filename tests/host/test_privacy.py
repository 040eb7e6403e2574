"""What people named themselves does not leave the machine: folders, packages, groups, jobs, open files.

Every secret of the machine here begins with `zq`, a syllable that nothing else has.
"""

from __future__ import annotations

import dataclasses
import json
import tarfile
from typing import TYPE_CHECKING

import pytest

from pytest_gpucoexist.host import open_recording
from pytest_gpucoexist.host.anonymise import anonymised
from pytest_gpucoexist.host.base import Identity
from pytest_gpucoexist.host.caller import recorded_variables
from pytest_gpucoexist.host.manifest import Manifest
from pytest_gpucoexist.host.places import renamed
from pytest_gpucoexist.host.recording import RecordingHost, write_recording
from pytest_gpucoexist.host.replay import ReplayHost
from pytest_gpucoexist.host.tree import MemoryTree
from pytest_gpucoexist.probes import discover
from pytest_gpucoexist.testing import demo_machine

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pytest_gpucoexist.model.machine import Machine

SITE = "/home/zqalice/zqthesis/.venv/lib/python3.11/site-packages"
ENVIRON = {
    "HOME": "/home/zqalice",
    "USER": "zqalice",
    "LD_LIBRARY_PATH": "/data/zqclient/lib:/home/zqalice/build/lib",
    "CUDA_HOME": "/data/zqclient/cuda",
    "JAX_COORDINATOR_ADDRESS": "zqnode7.corp.example:1234",
    "NCCL_COMM_ID": "10.20.30.40:999",
    "NCCL_SOCKET_IFNAME": "zqnic",
    "GPU_SERVER_URL": "https://zqcustomer.example/x",
    "NVIDIA_WORKSPACE": "/data/zqclient/ws",
    "SLURM_JOB_GPUS": "0",
    "SLURM_JOB_NAME": "zqjob",
    "SLURM_JOB_ACCOUNT": "zqaccount",
    "XDG_CONFIG_HOME": "/data/zqclient/cfg",
    "XDG_SESSION_DESKTOP": "zqdesk",
    "PYTEST_GPU_MACHINE": "/data/zqclient/m.tar.gz",
    "XLA_FLAGS": "--xla_dump_to=/data/zqclient/dump",
    "KUBERNETES_SERVICE_HOST": "10.96.0.1",
    "APPTAINER_CONTAINER": "/data/zqclient/zq.sif",
}
CGROUP = (
    "0::/user.slice/user-1000.slice/app.slice/zqapp.scope\n1:cpu:/slurm/zqnode/uid_1000\n"
    "2:memory:/kubepods.slice/zqpod/docker-zq0123.scope\nzq\n"
)


def machine_of_secrets() -> ReplayHost:
    built = (
        demo_machine()
        .with_identity(
            Identity(
                uid=1000,
                gid=1000,
                groups=(105, 1000, 2042),
                group_names={"zqalice": 1000, "render": 105, "zqproject": 2042, "video": 1044},
            )
        )
        .with_environ(ENVIRON)
        .with_file("/proc/cmdline", "BOOT_IMAGE=/zqkernel root=LABEL=zqdisk iommu=pt zqflag systemd.hostname=zqhost\n")
        .with_file("/proc/4711/cgroup", CGROUP)
        .with_file("/etc/ld.so.conf", "/data/zqclient/lib\n/opt/zqvendor/lib64\n")
        .with_file("/data/zqclient/lib/libzqprivate.so.1", "")
        .with_file("/data/zqclient/lib/libcuda.so.570.133.07", "")
        .with_file("/data/zqclient/lib/zqnotes.txt", "")
        .with_file("/data/zqclient/cuda/version.json", '{"cuda": {"version": "12.4.1"}}')
        .with_file(
            "/data/zqclient/cfg/vulkan/icd.d/zqdriver.json", '{"ICD": {"library_path": "/data/zqclient/nvk.so"}}'
        )
        .with_file("/usr/lib/libzqprivate.so", "")
        .with_file("/etc/OpenCL/vendors/amd.icd", "/data/zqclient/libamdocl64.so\n")
        .with_file(f"{SITE}/zqpackage-1.0.dist-info/RECORD", "zqpackage/__init__.py,,\n")
        .with_file(f"{SITE}/zqpackage/__init__.py", "")
        .with_file(f"{SITE}/torch/__init__.py", "")
        .with_file(f"{SITE}/torch/version.py", "__version__ = '2.4.0'\ncuda = '12.4'\n")
        .with_file(f"{SITE}/torch-2.4.0.dist-info/RECORD", "torch/__init__.py,,\n")
        .with_process("amd0", 4242, 2**30)
        .with_link("/proc/4242/fd/9", "/home/zqalice/zqcurrent/zqmerger.odt")
        .with_file("/proc/4242/fdinfo/9", "pos: 0\n")
        .with_link("/home/zqalice/zqcurrent", "zqfinal")
        .with_file("/home/zqalice/zqfinal/zqmerger.odt", "")
        .with_link("/proc/4300/cwd", "/data/zqclient")
        .with_link("/proc/4300/fd/3", "socket:[77]")
        .with_file("/proc/4300/fdinfo/3", "pos: 0\n")
    ).host()
    manifest = dataclasses.replace(built._manifest, python_path=(SITE, "/data/zqclient/src"))
    return ReplayHost(built._tree, manifest, name="zqhost")


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> tuple[Machine, str]:
    """The machine of secrets, and its record."""
    host = RecordingHost(machine_of_secrets())
    before = discover(host, ask=("nvidia", "amd"))
    host.read_bytes("/proc/cmdline")
    host.read_bytes("/proc/self/cgroup")
    host.read_link("/proc/4300/cwd")
    path = str(tmp_path_factory.mktemp("record") / "record.tar.gz")
    write_recording(host, path)
    return before, path


def test_no_name_that_a_person_gave_survives(record: tuple[Machine, str]) -> None:
    with tarfile.open(record[1]) as tar:
        for member in tar:
            assert "zq" not in f"{member.name} {member.linkname}".lower()
            file = tar.extractfile(member) if member.isfile() else None
            text = "" if file is None else file.read().decode("utf-8", "replace").lower()
            assert "zq" not in text, member.name
            assert "10.20.30.40" not in text
            assert "10.96.0.1" not in text


def test_it_replays_to_the_same_machine(record: tuple[Machine, str]) -> None:
    before, path = record
    after = discover(open_recording(path), ask=("nvidia", "amd"))
    assert [(each.name, each.version, each.vendors, each.distribution) for each in after.runtimes] == [
        (each.name, each.version, each.vendors, each.distribution) for each in before.runtimes
    ]
    found = {(each.name, each.version) for each in after.runtimes}
    assert {("torch", "2.4.0"), ("cuda", "12.8"), ("cudart", "12.4.1"), ("vulkan", None)} <= found
    for one, other in zip(before.gpus, after.gpus, strict=True):
        assert (one.usable, one.granted, one.processes and len(one.processes)) == (
            other.usable,
            other.granted,
            other.processes and len(other.processes),
        )
    assert len(after.conflicts) == len(before.conflicts)


def test_what_tells_a_container_stays(record: tuple[Machine, str]) -> None:
    lines = open_recording(record[1]).read_text("/proc/self/cgroup").splitlines()
    assert lines[0].startswith("0::/user.slice/name-")
    assert lines[1].startswith("1:cpu:/slurm")
    parts = lines[2].split("/")
    assert parts[1].startswith("kubepods-")
    assert parts[3].startswith("docker-")


def test_groups_of_the_system_keep_their_names(record: tuple[Machine, str]) -> None:
    groups = open_recording(record[1]).identity().group_names
    assert groups["render"] == 105
    assert groups["video"] == 1044
    assert sorted(groups.values()) == [105, 1000, 1044, 2042]


def test_every_variable_that_discovery_reads_is_recorded() -> None:
    class Noting(dict[str, str]):
        """Remembers the names that were asked for."""

        asked: set[str] = set()  # noqa: RUF012 - of this test alone

        def get(self, key: str, default: object = None) -> object:  # type: ignore[override]
            self.asked.add(key)
            return super().get(key, default)

        def __getitem__(self, key: str) -> str:
            self.asked.add(key)
            return super().__getitem__(key)

    class Asked(ReplayHost):
        @property
        def environ(self) -> Mapping[str, str]:
            return noting

    noting = Noting()
    built = machine_of_secrets()
    discover(Asked(built._tree, built._manifest, name="m"), ask=("nvidia", "amd"))
    assert len(Noting.asked) > 15
    assert Noting.asked == set(recorded_variables(dict.fromkeys(Noting.asked, "x")))


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("/opt/rocm-6.2.0/lib/libamdhip64.so.6", "/opt/rocm-6.2.0/lib/libamdhip64.so.6"),
        ("/opt/hidden/lib/x.so.1.2", "/opt/name-T/lib/name-T.so.1.2"),
        ("/home/user-012345/.venv/lib/python3.11/site-packages/own/x", None),
        ("/mnt/data/envs/secret/bin/python3.12", "/mnt/data/envs/name-T/bin/python3.12"),
    ],
)
def test_which_words_of_a_path_stay(path: str, kept: str | None) -> None:
    assert renamed(path, lambda _name: "T") == (kept or path)


def test_relative_links_lead_to_the_folders_new_name() -> None:
    tree = MemoryTree()
    tree.add_file("/data/secret/lib/libcuda.so.1", b"")
    tree.add_link("/usr/lib/libcuda.so.1", "../../data/secret/lib/libcuda.so.1")
    tree.add_link("/sys/bus/pci/devices/0000:01:00.0", "../../../devices/pci0000:00/0000:01:00.0")
    clean, _ = anonymised(tree, Manifest())
    host = ReplayHost(clean, name="m")
    assert "secret" not in host.resolve("/usr/lib/libcuda.so.1")
    assert clean.target("/sys/bus/pci/devices/0000:01:00.0") == "../../../devices/pci0000:00/0000:01:00.0"


def test_paths_of_the_device_tree_are_no_ones() -> None:
    tree = MemoryTree()
    tree.add_file("/sys/devices/gpu/uevent", b"OF_FULLNAME=/soc/gpu@17000000\n")
    tree.add_file("/etc/text", b"/soc/gpu@17000000 https://host/secret\n")
    clean, _ = anonymised(tree, Manifest())
    assert clean.read("/sys/devices/gpu/uevent", 99) == b"OF_FULLNAME=/soc/gpu@17000000\n"
    assert b"secret" not in clean.read("/etc/text", 99)


def test_a_unique_id_of_another_kind_is_replaced_as_what_it_is() -> None:
    tree = MemoryTree()
    tree.add_file("/sys/bus/thunderbolt/devices/0-1/unique_id", b"c4010000-0070-7f1e-23a4-dc2d1b0f2921\n")
    clean, _ = anonymised(tree, Manifest())
    assert b"c4010000" not in clean.read("/sys/bus/thunderbolt/devices/0-1/unique_id", 99)


def _members(path: Path) -> Iterator[str]:
    with tarfile.open(path) as tar:
        yield from tar.getnames()


def test_links_that_nobody_followed_are_not_followed_by_the_record(tmp_path: Path) -> None:
    tree = MemoryTree()
    tree.add_link("/proc/7/fd/3", "/srv/current/file")
    tree.add_link("/srv/current", "release-of-acme")
    host = RecordingHost(ReplayHost(tree, name="m"))
    assert host.read_link("/proc/7/fd/3") == "/srv/current/file"
    write_recording(host, str(tmp_path / "r.tar"))
    assert not [name for name in _members(tmp_path / "r.tar") if "srv" in name]
    manifest = json.loads(open_recording(str(tmp_path / "r.tar")).read_text("/gpucoexist/record.json"))
    assert "acme" not in json.dumps(manifest)

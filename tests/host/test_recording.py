"""A record holds what was read, replays to the same, and names nobody."""

from __future__ import annotations

import errno
import gzip
import json
import os
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest

from pytest_gpucoexist.errors import RecordingError
from pytest_gpucoexist.host import local_host, open_recording
from pytest_gpucoexist.host.anonymise import anonymised
from pytest_gpucoexist.host.base import Completed, HelperReply, Host, Identity, Node
from pytest_gpucoexist.host.caller import people_of, recorded_variables
from pytest_gpucoexist.host.manifest import Manifest, ProgramRun
from pytest_gpucoexist.host.personal import People
from pytest_gpucoexist.host.recording import RecordingHost, write_recording
from pytest_gpucoexist.host.replay import ReplayHost
from pytest_gpucoexist.host.tree import MemoryTree
from pytest_gpucoexist.host.writing import write_archive, write_folder
from pytest_gpucoexist.probes import discover
from pytest_gpucoexist.testing import MachineBuilder, a_machine, demo_machine

KEY = b"0123456789abcdef"
UNIQUE = 0xFD3683F8FD9F95E6

# What a real machine would tell about its owner. Each must be gone, and so must what is derived from it.
PERSONAL = {
    "nvidia uuid": "GPU-40670ec8-4ac2-7b57-421b-0443b19cbf10",
    "mig uuid": "MIG-7a1c0e5f-3a41-5c0a-8f4e-0c1f2e3d4b5a",
    "amd unique id": "fd3683f8fd9f95e6",
    "amd unique id in decimal": str(UNIQUE),
    "board serial": "1320119012345",
    "chassis serial": "CZJ93804QX",
    "product uuid": "4c4c4544-0047-3510-8052-b4c04f4d4d32",
    "machine id": "b08dfa6083e7567a1921a715000001fb",
    "boot id": "5b1f2b3a-93cd-4d0e-8a53-4a2c9f0e7d11",
    "host": "atlas17",
    "domain": "atlas17.lab.example.org",
    "user": "gwendolyn",
    "home": "/home/gwendolyn",
    "second user": "balthasar",
    "mac": "3c:ec:ef:12:34:56",
    "infiniband address": "80:00:02:08:fe:80:00:00:00:00:00:00:50:6b:4b:03:00:a1:b2:c3",
    "ip address": "192.168.77.13",
    "public ip address": "131.107.9.200",
    "ipv6 address": "2a02:8109:9f40:1::23",
    "command": "train_secret_model.py",
    "argument": "--password=hunter2",
    "process name": "secret_model",
    "disk": "nvme-eui.0025385b21404a2d",
}

HOSTS = f"127.0.0.1 localhost\n131.107.9.200 {PERSONAL['domain']}\n2a02:8109:9f40:1::23 atlas17\n"
COMMAND_LINE = f"root=/dev/disk/by-id/{PERSONAL['disk']} ro iommu=pt amdgpu.gpu_recovery=1 ip=131.107.9.200"
ICD = '{"file_format_version": "1.0.0", "ICD": {"library_path": "/home/balthasar/lib.so", "api_version": "1.3.0"}}'
LOG = "atlas17 sshd: session of balthasar from 131.107.9.200, see ATLAS17.lab.example.org"


def personal_machine() -> MachineBuilder:
    information = f"Model: \t\t NVIDIA GeForce RTX 4090\nGPU UUID: \t {PERSONAL['nvidia uuid']}\n"
    return (
        demo_machine()
        .with_identity(Identity(uid=1000, gid=1000, groups=(1000,), group_names={"gwendolyn": 1000, "render": 105}))
        .with_environ(
            {
                "HOME": "/home/gwendolyn",
                "USER": "gwendolyn",
                "CUDA_VISIBLE_DEVICES": "GPU-40670ec8,GPU-4",
                "ROCR_VISIBLE_DEVICES": "GPU-fd3683f8fd9f95e6",
                "NVIDIA_VISIBLE_DEVICES": PERSONAL["mig uuid"],
                "CUDA_HOME": "/home/gwendolyn/cuda",
                "NVIDIA_API_KEY": "nvapi-secret",
                "AWS_SECRET": "secret",
                "KUBERNETES_SERVICE_HOST": "192.168.77.13",
            }
        )
        .with_file("/proc/driver/nvidia/gpus/0000:03:00.0/information", information)
        .with_file("/sys/class/dmi/id/product_uuid", PERSONAL["product uuid"].upper())
        .with_file("/sys/class/dmi/id/chassis_serial", PERSONAL["chassis serial"])
        .with_file("/sys/class/dmi/id/board_serial", "Default string\n")
        .with_file("/sys/devices/virtual/fake/serial_number", PERSONAL["board serial"] + "\n")
        .with_file("/sys/devices/virtual/fake/label", f"board {PERSONAL['board serial']}, chassis czj93804qx")
        .with_file("/etc/machine-id", PERSONAL["machine id"] + "\n")
        .with_file("/proc/sys/kernel/random/boot_id", PERSONAL["boot id"] + "\n")
        .with_file("/proc/sys/kernel/hostname", "atlas17\n")
        .with_file(
            "/etc/hosts", f"127.0.0.1 localhost\n131.107.9.200 {PERSONAL['domain']}\n2a02:8109:9f40:1::23 atlas17\n"
        )
        .with_file("/sys/class/net/eth0/address", PERSONAL["mac"] + "\n")
        .with_file("/sys/class/net/ib0/address", PERSONAL["infiniband address"] + "\n")
        .with_file("/proc/4242/cmdline", "python\0train_secret_model.py\0--password=hunter2\0")
        .with_file("/proc/4242/comm", "secret_model\n")
        .with_file("/proc/4242/environ", "AWS_SECRET=hunter2\0")
        .with_file(
            "/proc/cmdline",
            f"root=/dev/disk/by-id/{PERSONAL['disk']} ro iommu=pt amdgpu.gpu_recovery=1 ip=131.107.9.200",
        )
        .with_file("/home/gwendolyn/.config/vulkan/icd.d/own.json", ICD)
        .with_file(
            "/var/log/messages", "atlas17 sshd: session of balthasar from 131.107.9.200, see ATLAS17.lab.example.org"
        )
        .with_link("/var/home", "/home/gwendolyn/data")
        .with_file("/sys/devices/virtual/fake/edid", b"\0\xff\xff\xffserial CZJ93804QX")
        .with_process("amd1", 4242, 2**30)
        .with_mig("nvidia1")
    )


class Everything(RecordingHost):
    """Reads all that there is, as a later discovery might."""

    def read_everything(self, folder: str = "") -> None:
        for name in self.list_dir(folder or "/"):
            path = f"{folder}/{name}"
            try:
                self.read_link(path)
                continue
            except OSError:
                pass
            if self.stat(path).kind == "dir":
                self.read_everything(path)
            else:
                try:
                    self.read_bytes(path)
                except OSError:
                    self.exists(path)


def all_bytes(path: str) -> bytes:
    """The archive as it is unpacked, names of members and links too."""
    raw = gzip.decompress(Path(path).read_bytes())
    with tarfile.open(path) as tar:
        names = "\n".join(f"{member.name} {member.linkname} {member.uname} {member.gname}" for member in tar)
    return raw + names.encode()


def test_none_of_the_personal_details_survives(tmp_path: Path) -> None:
    host = Everything(personal_machine().host())
    host.read_everything()
    discover(host, ask=("nvidia", "amd"))
    path = str(tmp_path / "record.tar.gz")
    write_recording(host, path)
    data = all_bytes(path).lower()
    for what, value in PERSONAL.items():
        assert value.lower().encode() not in data, what
    for secret in (b"nvapi-secret", b"hunter2", b"lab.example", b"aws_secret", b"api_key", b"10ec8", b"czj93804"):
        assert secret not in data


def test_it_replays_to_the_same_but_for_the_details(tmp_path: Path) -> None:
    host = RecordingHost(personal_machine().host())
    before = discover(host, ask=("nvidia", "amd")).to_json()
    path = str(tmp_path / "record.tar.gz")
    write_recording(host, path, key=KEY)
    replayed = open_recording(path)
    after = discover(replayed, ask=("nvidia", "amd")).to_json()
    assert after.pop("name") == "machine"
    before.pop("name")
    changed = differences(before, after)
    texts = {"uuid", "unique_id", "value", "warning", "path", "name", "source"}
    assert {place.split(".")[-1] for place in changed} <= texts
    assert all(".processes" in place for place in changed if place.endswith(".name"))
    assert after["gpus"][0]["uuid"] != before["gpus"][0]["uuid"]
    # Recorded once more, it is the same.
    again = RecordingHost(replayed)
    assert discover(again, ask=("nvidia", "amd")).to_json() == {"name": "machine", **after}


def differences(one: Any, two: Any, place: str = "") -> dict[str, tuple[Any, Any]]:
    assert type(one) is type(two), place
    if isinstance(one, dict):
        assert one.keys() == two.keys(), place
        found: dict[str, tuple[Any, Any]] = {}
        for key in one:
            found |= differences(one[key], two[key], f"{place}.{key}")
        return found
    if isinstance(one, list):
        assert len(one) == len(two), place
        found = {}
        for index, pair in enumerate(zip(one, two, strict=True)):
            found |= differences(*pair, f"{place}[{index}]")
        return found
    return {} if one == two else {place: (one, two)}


def test_equal_values_stay_equal_wherever_and_however_they_stand(tmp_path: Path) -> None:
    host = Everything(personal_machine().host())
    host.read_everything()
    discover(host, ask=("nvidia", "amd"))
    path = str(tmp_path / "record.tar.gz")
    write_recording(host, path)
    replayed = open_recording(path)
    # AMD: 16 digits in amdgpu's file, a decimal number in KFD, behind GPU- in ROCm's UUID and in the mask.
    amd = replayed.read_text("/sys/bus/pci/devices/0000:83:00.0/unique_id")
    assert len(amd) == 16
    properties = dict(
        line.split() for line in replayed.read_text("/sys/class/kfd/kfd/topology/nodes/3/properties").splitlines()
    )
    assert int(properties["unique_id"]) == int(amd, 16) != UNIQUE
    assert replayed.environ["ROCR_VISIBLE_DEVICES"] == f"GPU-{amd}"
    assert replayed.ask("amdsmi").data["devices"][1]["uuid"] == {"value": f"GPU-{amd}"}
    # NVIDIA: the driver's file, NVML, and a mask with the beginning of it.
    uuid = replayed.ask("nvml").data["devices"][0]["uuid"]["value"]
    assert f"GPU UUID: \t {uuid}" in replayed.read_text("/proc/driver/nvidia/gpus/0000:03:00.0/information")
    first, second = replayed.environ["CUDA_VISIBLE_DEVICES"].split(",")
    assert uuid.startswith(first)
    assert uuid.startswith(second)
    assert (len(first), len(second)) == (12, 5)
    # A serial in a sentence, in another case.
    serial = replayed.read_text("/sys/devices/virtual/fake/serial_number")
    chassis = replayed.read_text("/sys/class/dmi/id/chassis_serial")
    assert replayed.read_text("/sys/devices/virtual/fake/label") == f"board {serial}, chassis {chassis.lower()}"
    assert serial.isdecimal()
    # Host, user, home.
    name = replayed.read_text("/proc/sys/kernel/hostname")
    log = replayed.read_text("/var/log/messages")
    assert log.startswith(f"{name} sshd: session of user-")
    assert log.endswith(f"see {name}")
    home = replayed.environ["HOME"]
    assert replayed.environ["CUDA_HOME"] == f"{home}/cuda"
    assert replayed.read_link("/var/home") == f"{home}/data"
    (icd_name,) = replayed.list_dir(f"{home}/.config/vulkan/icd.d")
    icd = replayed.read_text(f"{home}/.config/vulkan/icd.d/{icd_name}")
    assert json.loads(icd)["ICD"]["library_path"] == f"/home/{log.split()[4]}/lib.so"
    assert replayed.identity().group_names == {home.removeprefix("/home/"): 1000, "render": 105}


def test_what_is_nobodys_is_left_alone(tmp_path: Path) -> None:
    host = Everything(personal_machine().host())
    host.read_everything()
    path = str(tmp_path / "record.tar.gz")
    write_recording(host, path)
    replayed = open_recording(path)
    assert replayed.read_text("/sys/class/dmi/id/board_serial") == "Default string"
    assert replayed.read_text("/sys/module/nvidia/version") == "570.133.07"
    assert replayed.read_text("/proc/cmdline") == "ro iommu=pt amdgpu.gpu_recovery=1"
    assert "127.0.0.1 localhost" in replayed.read_text("/etc/hosts")
    assert "95.02.3c.40.b1" in demo_machine().host().read_text("/proc/driver/nvidia/gpus/0000:03:00.0/information")
    assert replayed.read_bytes("/sys/devices/virtual/fake/edid") == bytes(21)
    assert replayed.list_dir("/sys/bus/pci/devices") == demo_machine().host().list_dir("/sys/bus/pci/devices")


def test_records_of_one_machine_differ_unless_the_key_is_given(tmp_path: Path) -> None:
    def uuid(key: bytes | None) -> object:
        host = RecordingHost(demo_machine().host())
        host.ask("nvml")
        write_recording(host, str(tmp_path / "r.tar"), key=key)
        return open_recording(str(tmp_path / "r.tar")).ask("nvml").data["devices"][0]["uuid"]

    assert uuid(KEY) == uuid(KEY)
    assert uuid(None) != uuid(None)


def test_this_machine_replays_to_the_same(tmp_path: Path) -> None:
    host = RecordingHost(local_host())
    before = discover(host).to_json()
    path = str(tmp_path / "record.tar.xz")
    write_recording(host, path)
    after = discover(open_recording(path)).to_json()
    for changed in ("name", "simulated"):
        before.pop(changed)
        after.pop(changed)
    texts = ("uuid", "unique_id", "value", "warning", "message", "path", "source", "name")
    assert {place.split(".")[-1] for place in differences(before, after)} <= set(texts)


class Odd(ReplayHost):
    """A host with programs."""

    def run(self, argv: Any, *, timeout_s: float = 5.0) -> Completed:
        if argv[0] == "missing":
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        return Completed(returncode=0, stdout=b"serial of gwendolyn \xff\n")


def test_errors_access_programs_and_helpers_are_kept(tmp_path: Path) -> None:
    built = (
        a_machine()
        .with_gpu("rtx4090")
        .without_permission("nvidia0")
        .with_error("/sys/class/drm/version", errno.EIO)
        .with_error("/proc/driver/nvidia/gpus", errno.EACCES)
        .hang("nvml", left_behind=77)
    ).host()
    inner = Odd(built._tree, built._manifest, name="gwendolyns-box")
    host: Host = RecordingHost(inner)
    expected: dict[Any, Any] = {}

    def note(name: str, *args: Any, **kwargs: Any) -> None:
        key = name, args, tuple(kwargs.items())
        try:
            expected[key] = getattr(host, name)(*args, **kwargs)
        except OSError as exc:
            expected[key] = exc.errno

    note("read_text", "/sys/class/drm/version")
    note("list_dir", "/proc/driver/nvidia/gpus")
    note("list_dir", "/sys/bus/pci/devices")
    note("read_text", "/sys/class/drm/card0/device/vendor")
    note("read_link", "/sys/class/drm/card0/device/driver")
    note("read_link", "/sys/class/drm/version")
    note("resolve", "/sys/class/drm/card0/device")
    note("resolve", "/sys/nothing/here")
    note("exists", "/dev/nvidia0")
    note("exists", "/dev/nvidia7")
    note("stat", "/dev/nvidiactl")
    note("may_open", "/dev/nvidia0", write=True)
    note("may_open", "/dev/nvidia0", write=False)
    note("may_open", "/dev/nvidiactl", write=True)
    note("may_open", "/dev/kfd", write=True)
    note("covers", "/dev/kfd")
    note("ask", "nvml")
    note("run", ("missing",))
    note("read_bytes", "/proc/meminfo", 8)
    assert host.run(("modinfo",)).stdout == b"serial of gwendolyn \xff\n"
    assert expected["read_text", ("/sys/class/drm/version",), ()] == errno.EIO
    assert isinstance(host, RecordingHost)
    write_recording(host, str(tmp_path / "r.tar.bz2"))
    replayed = open_recording(str(tmp_path / "r.tar.bz2"))
    for (name, args, kwargs), answer in expected.items():
        try:
            result = getattr(replayed, name)(*args, **dict(kwargs))
        except OSError as exc:
            result = exc.errno
        assert result == answer, (name, args)
    assert replayed.run(("modinfo",)).stdout == b"serial of gwendolyn \xff\n"
    assert replayed.name == "machine"
    assert not replayed.covers("/etc/passwd")
    assert (host.platform, host.simulated, host.python_path) == (inner.platform, True, inner.python_path)


def test_a_link_loop_is_kept_as_a_loop(tmp_path: Path) -> None:
    tree = MemoryTree()
    tree.add_link("/sys/a", "b")
    tree.add_link("/sys/b", "../sys/./a")
    host = RecordingHost(ReplayHost(tree, name="m"))
    assert not host.exists("/sys/a")
    write_recording(host, str(tmp_path / "r.tar"))
    with pytest.raises(OSError, match="symbolic links"):
        open_recording(str(tmp_path / "r.tar")).stat("/sys/a")


def test_a_file_that_became_a_folder_between_two_reads_does_not_spoil_the_record() -> None:
    host = RecordingHost(ReplayHost(MemoryTree(), name="m"))
    host._contents["/sys/x"] = b"1"
    host._contents["/sys/x/y"] = b"2"
    host._links["/sys/x/z"] = "a"
    host._listings["/sys/x/y/z"] = ()
    tree, _manifest = host.recorded()
    assert tree.kind("/sys") == "dir"


def test_only_variables_of_gpus_are_recorded_and_no_secrets() -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "0", "SLURM_STEP_GPUS": "1", "SLURM_JOB_USER": "x", "PATH": "/bin"}
    environ |= {"NVIDIA_API_KEY": "x", "HIP_TOKEN": "x", "AWS_X": "y", "LD_LIBRARY_PATH": "/l"}
    assert set(recorded_variables(environ)) == {"CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "LD_LIBRARY_PATH"}


def test_ordinary_words_are_no_names() -> None:
    identity = Identity(uid=0, gid=0, groups=(0,), group_names={"root": 0})
    host = a_machine("gpu").with_identity(identity).with_environ(USER="root", HOME="/root").host()
    tree = MemoryTree()
    tree.add_file("/var/text", b"root gpu /root/lib")
    clean, _manifest = anonymised(tree, Manifest(name="gpu"), people_of(host))
    assert clean.read("/var/text", 99) == b"root gpu /root/lib"


def test_names_of_people_do_not_rename_the_kernels_files() -> None:
    tree = MemoryTree()
    tree.add_file("/sys/class/max/max", b"max of max\n")
    tree.add_file("/opt/max/lib", b"")
    clean, _manifest = anonymised(
        tree, Manifest(), People(users=frozenset({"max"}), homes=frozenset({"/data/homes/max/"}))
    )
    assert clean.kind("/sys/class/max/max") == "file"
    assert clean.kind("/opt/max") is None
    assert b"max" not in clean.read("/sys/class/max/max", 99)


@pytest.mark.parametrize(
    ("content", "unchanged"),
    [(b"0\n", True), (b"0x1a\n", False), (b"garbage\n", True), (b"", True), (b"fd3683f8fd9f95e6\n", False)],
)
def test_unique_ids_of_every_form(content: bytes, unchanged: bool) -> None:
    tree = MemoryTree()
    tree.add_file("/sys/x/unique_id", content)
    tree.add_file("/sys/x/other", b"26 1a 0xFD3683F8FD9F95E6 18245916045768365542")
    clean, _manifest = anonymised(tree, Manifest(), key=KEY)
    new = clean.read("/sys/x/unique_id", 99)
    assert (new == content) is unchanged
    assert new.startswith(b"0x") is content.startswith(b"0x")
    other = clean.read("/sys/x/other", 99).split()
    assert other[:2] == [b"26", b"1a"]
    if content.startswith(b"fd"):
        assert other[2] == b"0x" + new.strip().upper()
        assert int(other[3]) == int(new, 16)


def test_helper_json_is_known_by_its_keys() -> None:
    data = {
        "hostname": "atlas17",
        "user": "gwendolyn",
        "serial": {"value": "77"},
        "board_serial": "1320119012345",
        "unique_id": UNIQUE,
        "count": 2,
        "flag": True,
        "command": "python secret.py",
        "processes": {"value": [{"pid": 7, "name": "secret_model", "user": "gwendolyn"}, 3]},
        "text": "on atlas17: 1320119012345, 77 MiB",
    }
    reply = HelperReply(status="ok", data=data, detail="from /home/gwendolyn/lib")
    run = ProgramRun(argv=("ls", "/home/gwendolyn"), stdout="atlas17", stderr="192.168.77.13 fe80::1ff:fe23:4567:890a")
    manifest = Manifest(
        name="atlas17",
        helpers={"x": reply},
        programs=(run,),
        python_path=("/home/gwendolyn/v",),
        links={"/a": "/home/gwendolyn"},
    )
    _tree, clean = anonymised(MemoryTree(), manifest, People(hosts=frozenset({"atlas17"})), key=KEY)
    new = clean.helpers["x"].data
    assert new["count"] == 2
    assert new["flag"] is True
    assert new["serial"]["value"] != "77"
    assert new["text"].endswith("77 MiB")
    assert new["board_serial"] in new["text"]
    assert new["hostname"] in new["text"]
    assert new["unique_id"] not in {UNIQUE, 0}
    assert new["processes"]["value"][0]["name"].startswith("process-")
    assert new["processes"]["value"][1] == 3
    text = clean.to_text()
    for word in ("atlas17", "gwendolyn", "secret", "192.168.77.13", str(UNIQUE), "1320119012345"):
        assert word not in text


def test_the_serial_number_in_a_configuration_space_is_zeroed() -> None:
    config = bytearray(4096)
    config[0x100:0x104] = (0x0001 | 1 << 16 | 0x150 << 20).to_bytes(4, "little")
    config[0x150:0x154] = (0x0003 | 1 << 16).to_bytes(4, "little")
    config[0x154:0x15C] = b"\x11\x22\x33\x44\x55\x66\x77\x88"
    tree = MemoryTree()
    tree.add_file("/sys/devices/x/config", bytes(config))
    tree.add_file("/sys/devices/y/config", bytes(64))
    clean, _manifest = anonymised(tree, Manifest())
    new = clean.read("/sys/devices/x/config", 4096)
    assert new[0x154:0x15C] == bytes(8)
    assert new[:0x154] == config[:0x154]
    assert clean.read("/sys/devices/y/config", 64) == bytes(64)


@pytest.mark.parametrize("home", ["/home/u", "/home/user", "/home/al"])
def test_a_home_that_its_own_replacement_begins_with(home: str) -> None:
    """`/home/user` becomes `/home/user-` and some letters, in which it stands again."""
    tree = MemoryTree()
    tree.add_file("/proc/self/maps", f"55d0-55d1 r-xp 00000000 103:02 7 {home}/venv/bin/python\n".encode())
    manifest = Manifest(environ={"HOME": home, "LD_LIBRARY_PATH": f"{home}/lib:{home}"})
    clean, made = anonymised(
        tree, manifest, People(users=frozenset({home.rpartition("/")[2]}), homes=frozenset({home}))
    )
    assert f"{home}/" not in clean.read("/proc/self/maps", 4096).decode()
    assert not re.search(rf"{home}(?![\w.-])", made.to_text())


def test_a_detail_that_would_survive_stops_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_gpucoexist.host.anonymiser.Anonymiser.strict", lambda _self, text: text)
    host = Everything(personal_machine().host())
    host.read_everything()
    with pytest.raises(RecordingError, match="not written: a personal value could not"):
        write_recording(host, str(tmp_path / "record.tar.gz"))
    assert os.listdir(tmp_path) == []


class TestWriting:
    @pytest.mark.parametrize("suffix", ["tar", "tar.gz", "tgz", "tar.xz", "txz", "tar.bz2", "tbz2"])
    def test_suffixes(self, tmp_path: Path, suffix: str) -> None:
        path = str(tmp_path / f"m.{suffix}")
        tree = MemoryTree()
        tree.add_file("/sys/x", b"1\n")
        write_archive(tree, Manifest(name="my machine/№1"), path)
        assert open_recording(path).read_text("/sys/x") == "1"
        with tarfile.open(path) as tar:
            member = tar.getmembers()[0]
            assert (member.name, member.uid, member.uname) == ("my-machine-1", 0, "")

    def test_another_suffix_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(RecordingError, match=r"cannot write .*m\.zip: a record is a \.tar"):
            write_archive(MemoryTree(), Manifest(), str(tmp_path / "m.zip"))

    def test_an_existing_file_is_replaced_in_one_step_or_not_at_all(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "m.tar.gz"
        path.write_text("old")
        tree = MemoryTree()
        tree.add_file("/sys/x", b"1\n")

        def full(*_args: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(tarfile.TarFile, "addfile", full)
            with pytest.raises(RecordingError, match="No space left on device"):
                write_archive(tree, Manifest(), str(path))
        assert path.read_text() == "old"
        assert os.listdir(tmp_path) == ["m.tar.gz"]
        write_archive(tree, Manifest(), str(path))
        assert open_recording(str(path)).exists("/sys/x")
        assert os.listdir(tmp_path) == ["m.tar.gz"]

    def test_a_folder_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(RecordingError, match="No such file or directory"):
            write_archive(MemoryTree(), Manifest(), str(tmp_path / "none/m.tar"))
        with pytest.raises(RecordingError, match="No such file or directory"):
            write_folder(MemoryTree(), Manifest(), str(tmp_path / "none/m"))

    def test_a_folder_that_is_full_is_not_touched(self, tmp_path: Path) -> None:
        (tmp_path / "m").mkdir()
        (tmp_path / "m/mine").touch()
        with pytest.raises(RecordingError, match="cannot write"):
            write_folder(MemoryTree(), Manifest(), str(tmp_path / "m"))
        assert os.listdir(tmp_path) == ["m"]
        assert os.listdir(tmp_path / "m") == ["mine"]

    def test_the_same_machine_is_the_same_bytes(self, tmp_path: Path) -> None:
        for name in ("a.tar", "b.tar"):
            demo_machine().write_archive(str(tmp_path / name))
        assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()


def test_what_nobody_knows_about_a_node_stays_unknown(tmp_path: Path) -> None:
    tree = MemoryTree()
    tree.add_node("/dev/dri/renderD128", Node(kind="chardev", mode=0o660, gid=105))
    host = RecordingHost(ReplayHost(tree, name="m"))  # no identity: the mode does not decide
    with pytest.raises(OSError, match="No data available"):
        host.may_open("/dev/dri/renderD128", write=True)
    write_recording(host, str(tmp_path / "r.tar"))
    with pytest.raises(OSError, match="No data available"):
        open_recording(str(tmp_path / "r.tar")).may_open("/dev/dri/renderD128", write=True)


def test_of_a_file_that_was_opened_a_record_keeps_that_it_is_there_and_not_its_content(tmp_path: Path) -> None:
    library = tmp_path / "libamdhip64.so.6"
    library.write_bytes(b"\x7fELF" + bytes(1000))
    host = RecordingHost(local_host())
    with host.open_file(str(library)) as file:
        assert file.read(4) == b"\x7fELF"
    tree, manifest = host.recorded()
    replay = ReplayHost(tree, manifest, name="record")
    assert replay.stat(str(library)).size_bytes == 1004
    with pytest.raises(OSError, match="No data available") as failure:
        replay.open_file(str(library))
    assert failure.value.errno == errno.ENODATA
    with pytest.raises(FileNotFoundError):
        replay.open_file(f"{library}.5")


def test_a_file_of_a_tree_can_be_opened() -> None:
    host = a_machine().with_file("/usr/lib/libx.so", b"0123456789").host()
    with host.open_file("/usr/lib/libx.so") as file:
        file.seek(5)
        assert file.read(2) == b"56"
    with pytest.raises(OSError, match="Invalid argument"):
        host.open_file("/usr/lib")

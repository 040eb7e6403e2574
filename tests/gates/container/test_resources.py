"""Memory, CPUs and seccomp of a container; what kind of place it is; CDI's specifications."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings, strategies as st

from pytest_gpucoexist.gates.container.cdi import spec_of
from pytest_gpucoexist.gates.container.detect import place_words
from pytest_gpucoexist.gates.container.memory import size_of
from pytest_gpucoexist.testing.builder import a_machine
from tests.gates.judging import subject_of, verdict, verdicts

GIB = 2**30
ONE = a_machine().with_gpu("rtx4090")
TWO_NODES = a_machine().with_numa_nodes(2).with_gpu("rtx4090").with_gpu("rtx4090", numa_node=1)
SHM = "30 25 0:27 / /dev/shm rw,nosuid,nodev,noexec,relatime - tmpfs shm rw,size={}\n"


@pytest.mark.proves("ctr.memory_max", "PASS", on="tree")
@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"memory.max": "max\n"}, "no control group limits this process's memory"),
        (
            {"memory.max": f"{8 * GIB}", "memory.current": f"{7 * GIB}", "memory.stat": f"inactive_file {6 * GIB}\n"},
            "7.0 GiB are left under the control group's limit",
        ),
        # Version 1 writes the largest number of pages for no limit.
        ({"memory/memory.limit_in_bytes": "9223372036854771712\n"}, "no control group limits this process's memory"),
    ],
)
def test_memory_is_left(files: dict[str, str], reason: str) -> None:
    machine = ONE
    for name, text in files.items():
        machine = machine.with_file(f"/sys/fs/cgroup/{name}", text)
    assert verdict(machine, "ctr.memory_max").reason == reason


@pytest.mark.proves("ctr.memory_max", "WARN", on="tree")
def test_a_container_of_4_gib_that_used_3() -> None:
    machine = ONE.with_file("/sys/fs/cgroup/memory.max", f"{4 * GIB}\n").with_file("/.dockerenv", "")
    machine = machine.with_file("/sys/fs/cgroup/memory.current", f"{3 * GIB}\n")
    said = verdict(machine, "ctr.memory_max")
    assert said.reason == "only 1.0 GiB are left under the control group's limit; pinned memory counts"
    assert verdict(machine, "ctr.memory_max", limits={"ctr.memory_max": {"min_free_bytes": GIB}}).status == "PASS"


@pytest.mark.proves("ctr.memory_max", "WARN", on="tree")
def test_a_limit_of_a_group_above() -> None:
    machine = ONE.with_file("/proc/self/cgroup", "0::/user.slice/user-1000.slice\n")
    machine = machine.with_file("/sys/fs/cgroup/user.slice/user-1000.slice/memory.max", "max\n")
    machine = machine.with_file("/sys/fs/cgroup/user.slice/memory.max", f"{GIB}\n")
    machine = machine.with_file("/sys/fs/cgroup/user.slice/memory.current", f"{GIB // 2}\n")
    assert verdict(machine, "ctr.memory_max").reason.startswith("only 0.5 GiB")


@pytest.mark.parametrize("text", ["", "lots", "-5", "1e9", "\0"])
def test_garbage_of_a_control_group_is_unknown(text: str) -> None:
    assert verdict(ONE.with_file("/sys/fs/cgroup/memory.max", text), "ctr.memory_max").status == "UNKNOWN"


@pytest.mark.proves("ctr.shm", "PASS", on="tree")
@pytest.mark.parametrize("size", ["2097152k", "1g", "24684096k,mode=1777"])
def test_shared_memory_is_large_enough(size: str) -> None:
    assert verdict(ONE.with_file("/proc/self/mountinfo", SHM.format(size)), "ctr.shm").status == "PASS"
    host = "30 25 0:27 / /dev/shm rw,nosuid,nodev - tmpfs tmpfs rw\n"
    assert "half of the memory" in verdict(ONE.with_file("/proc/self/mountinfo", host), "ctr.shm").reason


@pytest.mark.proves("ctr.shm", "WARN", on="tree")
def test_dockers_64_mib() -> None:
    machine = ONE.with_file("/proc/self/mountinfo", SHM.format("65536k")).with_file("/.dockerenv", "")
    said = verdict(machine, "ctr.shm")
    assert said.reason == "/dev/shm has only 64 MiB"
    assert said.fix[0].lines == ("docker run --shm-size=2g …",)


@pytest.mark.parametrize("text", ["", "garbage", "30 25 0:27 / /tmp rw - tmpfs t rw,size=1k", SHM.format("50%")])
def test_no_size_is_unknown(text: str) -> None:
    assert verdict(ONE.with_file("/proc/self/mountinfo", text), "ctr.shm").status == "UNKNOWN"


@given(st.text(max_size=120))
@settings(max_examples=80)
def test_a_size_is_a_number_or_none(text: str) -> None:
    size = size_of(text)
    assert size is None or size > 0


@pytest.mark.proves("ctr.pids_cpuset", "PASS", on="tree")
@pytest.mark.proves("ctr.pids_cpuset", "WARN", on="tree")
def test_a_container_on_one_socket() -> None:
    machine = TWO_NODES.with_file("/.dockerenv", "").with_file("/sys/fs/cgroup/cpuset.cpus.effective", "0-7\n")
    near, far = verdicts(machine, "ctr.pids_cpuset")
    assert (near.status, far.status) == ("PASS", "WARN")
    assert far.reason == "the container has no CPU near the GPU: 0-7"
    assert far.fix[0].lines == ("docker run --cpuset-cpus 8-15 …",)


@pytest.mark.parametrize("text", ["", "all", "7-3", "\0"])
def test_a_cpuset_that_makes_no_sense_is_unknown(text: str) -> None:
    machine = TWO_NODES.with_file("/.dockerenv", "").with_file("/sys/fs/cgroup/cpuset.cpus.effective", text)
    assert verdict(machine, "ctr.pids_cpuset").status == "UNKNOWN"
    assert verdict(TWO_NODES, "ctr.pids_cpuset").status == "SKIP"


def test_what_kind_of_place_it_is() -> None:
    assert place_words(subject_of(ONE)) is None
    docker = ONE.with_file("/.dockerenv", "")
    assert place_words(subject_of(docker)) == "a container (docker)"
    podman = ONE.with_file("/run/.containerenv", "").with_file(
        "/proc/self/uid_map", "         0       1000          1\n         1     100000      65536\n"
    )
    assert place_words(subject_of(podman)) == "a container (podman) in a user namespace"
    guest = ONE.with_file("/proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu vme hypervisor lahf_lm\n")
    guest = guest.with_file("/sys/class/dmi/id/sys_vendor", "QEMU\n")
    assert place_words(subject_of(guest)) == "a virtual machine (QEMU)"
    assert place_words(subject_of(guest.with_file("/.dockerenv", ""))) == (
        "a container (docker) in a virtual machine (QEMU)"
    )
    assert place_words(subject_of(ONE.without("/proc/cpuinfo"))) is None


# As nvidia-ctk cdi generate writes it (cdiVersion 0.5.0, shortened), and the same in JSON.
YAML = """\
---
cdiVersion: 0.5.0
containerEdits:
  deviceNodes:
  - path: /dev/nvidia-uvm
  - path: /dev/nvidiactl
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  hooks:
  - args:
    - nvidia-cdi-hook
    hookName: createContainer
    path: /usr/bin/nvidia-cdi-hook
devices:
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
    - hostPath: /dev/dri/renderD128
      path: /dev/dri/renderD200
  name: "0"
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia1
  name: "1"
kind: nvidia.com/gpu
"""
NODES = ("/dev/nvidia-uvm", "/dev/nvidiactl", "/dev/nvidia0", "/dev/dri/renderD128", "/dev/nvidia1")


def test_a_specification_is_read_in_both_forms() -> None:
    assert spec_of(YAML) == ("nvidia.com/gpu", NODES)
    devices = [{"name": "0", "containerEdits": {"deviceNodes": [{"path": path} for path in NODES]}}]
    assert spec_of(json.dumps({"kind": "nvidia.com/gpu", "devices": devices})) == ("nvidia.com/gpu", NODES)


@given(st.text(max_size=300) | st.text(alphabet="kind:-/ path deviceNodes\n{}[]\"'", max_size=200))
@settings(max_examples=100)
def test_a_specification_is_read_or_is_none(text: str) -> None:
    spec = spec_of(text)
    assert spec is None or ("/" in spec[0] and all(path for path in spec[1]))


@pytest.mark.proves("ctr.cdi", "PASS", on="tree")
@pytest.mark.proves("ctr.cdi", "WARN", on="tree")
def test_a_specification_of_two_gpus_where_one_is_left() -> None:
    machine = ONE.with_file("/etc/cdi/nvidia.yaml", YAML)
    said = verdict(machine, "ctr.cdi")
    assert said.reason == "/etc/cdi/nvidia.yaml names /dev/nvidia1, which is gone"
    assert said.fix[0].lines == ("sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",)
    assert verdict(machine.with_gpu("rtx4090"), "ctr.cdi").status == "PASS"


@pytest.mark.parametrize("text", ["", "{", "kind nvidia", "- - -", '{"kind": 7}', "\0\0", "[" * 5000])
def test_a_specification_that_makes_no_sense_is_unknown(text: str) -> None:
    assert verdict(ONE.with_file("/etc/cdi/nvidia.json", text), "ctr.cdi").status == "UNKNOWN"


def test_where_there_is_none() -> None:
    assert verdict(ONE, "ctr.cdi").status == "SKIP"
    assert verdict(ONE.with_file("/etc/cdi/other.yaml", "kind: vendor.com/nic\n"), "ctr.cdi").status == "SKIP"
    assert verdict(ONE.with_file("/.dockerenv", ""), "ctr.cdi").status == "SKIP"

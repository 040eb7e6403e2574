"""Whatever stands in the files that these gates read, no gate breaks, and none passes what it could not read."""

from __future__ import annotations

from hypothesis import given, settings, strategies as st

from pytest_gpucoexist.gates.catalogue import all_gates
from pytest_gpucoexist.gates.runner import judge
from pytest_gpucoexist.testing.builder import a_machine
from tests.gates.judging import subject_of

MACHINE = (
    a_machine()
    .with_numa_nodes(2)
    .with_gpu("rtx4090")
    .with_gpu("mi210", numa_node=1)
    .with_gpu("radeon-780m")
    .with_file("/.dockerenv", "")
    .with_environ(HOME="/root")
)
# A file, and the gates that must not pass on what makes no sense there.
FILES = {
    "/proc/self/status": {"numa.affinity"},
    "/proc/self/limits": {"dev.nofile", "dev.memlock"},
    "/proc/self/mountinfo": {"ctr.shm"},
    "/proc/driver/nvidia/version": {"ctr.lib_match"},
    "/proc/driver/nvidia/gpus/0000:01:00.0/information": {"dev.nv.minor"},
    "/sys/fs/cgroup/cpuset.cpus.effective": {"ctr.pids_cpuset"},
    "/sys/devices/system/node/node0/distance": {"numa.pair_distance"},
    "/sys/devices/system/cpu/cpufreq/policy0/scaling_governor": {"topo.cpu_governor"},
    "/proc/self/cgroup": set(),
    "/proc/self/uid_map": set(),
    "/proc/1/cgroup": set(),
    "/proc/devices": set(),
    "/sys/fs/cgroup/devices/devices.list": set(),
    "/sys/fs/cgroup/memory.max": set(),
}
GATES = [gate for gate in all_gates() if gate.group in {"device-node", "container", "numa", "environment"}]
# Letters of which no sensible line of these files can be made.
nonsense = st.text(alphabet="qzj?!\0\n", max_size=60).filter(lambda text: text.strip("\0\n ") != "")


@given(st.dictionaries(st.sampled_from(sorted(FILES)), nonsense, min_size=1, max_size=5))
@settings(max_examples=40)
def test_nonsense_is_never_a_pass(texts: dict[str, str]) -> None:
    machine = MACHINE
    for path, text in texts.items():
        machine = machine.with_file(path, text)
    found = judge(subject_of(machine), gates=GATES).by_gate()
    assert "ERROR" not in found.values()
    if "/sys/devices/system/cpu/cpufreq/policy0/scaling_governor" in texts:
        word = texts["/sys/devices/system/cpu/cpufreq/policy0/scaling_governor"].strip("\0\n ")
        if word.isalpha():
            found.pop("topo.cpu_governor")  # a word is a governor's name, whichever
    for path, text in texts.items():
        for gate in FILES[path]:
            assert found.get(gate) != "PASS", (gate, text)


@given(st.dictionaries(st.sampled_from(sorted(FILES)), st.binary(max_size=80), min_size=1, max_size=5))
@settings(max_examples=40)
def test_bytes_break_no_gate(contents: dict[str, bytes]) -> None:
    machine = MACHINE
    for path, content in contents.items():
        machine = machine.with_file(path, content)
    judgement = judge(subject_of(machine), gates=GATES)
    assert [verdict.detail for verdict in judgement.verdicts if verdict.status == "ERROR"] == []

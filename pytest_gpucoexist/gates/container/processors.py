"""CPUs that a container may use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.container.place import cgroup_paths, container_of
from pytest_gpucoexist.gates.findings import Finding, passed, skipped, unknown, warned
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.model.verdicts import Evidence, Fix
from pytest_gpucoexist.probes.parse import cpus_of_list, list_of_cpus
from pytest_gpucoexist.probes.reader import Bad

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["cpuset"]


@gate(
    "ctr.pids_cpuset",
    group="container",
    title="The container has CPUs that are near its GPUs",
    reads="cpuset.cpus.effective of the control group, local_cpulist of each GPU",
    criterion="each GPU has a CPU of its own NUMA node among those of the container",
    why="a container that was pinned to the other socket copies every buffer across it, at a third of the bandwidth",
    action="start the container with CPUs of the GPU's node (docker --cpuset-cpus; Kubernetes' topology manager)",
    source="derived from numa.affinity; mpicbg-scicomp/gearshifft PR#82",
)
def cpuset(subject: Subject) -> Iterator[Finding]:
    """Intersect the control group's CPUs with those near each GPU."""
    if container_of(subject) is None:
        yield skipped("not in a container: numa.affinity judges a host")
        return
    folders = [*cgroup_paths(subject), "/sys/fs/cgroup/cpuset"]
    paths = [f"{folder}/cpuset.cpus.effective" for folder in folders]
    paths += ["/sys/fs/cgroup/cpuset/cpuset.effective_cpus", "/sys/fs/cgroup/cpuset/cpuset.cpus"]
    text = next((text for path in paths if (text := subject.read(path)).text), None)
    cpus = Bad("no cpuset can be read") if text is None else cpus_of_list(text.text or "")
    if isinstance(cpus, Bad) or text is None or not cpus:
        found = cpus.detail if isinstance(cpus, Bad) else "empty"
        yield unknown(
            "the container's CPUs are not told", Evidence(source=paths[0], found=found, expected="a CPU list")
        )
        return
    for gpu in subject.functions():
        near = cpus_of_list(gpu.local_cpulist or "")
        if isinstance(near, Bad) or not near:
            yield unknown(
                "which CPUs are near the GPU is not told", Evidence(source="local_cpulist", found="not told"), on=[gpu]
            )
            continue
        evidence = Evidence(source=text.path, found=list_of_cpus(cpus), expected=f"one of {gpu.local_cpulist}")
        if set(cpus) & set(near):
            yield passed("the container has CPUs near the GPU", evidence, on=[gpu])
        else:
            fix = [Fix(lines=(f"docker run --cpuset-cpus {gpu.local_cpulist} …",))]
            yield warned(f"the container has no CPU near the GPU: {list_of_cpus(cpus)}", evidence, on=[gpu], fix=fix)

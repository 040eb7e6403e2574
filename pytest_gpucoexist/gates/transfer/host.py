"""What copies do to the host's memory, and whether it is there for them: pinned, near, and otherwise left alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.gates.findings import Finding, failed, passed, unknown, warned
from pytest_gpucoexist.gates.registry import gate
from pytest_gpucoexist.gates.transfer.looking import arrow, gpus_of, nothing
from pytest_gpucoexist.model.verdicts import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject
    from pytest_gpucoexist.model.trials import Sample

_MIB = 1 << 20


@gate(
    "xfer.host_canary",
    group="transfer-integrity",
    title="Host memory is left alone",
    reads="64 MiB with known content, before and after all copies",
    criterion="unchanged",
    why="A device that writes where nobody told it to corrupts whatever lies there, the page cache too.",
    action="Stop and reboot: nothing on this machine can be trusted.",
    source="intel/compute-runtime#966",
    vendors=("nvidia", "amd"),
    level="transfer",
    severity="fail",
    blocking=True,
)
def host_canary(subject: Subject) -> Iterator[Finding]:
    """Look at the canary. Which device wrote cannot be told, so all are taken out."""
    if subject.trials is None:
        yield nothing(None)
        return
    fact: Any = subject.trials.facts.get("host_canary")
    if not isinstance(fact, dict):
        yield unknown("the canary was not looked at again after the copies")
        return
    size = f"canary of {fact['size_bytes'] / _MIB:g} MiB, {'locked' if fact['locked'] else 'not locked'}"
    if fact["changed"]:
        places = ", ".join(f"{at / _MIB:g} MiB" for at in fact["changed"][:8])
        evidence = Evidence(source=size, found=f"changed at {places}", expected="unchanged")
        yield failed("host memory that belongs to no copy was written to", evidence)
    else:
        yield passed("host memory was left alone", Evidence(source=size, found="unchanged"))


@gate(
    "xfer.hostreg",
    group="transfer-integrity",
    title="The runtimes pin the host's memory",
    reads="whether the memory of each timed copy could be registered with the runtimes of its ends",
    criterion="registered; no copy by the processor between",
    why="Otherwise copies between vendors need a copy by the processor as well, and cost memory bandwidth twice.",
    action="Raise the limit of locked memory (ulimit -l).",
    source="ROCm/legacy-rocm-build#1483; FlashML-org/FreeToken PR#56",
    vendors=("nvidia", "amd"),
    level="transfer",
)
def hostreg(subject: Subject) -> Iterator[Finding]:
    samples = _of_kinds(subject, "h2d", "d2h", "staged")
    for each in samples:
        gpus = gpus_of(subject, each.source, each.target)
        if each.route == "copied" or not each.pinned:
            why = "; ".join(each.notes) or "no reason was given"
            evidence = Evidence(source=arrow(each.source, each.target), found=why, expected="pinned by the runtime")
            yield warned("memory of the host could not be pinned: copies are slower", evidence, on=gpus)
        else:
            yield passed("memory of the host is pinned", on=gpus)
    if not samples:
        yield nothing(subject.trials)


@gate(
    "numa.host_buffer_node",
    group="numa",
    title="Buffers lie on the node that was asked for",
    reads="the node of the pages that each rate was measured with",
    criterion="the GPU's own node",
    why="A memory policy that is not permitted is ignored in silence, and the wrong socket has cost a factor of three.",
    action="numactl --membind; the seccomp profile of the container.",
    source="ROCm/TransferBench, CheckPages; mpicbg-scicomp/gearshifft PR#82",
    vendors=("nvidia", "amd"),
    level="transfer",
)
def host_buffer_node(subject: Subject) -> Iterator[Finding]:
    samples = _of_kinds(subject, "h2d", "d2h")
    for each in samples:
        gpus = gpus_of(subject, each.source, each.target)
        if each.node_is_local is None:
            yield unknown("the node of the buffer or of the GPU is not known", on=gpus)
        elif each.node_is_local:
            yield passed("the buffer lies on the GPU's node", on=gpus)
        else:
            own = ", ".join(str(gpu.numa_node) for gpu in gpus)
            evidence = Evidence(source="pages of the buffer", found=f"node {each.node}", expected=f"node {own}")
            yield warned(f"the buffer lies on node {each.node}, the GPU is on {own}", evidence, on=gpus)
    if not samples:
        yield nothing(subject.trials)


def _of_kinds(subject: Subject, *kinds: str) -> list[Sample]:
    return [each for each in subject.trials.samples if each.kind in kinds] if subject.trials is not None else []

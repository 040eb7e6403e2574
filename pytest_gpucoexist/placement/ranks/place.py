"""Whether this process is one rank of a job: several pytest processes that a launcher started together.

Read from the environment alone, by what each launcher documents and sets. A rank of a job of one is no rank, and so is
what has no number: then the process decides for itself.

    torchrun    RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT (docs.pytorch.org: torchrun)
    Open MPI    OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE (docs.open-mpi.org: environment variables)
    MPICH,      PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS (hydra's proxy; Intel MPI has the same)
    Slurm       SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID, SLURM_STEP_TASKS_PER_NODE, SLURM_NODEID (srun(1))

The innermost launcher comes first: torchrun is started by srun or mpirun, and both mpiruns start their own daemons as a
step of Slurm, whose variables reach the ranks. Slurm's count is that of the *step*: a batch script, and the workers
that `--tx 'N*popen//python=srun -n1 python'` starts, run in allocations of more tasks and are no ranks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["JOB", "VIEW", "Launcher", "RankPlace", "rank_of", "view_of"]

Launcher = Literal["torchrun", "Open MPI", "MPICH", "Slurm"]

JOB = "PYTEST_GPU_RANKS_JOB"
"""A rank's children find its job here: a pytest that a test of a rank starts is no rank of the same job."""

VIEW = (
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "ZE_AFFINITY_MASK",
    "ONEAPI_DEVICE_SELECTOR",
    "CUDA_DEVICE_ORDER",
    "SLURM_STEP_GPUS",
    "SLURM_JOB_GPUS",
)
"""Variables that decide which devices a process sees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """The place of a rank in its job. `job` is the same for all ranks of one job and for no other job alive."""

    launcher: Launcher
    rank: int
    size: int
    local_rank: int
    local_size: int
    job: str

    @property
    def nodes(self) -> bool:
        """Whether the job has ranks on other nodes too."""
        return self.local_size < self.size


def rank_of(environ: Mapping[str, str], parent_pid: int) -> RankPlace | None:
    """Return this process's place, or None when no launcher started more than one rank.

    `parent_pid` names the job where the launcher has no name for it: MPICH's proxy starts every rank of a node itself.
    """
    for read in (_torchrun, _open_mpi, _mpich, _slurm):
        place = read(environ, parent_pid)
        if place is not None and 0 <= place.local_rank < place.local_size <= place.size and place.rank < place.size:
            return place if place.size > 1 and environ.get(JOB) != place.job else None
    return None


def view_of(environ: Mapping[str, str], place: RankPlace) -> str:
    """Say through which masks a rank sees the devices; equal for ranks that see the same ones.

    Slurm may give each task devices of its own, and where it confines a task to them all masks read 0: there every rank
    has a view of its own.
    """
    masks = [f"{name}={environ[name]}" for name in VIEW if name in environ]
    if place.launcher == "Slurm" and any(mask.startswith("SLURM_") for mask in masks):
        masks.append(f"rank={place.rank}")
    return " ".join(masks)


def _torchrun(environ: Mapping[str, str], _parent: int) -> RankPlace | None:
    numbers = _numbers(environ, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    # Some of these names are also those of other tools: where its ranks meet is torch's alone.
    if numbers is None or not environ.get("MASTER_ADDR") or not environ.get("MASTER_PORT"):
        return None
    names = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
    return _place("torchrun", numbers, ":".join(environ.get(name, "") for name in names))


def _open_mpi(environ: Mapping[str, str], parent: int) -> RankPlace | None:
    prefix = "OMPI_COMM_WORLD_"
    numbers = _numbers(environ, *(prefix + name for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")))
    named = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid")
    job = next((environ[name] for name in named if environ.get(name)), f"parent {parent}")
    # The name alone may be counted from 1 in every container.
    return None if numbers is None else _place("Open MPI", numbers, f"{job}:{environ.get('PMIX_SERVER_TMPDIR', '')}")


def _mpich(environ: Mapping[str, str], parent: int) -> RankPlace | None:
    numbers = _numbers(environ, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
    return None if numbers is None else _place("MPICH", numbers, f"parent {parent}")


def _slurm(environ: Mapping[str, str], _parent: int) -> RankPlace | None:
    numbers = _numbers(environ, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NODEID")
    if numbers is None or not environ.get("SLURM_JOB_ID") or not environ.get("SLURM_STEP_ID"):
        return None
    rank, size, local, node = numbers
    per_node = tasks_per_node(environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    if node >= len(per_node):
        return None
    names = ("SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_NODEID")
    return _place("Slurm", (rank, size, local, per_node[node]), ":".join(environ.get(name, "") for name in names))


def tasks_per_node(text: str) -> list[int]:
    """Read Slurm's list of tasks per node, such as `2(x3),1`; empty where it is none."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:\(x(\d{1,6})\))?", part, re.ASCII)
        if match is None:
            return []
        found += [int(match[1])] * int(match[2] or 1)
    return found


def _numbers(environ: Mapping[str, str], *names: str) -> tuple[int, int, int, int] | None:
    values = [environ.get(name, "") for name in names]
    if not all(re.fullmatch(r"\d{1,9}", value, re.ASCII) for value in values):
        return None
    one, two, three, four = map(int, values)
    return one, two, three, four


def _place(launcher: Launcher, numbers: tuple[int, int, int, int], job: str) -> RankPlace:
    rank, size, local_rank, local_size = numbers
    return RankPlace(
        launcher=launcher,
        rank=rank,
        size=size,
        local_rank=local_rank,
        local_size=local_size,
        job=f"{launcher} {job}",
    )

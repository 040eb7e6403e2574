"""Whether a process is a rank, and of which job: pure functions over environments as launchers make them."""

from __future__ import annotations

import pytest

from pytest_gpucoexist.placement.ranks.place import JOB, rank_of, tasks_per_node, view_of
from tests.ranks.running import open_mpi, slurm, torchrun

PARENT = 4711

MPICH = {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4", "PMI_FD": "6"}

# As Slurm 22.05 gives them to task 3 of `srun -n5 -N2`, on the second node.
SECOND_NODE = {
    "SLURM_PROCID": "3", "SLURM_LOCALID": "0", "SLURM_NODEID": "1", "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_TASKS_PER_NODE": "3,2", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "5",
}  # fmt: skip


@pytest.mark.parametrize("launcher", [torchrun, open_mpi, slurm])
def test_all_ranks_of_a_job_have_one_name_and_other_jobs_another(launcher: object) -> None:
    places = [rank_of(launcher(rank, 4, "a"), PARENT) for rank in range(4)]  # type: ignore[operator]
    assert [place and place.rank for place in places] == [0, 1, 2, 3]
    assert [place and (place.local_rank, place.local_size) for place in places] == [(n, 4) for n in range(4)]
    assert len({place.job for place in places if place}) == 1
    other = rank_of(launcher(0, 4, "b"), PARENT)  # type: ignore[operator]
    assert other is not None
    assert places[0] is not None
    assert other.job != places[0].job


@pytest.mark.parametrize(
    ("environ", "launcher", "numbers"),
    [
        ({**MPICH}, "MPICH", (5, 8, 1, 4)),
        ({**SECOND_NODE}, "Slurm", (3, 5, 0, 2)),
        # torchrun, mpirun inside an allocation: their daemons are the tasks of Slurm's step.
        ({**SECOND_NODE, **torchrun(1, 2, "x")}, "torchrun", (1, 2, 1, 2)),
        ({**SECOND_NODE, **open_mpi(1, 2, "x")}, "Open MPI", (1, 2, 1, 2)),
        ({**SECOND_NODE, **MPICH}, "MPICH", (5, 8, 1, 4)),
        # A script that makes torch's names out of Slurm's: how many are here only Slurm says.
        (
            {**SECOND_NODE, "RANK": "3", "WORLD_SIZE": "5", "LOCAL_RANK": "0", "MASTER_ADDR": "n1", "MASTER_PORT": "1"},
            "Slurm",
            (3, 5, 0, 2),
        ),
    ],
)  # fmt: skip
def test_who_started_it(environ: dict[str, str], launcher: str, numbers: tuple[int, int, int, int]) -> None:
    place = rank_of(environ, PARENT)
    assert place is not None
    assert place.launcher == launcher
    assert (place.rank, place.size, place.local_rank, place.local_size) == numbers
    assert place.nodes is (numbers[3] < numbers[1])


@pytest.mark.parametrize(
    ("environ", "why"),
    [
        ({}, "nothing"),
        ({"RANK": "0", "WORLD_SIZE": "4"}, "names that other tools have too"),
        ({**torchrun(0, 1, "x")}, "a job of one"),
        ({**torchrun(0, 2, "x"), "RANK": "2"}, "a rank that cannot be"),
        ({**torchrun(0, 2, "x"), "RANK": "-1"}, "no number"),
        ({**torchrun(0, 2, "x"), "RANK": "\u0663"}, "no number that anybody writes"),
        ({**torchrun(0, 2, "x"), "MASTER_PORT": ""}, "no place where torch's ranks meet"),
        ({**slurm(0, 1, "x"), "SLURM_NTASKS": "4"}, "a worker by python=srun -n1 in an allocation of four tasks"),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "7"}, "a batch script"),
        ({**slurm(0, 2, "x"), "SLURM_STEP_TASKS_PER_NODE": "many"}, "what Slurm does not write"),
        ({**slurm(0, 2, "x"), "SLURM_NODEID": "3"}, "a node that is not in the list"),
    ],
)
def test_who_is_no_rank(environ: dict[str, str], why: str) -> None:
    assert rank_of(environ, PARENT) is None, why


def test_a_pytest_inside_a_rank_is_none_but_one_of_a_new_job_is() -> None:
    outer = rank_of(torchrun(1, 2, "a"), PARENT)
    assert outer is not None
    assert rank_of({**torchrun(1, 2, "a"), JOB: outer.job}, PARENT) is None
    assert rank_of({**torchrun(0, 2, "b"), JOB: outer.job}, PARENT) is not None


@pytest.mark.parametrize(
    ("text", "counts"), [("2(x3),1", [2, 2, 2, 1]), ("4", [4]), ("1,2(x2)", [1, 2, 2]), ("", []), ("2(x", [])]
)
def test_tasks_per_node(text: str, counts: list[int]) -> None:
    assert tasks_per_node(text) == counts


def test_ranks_with_the_same_masks_see_the_same_but_not_where_slurm_gave_each_its_own() -> None:
    masks = {"CUDA_VISIBLE_DEVICES": "0,1"}

    def view(launcher: object, rank: int, **more: str) -> str:
        environ = {**launcher(rank, 2, "x"), **masks, **more}  # type: ignore[operator]
        place = rank_of(environ, PARENT)
        assert place is not None
        return view_of(environ, place)

    assert view(torchrun, 0) == view(torchrun, 1)
    assert view(torchrun, 0) != view(torchrun, 1, CUDA_VISIBLE_DEVICES="1")
    assert view(slurm, 0) == view(slurm, 1)
    assert view(slurm, 0, SLURM_STEP_GPUS="0") != view(slurm, 1, SLURM_STEP_GPUS="0")

"""Ranks of one node: one decision and one lease for all, whatever started them."""

from __future__ import annotations

import sys

import pytest

from tests.fixtures.machines import NVIDIA0, NVIDIA1
from tests.ranks.running import Ranks, open_mpi, slurm, torchrun

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: ranks meet in its abstract namespace")


@pytest.fixture
def ranks(pytester: pytest.Pytester) -> Ranks:
    return Ranks(pytester)


@pytest.mark.parametrize("launcher", [torchrun, open_mpi, slurm])
def test_each_rank_has_a_device_of_its_own(ranks: Ranks, launcher: object) -> None:
    ranks.pytester.makepyfile(
        """
        import pytest

        @pytest.mark.cuda
        def test_one(gpu, say): say(keys=[gpu.pci_address])

        @pytest.mark.cuda(count=2)
        def test_two(gpus): raise AssertionError

        @pytest.mark.rocm
        def test_amd(gpu): raise AssertionError

        def test_cpu(): pass
        """
    )
    ended = ranks.run(2, launcher=launcher)
    for rank in ended:
        assert rank.status == 0, rank.text
        assert rank.outcomes == "2 passed, 2 skipped"
        assert "needs 4 NVIDIA GPUs with CUDA (2 NVIDIA GPUs with CUDA for each of 2 ranks" in rank.text
        assert "needs 2 AMD GPUs with ROCm (1 AMD GPU with ROCm for each of 2 ranks on this node); found 1" in rank.text
    assert {each["rank"]: each["keys"] for each in ranks.said} == {0: [NVIDIA0], 1: [NVIDIA1]}
    assert "2 ranks of " in ended[0].text

"""Ranks of one node: one decision and one lease for all, whatever started them."""

from __future__ import annotations

import json
import os
import sys
import time

import pytest

from tests.fixtures.machines import AMD0, NVIDIA0, NVIDIA1
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
        assert "needs 2 AMD GPUs with ROCm (1 AMD GPU with ROCm for each of 2 ranks on this node); found" in rank.text
    assert {each["rank"]: each["keys"] for each in ranks.said} == {0: [NVIDIA0], 1: [NVIDIA1]}
    assert "2 ranks of " in ended[0].text


def test_the_lease_lasts_until_the_last_rank_has_ended(ranks: Ranks) -> None:
    """Another session asks for the device of a rank that has ended its test, while another rank has not."""
    ranks.pytester.makepyfile(
        test_ranks="""
        import os, pathlib, pytest, time

        @pytest.mark.cuda
        def test_slow(gpu, say):
            say(keys=[gpu.pci_address])
            while os.environ["RANK"] == "1" and not pathlib.Path("go").exists():
                time.sleep(0.02)

        def test_after(say): say()
        """,
        test_other="""
        import pytest

        @pytest.mark.cuda
        def test_other(gpu): pass
        """,
    )
    folder = {"PYTEST_GPU_LEASE_DIR": str(ranks.path)}
    started = ranks.start(2, "test_ranks.py", environ=folder)
    while len(ranks.said) < 2 and all(process.poll() is None for process in started):
        time.sleep(0.02)
    try:
        records = [json.loads(path.read_text()) for path in (ranks.path / str(os.getuid())).glob("*.json")]
        assert {each["pid"] for each in records} >= {process.pid for process in started}, "no rank is a stranger"
        alone = {"launcher": lambda *_: {}, "environ": {**folder, "PYTEST_GPU_WAIT": "0"}}
        (busy,) = ranks.run(1, "test_other.py", **alone)
        assert busy.outcomes == "1 error", busy.text
        assert "test_ranks.py::test_slow" in busy.text
    finally:
        (ranks.path / "go").touch()
        ended = ranks.wait(started)
    assert [rank.outcomes for rank in ended] == ["2 passed"] * 2, ended[0].text
    (free,) = ranks.run(1, "test_other.py", **alone)
    assert free.outcomes == "1 passed", free.text
    assert [path.name for path in (ranks.path / str(os.getuid())).glob("*.json")] == []


def test_wider_fixtures_keep_the_device_of_each_rank(ranks: Ranks) -> None:
    ranks.pytester.makepyfile(
        """
        import pytest

        class TestCard:
            @pytest.mark.cuda
            @pytest.mark.parametrize("n", range(2))
            def test_card(self, class_gpu, n, say): say(keys=[class_gpu.pci_address])

        @pytest.mark.cuda
        def test_after(gpu, say): say(keys=[gpu.pci_address])
        """
    )
    ended = ranks.run(2)
    assert [rank.outcomes for rank in ended] == ["3 passed"] * 2, ended[0].text
    for rank, key in enumerate((NVIDIA0, NVIDIA1)):
        assert [each["keys"] for each in ranks.said if each["rank"] == rank] == [[key]] * 3


def test_a_wider_fixture_does_not_ask_for_tests_that_not_all_ranks_can_run(ranks: Ranks) -> None:
    """The class is planned as a whole: one rank alone could run its second test, two cannot."""
    ranks.pytester.makepyfile(
        """
        import pytest

        class TestCards:
            @pytest.mark.cuda
            def test_one(self, class_gpu, say): say(keys=[class_gpu.pci_address])

            @pytest.mark.cuda(count=2)
            def test_two(self, class_gpu, gpus): raise AssertionError
        """
    )
    ended = ranks.run(2)
    assert [rank.outcomes for rank in ended] == ["1 passed, 1 skipped"] * 2, ended[0].text
    assert {each["rank"]: each["keys"] for each in ranks.said} == {0: [NVIDIA0], 1: [NVIDIA1]}


def test_a_device_that_one_rank_lost_is_lost_for_all(ranks: Ranks) -> None:
    ranks.pytester.makepyfile(
        f"""
        import os, pytest
        from pytest_gpucoexist.session.state import GPU_SESSION

        @pytest.mark.cuda
        def test_first(gpu, request, say):
            say()
            if os.environ["RANK"] == "1":
                request.config.stash[GPU_SESSION].take_out({{"{NVIDIA1}": "dev.gone: it is gone"}})

        @pytest.mark.cuda
        def test_second(gpu): raise AssertionError

        @pytest.mark.gpu
        def test_third(gpu, say): say(keys=[gpu.pci_address])
        """
    )
    ended = ranks.run(2)
    for rank in ended:
        assert rank.outcomes == "2 passed, 1 error", rank.text
        assert "dev.gone: it is gone" in rank.text
    assert {each["rank"]: each.get("keys") for each in ranks.said} == {0: [NVIDIA0], 1: [AMD0]}


def test_a_fixture_that_fails_on_one_rank_holds_nobody_up(ranks: Ranks) -> None:
    ranks.pytester.makepyfile(
        """
        import os, pytest

        @pytest.fixture
        def only_on_one(gpu_leases):
            if os.environ["RANK"] == "1":
                raise ValueError("only here")

        @pytest.mark.gpu
        def test_error(only_on_one, gpu, say): say()

        @pytest.mark.gpu
        def test_after(gpu, say): say()
        """
    )
    ended = ranks.run(2)
    assert ended[0].outcomes == "2 passed", ended[0].text
    assert ended[1].outcomes == "1 passed, 1 error", ended[1].text


def test_each_rank_sees_through_its_own_masks(ranks: Ranks) -> None:
    """As srun does it, with a device for each task: together they have two, and each would do with its own."""
    conftest = ranks.path / "conftest.py"
    conftest.write_text(
        conftest.read_text().replace(
            "return replace(machine, simulated=False)",
            "from pytest_gpucoexist.model.visibility.apply import apply_masks\n"
            "    return apply_masks(os.environ, replace(machine, simulated=False))",
        )
    )
    ranks.pytester.makepyfile(
        """
        import pytest

        @pytest.mark.cuda
        def test_one(gpu, say): say(keys=[gpu.pci_address])

        @pytest.mark.cuda(count=2)
        def test_two(gpus): raise AssertionError
        """
    )

    def launcher(rank: int, size: int, job: str) -> dict[str, str]:
        return {**torchrun(rank, size, job), "CUDA_VISIBLE_DEVICES": str(1 - rank), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}

    ended = ranks.run(2, launcher=launcher)
    for rank in ended:
        assert rank.outcomes == "1 passed, 1 skipped", rank.text
        assert "hidden by CUDA_VISIBLE_DEVICES=" in rank.text
    assert {each["rank"]: each["keys"] for each in ranks.said} == {0: [NVIDIA1], 1: [NVIDIA0]}


def test_reports_of_ranks_do_not_overwrite_each_other(ranks: Ranks) -> None:
    ranks.pytester.makepyfile("import pytest\n@pytest.mark.cuda\ndef test_one(gpu): pass\n")
    ended = ranks.run(2, "--gpu-report=out/report.json", "--junitxml=junit.xml", "--gpu-write-skips=skips.txt")
    assert [rank.outcomes for rank in ended] == ["1 passed"] * 2, ended[0].text
    for suffix, key in (("", NVIDIA0), (".rank1", NVIDIA1)):
        report = json.loads((ranks.path / f"out/report{suffix}.json").read_text())
        assert [each["key"] for each in report["tests"][0]["devices"]] == [key]
        assert key in (ranks.path / f"junit{suffix}.xml").read_text()
        assert (ranks.path / f"skips{suffix}.txt").exists()


def test_files_that_ranks_name_themselves_stay_as_they_are(ranks: Ranks) -> None:
    ranks.pytester.makepyfile("import pytest\n@pytest.mark.cuda\ndef test_one(gpu): pass\n")
    ended = ranks.run(2, each=lambda rank: [f"--junitxml=of-{rank}.xml", f"--gpu-report=of-{rank}.html"])
    assert [rank.outcomes for rank in ended] == ["1 passed"] * 2, ended[0].text
    assert sorted(path.name for path in ranks.path.glob("of-*")) == ["of-0.html", "of-0.xml", "of-1.html", "of-1.xml"]


@pytest.mark.parametrize(("promise", "status"), [("cuda:2", 0), ("cuda:3", 69)])
def test_what_was_promised_is_compared_with_what_all_ranks_need(ranks: Ranks, promise: str, status: int) -> None:
    """Two cards are promised and there: four ranks want more than that, which nobody promised."""
    ranks.pytester.makepyfile(
        """
        import pytest

        @pytest.mark.cuda
        def test_one(gpu): raise AssertionError

        @pytest.mark.cuda(memory="1 GiB")
        def test_share(gpu): pass
        """
    )
    ended = ranks.run(4, f"--gpu-require={promise}")
    assert [rank.status for rank in ended] == [status] * 4, ended[0].text
    if not status:
        assert {rank.outcomes for rank in ended} == {"1 passed, 1 skipped"}


def test_off_leaves_each_rank_to_itself(ranks: Ranks) -> None:
    ranks.pytester.makepyfile("import pytest\n@pytest.mark.cuda(count=2)\ndef test_two(gpus): pass\n")
    ended = ranks.run(2, "--gpu-ranks=off", "--gpu-lease=off")
    assert [rank.outcomes for rank in ended] == ["1 passed"] * 2, ended[0].text
    assert "ranks of torchrun" not in ended[0].text


def test_pytest_inside_a_test_of_a_rank_is_no_rank(ranks: Ranks) -> None:
    ranks.pytester.makepyfile(
        test_outer="""
        import os, pytest, subprocess, sys

        OFF = ["-p", "gpucoexist"] if "PYTEST_DISABLE_PLUGIN_AUTOLOAD" in os.environ else []

        @pytest.mark.cuda
        def test_outer(gpu):
            command = [sys.executable, "-m", "pytest", *OFF, "-p", "no:cacheprovider", "--gpu-machine=machine.json"]
            done = subprocess.run([*command, "test_inner.py"], capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done.stdout
            assert "ranks" not in done.stdout
        """,
        test_inner="""
        import pytest

        @pytest.mark.cuda
        def test_inner(gpu): pass
        """,
    )
    ended = ranks.run(2, "test_outer.py")
    assert [rank.outcomes for rank in ended] == ["1 passed"] * 2, ended[0].text


def test_a_job_without_a_gpu_test_is_left_alone(ranks: Ranks) -> None:
    ranks.pytester.makepyfile("def test_cpu(): pass\n")
    ended = ranks.run(2, each=lambda rank: ["--co"] if rank else [])
    assert [rank.status for rank in ended] == [0, 0]

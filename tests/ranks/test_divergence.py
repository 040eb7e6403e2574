"""Ranks that do not come together: everybody fails with words, and nobody hangs."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest

from tests.ranks.running import LIMIT_S, Ranks

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: ranks meet in its abstract namespace")

PAIR = """
    import os, pytest, time
    RANK = int(os.environ["RANK"])

    @pytest.mark.gpu
    def test_first(say): say()

    @pytest.mark.gpu
    def test_second(say): say()
    """


@pytest.fixture
def ranks(pytester: pytest.Pytester) -> Ranks:
    return Ranks(pytester)


def test_different_selections_fail_everywhere_before_a_test_runs(ranks: Ranks) -> None:
    ranks.pytester.makepyfile(PAIR)
    ended = ranks.run(3, "--junitxml=junit.xml", each=lambda rank: ["-k", "first"] if rank == 2 else [])
    for rank in ended:
        assert rank.status == 1, rank.text
        assert "rank 0 selected 2 tests and rank 2 1 (1 only on rank 0, such as " in rank.text
    assert ranks.said == []
    assert 'errors="1"' in (ranks.path / "junit.xml").read_text()


def test_the_same_tests_in_another_order(pytester: pytest.Pytester) -> None:
    ranks = Ranks(
        pytester,
        conftest="""
def pytest_collection_modifyitems(items):
    if os.environ["RANK"] == "1":
        items.reverse()
""",
    )
    ranks.pytester.makepyfile(PAIR)
    for rank in ranks.run(2):
        assert rank.status == 1, rank.text
        assert "are in different orders (test 1 is " in rank.text
        assert "--randomly-seed" in rank.text
    assert ranks.said == []


def test_different_options(ranks: Ranks) -> None:
    ranks.pytester.makepyfile(PAIR)
    for rank in ranks.run(2, each=lambda rank: ["--gpu-missing=fail"] if rank else []):
        assert rank.status == 1
        assert "--gpu-missing is not given on rank 0, fail on rank 1" in rank.text


@pytest.mark.parametrize("missing", [0, 1])
def test_a_rank_without_gpu_tests_is_not_waited_for_for_ever(ranks: Ranks, missing: int) -> None:
    """It asks nobody anything, as any session without a test that needs a GPU."""
    ranks.pytester.makepyfile(PAIR + "\n    def test_cpu(): pass\n")
    ended = ranks.run(
        2, environ={"PYTEST_GPU_RANK_DEADLINE": "1"}, each=lambda rank: ["-k", "cpu"] if rank == missing else []
    )
    assert ended[missing].outcomes == "1 passed, 2 deselected"
    assert ended[1 - missing].status == 1
    assert "did not come" in ended[1 - missing].text
    assert ranks.said == []


def test_an_error_of_collection_on_one_rank(ranks: Ranks) -> None:
    ranks.pytester.makepyfile(
        test_a=PAIR,
        test_b="import os\nif os.environ['RANK'] == '1': raise ValueError('only here')\ndef test_b(): pass\n",
    )
    ended = ranks.run(2)
    assert [rank.status for rank in ended] == [1, 1]
    assert "only on rank 0, such as test_b.py::test_b" in ended[0].text
    assert "only here" in ended[1].text


@pytest.mark.parametrize("leaving", [0, 1])
def test_a_rank_that_ends_early_takes_the_others_with_it(ranks: Ranks, leaving: int) -> None:
    ranks.pytester.makepyfile(
        f"""
        import os, pytest

        @pytest.mark.gpu
        def test_first(say): say()

        def test_cpu(): assert os.environ["RANK"] != "{leaving}"

        @pytest.mark.gpu
        def test_second(say): say()
        """
    )
    ended = ranks.run(3, "-x")
    assert ended[leaving].status == 1
    assert "1 failed, 1 passed" in ended[leaving].outcomes
    for rank, other in enumerate(ended):
        if rank != leaving:
            assert other.status == 2, other.text
            assert "2 passed" in other.outcomes
            assert f"another rank: rank {leaving} ended its run (stopping after 1 failures)" in other.text
    assert {each["test"] for each in ranks.said} == {"test_first"}


@pytest.mark.parametrize("dying", [0, 1])
def test_a_rank_that_is_killed_between_tests(ranks: Ranks, dying: int) -> None:
    ranks.pytester.makepyfile(
        f"""
        import os, pytest, signal

        @pytest.mark.gpu
        def test_first(say):
            say()
            if os.environ["RANK"] == "{dying}":
                os.kill(os.getpid(), signal.SIGKILL)

        @pytest.mark.gpu
        def test_second(say): say()
        """
    )
    ended = ranks.run(3)
    assert ended[dying].status == -signal.SIGKILL
    for rank, other in enumerate(ended):
        if rank != dying:
            assert other.status == 1, other.text
            assert f"no longer together: rank {dying} died" in other.text
    assert {each["test"] for each in ranks.said} == {"test_first"}


WAITS = """
    import os, pytest, signal, threading, time

    @pytest.mark.gpu
    def test_collective(gpu, say):
        if os.environ["RANK"] == "{dying}":
            say()
            os.kill(os.getpid(), signal.SIGKILL)
        {wait}

    @pytest.mark.gpu
    def test_after(say): say()
    """


@pytest.mark.slow
@pytest.mark.parametrize("dying", [0, 1])
def test_who_waits_inside_a_test_for_a_rank_that_died_is_interrupted(ranks: Ranks, dying: int) -> None:
    ranks.pytester.makepyfile(WAITS.format(dying=dying, wait="time.sleep(600)"))
    ended = ranks.run(2, environ={"PYTEST_GPU_RANK_DEADLINE": "8"})
    assert ended[1 - dying].status == 2, ended[1 - dying].text
    assert "KeyboardInterrupt" in ended[1 - dying].text
    assert {each["test"] for each in ranks.said} == {"test_collective"}


@pytest.mark.slow
def test_a_wait_that_ignores_signals_ends_with_the_process(ranks: Ranks) -> None:
    wait = "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT]); time.sleep(600)"
    ranks.pytester.makepyfile(WAITS.format(dying=1, wait=wait))
    ended = ranks.run(2, environ={"PYTEST_GPU_RANK_DEADLINE": "8"})
    assert ended[0].status == 76, ended[0].text
    assert "rank 1 died; the test that ran here did not end: this process does" in ended[0].text
    assert "in test_collective" in ended[0].text


def test_one_rank_that_asks_alone_inside_a_test_is_refused(ranks: Ranks) -> None:
    ranks.pytester.makepyfile(
        """
        import os, pytest

        @pytest.mark.gpu
        def test_first(gpu_leases, say):
            if os.environ["RANK"] == "1":
                with gpu_leases.acquire("gpu"):
                    raise AssertionError
            say()

        @pytest.mark.gpu
        def test_second(say): say()
        """
    )
    ended = ranks.run(2)
    assert ended[0].outcomes == "2 passed", ended[0].text
    assert ended[1].outcomes == "1 failed, 1 passed"
    assert "rank 0 did not ask for devices here" in ended[1].text


def test_a_child_that_outlives_a_dead_rank_does_not_hide_its_death(ranks: Ranks) -> None:
    """A forked child has a copy of the connection."""
    ranks.pytester.makepyfile(
        """
        import os, pytest, signal, time

        @pytest.mark.gpu
        def test_first(say):
            if os.environ["RANK"] == "1":
                child = os.fork()
                if child == 0:
                    time.sleep(600)
                    os._exit(0)
                say(child=child)
                os.kill(os.getpid(), signal.SIGKILL)

        @pytest.mark.gpu
        def test_second(say): say()
        """
    )
    started = ranks.start(2)
    try:
        assert started[0].wait(LIMIT_S) == 1
    finally:
        for said in ranks.said:
            os.kill(int(str(said["child"])), signal.SIGKILL)
        ended = ranks.wait(started)
    assert "rank 1 died" in ended[0].text
    assert len(ranks.said) == 1


def test_ctrl_c_on_all_ranks_leaves_nothing(ranks: Ranks) -> None:
    ranks.pytester.makepyfile(
        """
        import pytest, time

        @pytest.mark.gpu
        def test_first(say):
            say()
            time.sleep(600)
        """
    )
    started = ranks.start(2)
    while len(ranks.said) < 2 and all(process.poll() is None for process in started):
        time.sleep(0.05)
    for process in started:
        os.kill(process.pid, signal.SIGINT)
    ended = ranks.wait(started)
    assert [rank.status for rank in ended] == [2, 2], ended[0].text

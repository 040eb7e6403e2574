"""pytest-randomly: another order and a seed before each test change neither ids nor what a test is given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.beside.running import AMD1, NVIDIA0, NVIDIA1, workers

if TYPE_CHECKING:
    from tests.beside.running import Suite

pytestmark = pytest.mark.slow

SUITE = """
    import random
    import pytest
    from conftest import note

    def told(request, gpus):
        note("given", [request.node.name, [gpu.key for gpu in gpus], random.random()])

    def test_each_gpu(request, each_gpu, gpus):
        assert gpus == (each_gpu,)
        told(request, gpus)

    def test_each_vendor(request, each_vendor, gpu):
        assert gpu.vendor == each_vendor
        told(request, [gpu])

    @pytest.mark.parametrize("n", range(4))
    def test_any(request, gpus, n): told(request, gpus)

    @pytest.mark.cuda(count=2)
    def test_two(request, gpus): told(request, gpus)

    @pytest.mark.rocm(arch="gfx1100")
    def test_one_candidate(request, gpus): told(request, gpus)

    @pytest.mark.parametrize("n", range(3))
    def test_module(request, module_gpu, gpus, n):
        assert module_gpu in gpus
        note("module", module_gpu.key)
        told(request, gpus)

    @pytest.mark.cuda(memory="40 GiB")
    def test_module_of_one_kind(request, module_gpu, gpus):
        note("module", module_gpu.key)
        told(request, gpus)

    @pytest.mark.cuda(count=3)
    def test_missing(gpus): pass
    """


def runs(beside: Suite, workers: int, *arguments: str) -> dict[str, Any]:
    """Return, for every test in the order in which it ran, what it was given."""
    for kind in ("given", "module"):
        (beside.path / f"{kind}.log").unlink(missing_ok=True)
    dist = ("--dist=loadfile",) if workers else ()
    result = beside.run(*arguments, *dist, "--gpu-expect-skips=1", plugins=("randomly",), workers=workers)
    result.assert_outcomes(passed=15, skipped=1)
    assert result.ret == 0
    assert beside.held() == {}
    return {name: (keys, number) for name, keys, number in beside.noted("given")}


@workers
def test_another_order_same_tests_valid_devices(beside: Suite, workers: int) -> None:
    beside.pytester.makepyfile(SUITE)
    first = runs(beside, workers, "--randomly-seed=1")
    second = runs(beside, workers, "--randomly-seed=2")
    assert list(first) != list(second)
    assert first.keys() == second.keys()
    for given in (first, second):
        assert {name for name in given if name.startswith("test_each_gpu")} == {
            f"test_each_gpu[{ident}]" for ident in ("nvidia0", "nvidia1", "amd1")
        }
        assert given["test_each_gpu[nvidia1]"][0] == [NVIDIA1]
        assert sorted(given["test_two"][0]) == [NVIDIA0, NVIDIA1]
        assert given["test_one_candidate"][0] == [AMD1]
        # Whichever test comes first, the choice for the module serves all tests that share it.
        assert set(beside.noted("module")) == {NVIDIA1}


def test_the_seed_before_each_test_is_left_alone(beside: Suite) -> None:
    beside.pytester.makepyfile(
        """
        import random
        import pytest
        from conftest import note

        @pytest.mark.cuda
        @pytest.mark.parametrize("n", range(3))
        def test_it(n):
            note("numbers", random.random())
        """
    )
    beside.pytester.makeini("[pytest]\nmarkers = cuda: for the run without the plugin")
    beside.run("--randomly-seed=7", on=(), plugins=("randomly",), us=False)
    without = beside.noted("numbers")
    (beside.path / "numbers.log").unlink()
    beside.pytester.makeini("[pytest]\ngpu_marks = cuda: gpu")
    beside.run("--randomly-seed=7", plugins=("randomly",)).assert_outcomes(passed=3)
    assert len(without) == 3
    assert beside.noted("numbers") == without

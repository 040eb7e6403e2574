"""Scopes that outlive a worker's last test: what they keep is given back before others wait for it in vain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.fixtures.running import needs_xdist
from tests.placement.planned import Planned

if TYPE_CHECKING:
    import pytest

WHOLE_SESSION = """
import pytest

@pytest.mark.parametrize("i", range(4))
def test_session(session_gpu, i): pass
"""

# The fixture's device is one of three that its module takes at once: the plan knows of the fixture's alone.
MODULES = """
import pytest

@pytest.mark.parametrize("i", range(2))
def test_module(module_gpu, i): pass

@pytest.mark.cuda(count=2)
def test_pair(module_gpu): pass

class TestClass:
    @pytest.mark.rocm
    def test_rocm(self, class_gpu): pass

    @pytest.mark.gpu(count=3)
    def test_three(self): pass

@pytest.mark.cuda
def test_last(): pass
"""


@needs_xdist
def test_devices_of_a_scope_whose_tests_are_over_are_not_waited_for_for_ever(pytester: pytest.Pytester) -> None:
    suite = Planned(pytester, test_a=WHOLE_SESSION, test_b=MODULES, test_c=MODULES)
    suite.run(workers=4).assert_outcomes(passed=16)
    assert len(suite.ran()) == 16


PAIRS = """
import pytest

@pytest.mark.parametrize("i", range(3))
def test_pair(gpu_pair, i): pass

@pytest.mark.gpu(count=2)
@pytest.mark.parametrize("i", range(3))
def test_two(gpus, i): pass

@pytest.mark.parametrize("i", range(3))
def test_rocm(rocm_gpu, i): pass

@pytest.mark.parametrize("i", range(2))
def test_cuda(cuda_gpu, i): pass
"""


@needs_xdist
def test_modules_that_keep_their_devices_do_not_wait_for_each_other_for_ever(pytester: pytest.Pytester) -> None:
    suite = Planned(pytester, **{f"test_{name}": PAIRS for name in "abcd"})
    suite.run("--gpu-lease=module", workers=3).assert_outcomes(passed=44)
    assert len(suite.ran()) == 44

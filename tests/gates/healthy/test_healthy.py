"""No wolf: nothing fails on a healthy machine, and enough is decided on it.

After a gate was added or changed, write the table anew and look at what became different:
`python -m tests.gates.layouts.write`.
"""

from __future__ import annotations

import pytest

from pytest_gpucoexist.gates.runner import judge
from pytest_gpucoexist.host import local_host
from tests.gates.healthy.machines import HEALTHY, RECORDED, TABLE
from tests.gates.judging import subject_of
from tests.gates.layouts.checking import check_healthy


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_machine_is_not_accused(name: str) -> None:
    check_healthy(TABLE, name, HEALTHY[name]())


@pytest.mark.usefixtures("shared")
def test_every_kind_of_recording_is_here() -> None:
    assert len(RECORDED) >= 45


def test_this_computer_is_not_accused() -> None:
    """A computer that runs this suite may have GPUs and faults of its own: what is bare has none."""
    subject = subject_of(local_host(), deadline_s=60.0)
    if subject.gpus():
        pytest.skip("needs a computer without GPUs: this one has some, and may rightly be accused")
    judgement = judge(subject)
    assert [v for v in judgement.verdicts if v.status in {"FAIL", "ERROR"} or v.blocks] == []
    assert judgement.fit is not False

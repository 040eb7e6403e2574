"""torch's own mask parsers and ours, on the same variables.

torch's CPU build has the whole Python side: `_parse_visible_devices` for CUDA and for ROCm, and the search by UUID.
It lives in an environment of its own, named by `GPUCOEXIST_TORCH_PYTHON`.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pytest_gpucoexist.model.visibility import torch_entries, torch_rocm_entries
from pytest_gpucoexist.model.visibility.cuda import select_cuda
from pytest_gpucoexist.model.visibility.order import count_cuda
from tests.model.visibility.machines import MIG_UUIDS, NVIDIA_UUIDS, machine, nvidia
from tests.model.visibility.test_env_semantics import CELLS, CUDA, TORCH, VALUES, prefix_of

pytestmark = pytest.mark.slow

VARIABLE = "GPUCOEXIST_TORCH_PYTHON"
TWINS = ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f7",)
MACHINE = machine(nvidia(0), nvidia(1), nvidia(2, uuid=TWINS[0]))
UUIDS = [gpu.uuid for gpu in MACHINE.gpus]

ENTRIES = [
    "0",
    "1",
    "2",
    "9",
    "-1",
    "",
    " 1",
    "01",
    "0x1",
    "1gpu2",
    "gpu",
    NVIDIA_UUIDS[0],
    NVIDIA_UUIDS[1][:9],
    "GPU-8932",
]
LISTS = [
    *ENTRIES,
    *(",".join(pair) for pair in itertools.product(ENTRIES, repeat=2)),
    "0,1,0",
    "2,-1,2",
    "0,9,0",
    "1,0,2",
]
LISTS += [",".join(MIG_UUIDS), f"{MIG_UUIDS[0]},{MIG_UUIDS[0]}", f"{MIG_UUIDS[0]},0"]
SHORT = [None, "", "-1", "0", "1,0", "0,0", "0,9", "0, 1", "01", "0x1", "GPU-a,GPU-b", "GPU-XX"]


@pytest.fixture(scope="module")
def ask() -> Any:
    """Put questions to torch, all in one process."""
    python = os.environ.get(VARIABLE)
    if not python:
        pytest.skip(f"{VARIABLE} names no interpreter with torch's CPU build (.ci/run makes one)")
    script = Path(__file__).with_name("torch_side.py")

    def call(questions: list[dict[str, Any]]) -> list[dict[str, Any]]:
        environ = {name: value for name, value in os.environ.items() if not name.endswith("VISIBLE_DEVICES")}
        done = subprocess.run(
            [python, str(script)],
            input=json.dumps(questions),
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
            env=environ,
        )
        answers: list[dict[str, Any]] = json.loads(done.stdout)
        return answers

    return call


def question(environ: dict[str, str], *, rocm: bool) -> dict[str, Any]:
    return {"environ": environ, "rocm": rocm, "uuids": UUIDS}


def test_torch_for_cuda(ask: Any) -> None:
    answers = ask([question({"CUDA_VISIBLE_DEVICES": value}, rocm=False) for value in LISTS])
    counted = count_cuda(MACHINE, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    for value, answer in zip(LISTS, answers, strict=True):
        assert list(torch_entries(value)) == answer["entries"], value
        if not value.startswith("MIG-"):
            ours = [counted.keys.index(key) for key in select_cuda(value, counted, MACHINE.gpus).devices]
            assert ours == answer["ordinals"], value


def test_torch_for_rocm(ask: Any) -> None:
    names = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
    environs = [
        {name: value for name, value in zip(names, values, strict=True) if value is not None}
        for values in itertools.product(SHORT, repeat=3)
    ]
    errors = 0
    for environ, answer in zip(environs, ask([question(environ, rocm=True) for environ in environs]), strict=True):
        if "error" in answer:
            errors += 1
            with pytest.raises(ValueError, match="HIP_VISIBLE_DEVICES has more entries"):
                torch_rocm_entries(environ)
            continue
        ours = torch_rocm_entries(environ)
        # Unset is 64 indices in torch: whatever the runtime has.
        assert (list(range(64)) if ours is None else list(ours)) == answer["entries"], environ
    assert errors > 0


def test_the_tables_column_of_torch(ask: Any) -> None:
    """Where the table tells what torch makes of a value, torch itself says the same."""
    rows = [row for row, column in CELLS if column == TORCH and isinstance(CELLS[row, column][1], list)]
    values = [prefix_of(TORCH) if VALUES[row] == "<prefix>" else VALUES[row] for row in rows]
    answers = ask([question({"HIP_VISIBLE_DEVICES": value or ""}, rocm=True) for value in values])
    for row, value, answer in zip(rows, values, answers, strict=True):
        expected: Any = CELLS[row, TORCH][1]
        assert answer["entries"] == ([value] if row == "GPU-<prefix>" else expected), row


def test_the_tables_cells_of_cuda_that_come_from_torch(ask: Any) -> None:
    rows = [
        row
        for row, column in CELLS
        if column == CUDA and isinstance(CELLS[row, column][1], list) and VALUES[row] is not None
    ]
    rows = [row for row in rows if not row.startswith("GPU-")]
    answers = ask([question({"CUDA_VISIBLE_DEVICES": VALUES[row] or ""}, rocm=False) for row in rows])
    for row, answer in zip(rows, answers, strict=True):
        assert [ordinal for ordinal in answer["ordinals"] if ordinal < 2] == CELLS[row, CUDA][1], row

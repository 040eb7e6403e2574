"""Every cell of the table of edge cases, in words of our own and as the table beside the checkout says it."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, Literal

import pytest

from pytest_gpucoexist.model.visibility.cuda import select_cuda
from pytest_gpucoexist.model.visibility.intel import select_level_zero
from pytest_gpucoexist.model.visibility.order import count_cuda
from pytest_gpucoexist.model.visibility.rocm import select_hip, select_rocr
from pytest_gpucoexist.model.visibility.torch_rocm import torch_rocm_entries
from tests.model.visibility.machines import AMD_UNIQUE, NVIDIA_UUIDS, amd, intel, machine, nvidia

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpucoexist.model.visibility.tokens import Selection

Outcome = list[int] | Literal["all", "throws", "not said"]

COLUMNS = (
    "CUDA_VISIBLE_DEVICES@CUDA",
    "ROCR_VISIBLE_DEVICES@ROCR_linux",
    "HIP_VISIBLE_DEVICES@clr_linux",
    "torch_rocm_python_count",
    "ZE_AFFINITY_MASK@NEO",
)
CUDA, ROCR, HIP, TORCH, ZE = COLUMNS

NVIDIA = machine(nvidia(0), nvidia(1))
AMD = (amd(0), amd(1))
INTEL = (intel(0), intel(1))
ROCM7_UUID = "GPU-4b2c1a9f-8e7d-6c5b-3a29-18f7e6d5c4b3"


def prefix_of(column: str) -> str:
    if column == CUDA:
        return NVIDIA_UUIDS[1][:12]
    return f"GPU-{AMD_UNIQUE[1]:016x}"[:12]


# What stands in the table -> the value of the variable, by column where a UUID must be the vendor's own.
VALUES: dict[str, str | None] = {
    "<unset>": None,
    "<empty>": "",
    "-1": "-1",
    "0,9  (9 out of range)": "0,9",
    "9,0": "9,0",
    "0,0": "0,0",
    "0, 1  (space)": "0, 1",
    "01": "01",
    "0x1": "0x1",
    "0,,1": "0,,1",
    "GPU-<prefix>": "<prefix>",
    "GPU-<36 char uuid as in ROCm 7 docs>": ROCM7_UUID,
    "GPU-XX": "GPU-XX",
    "1,0": "1,0",
}

# (row, column) -> the table's words, and the indices that remain of two GPUs (for torch: the entries that it counts).
CELLS: dict[tuple[str, str], tuple[str, Outcome]] = {
    ("<unset>", CUDA): ("all (d)", "all"),
    ("<unset>", ROCR): ("all (s)", "all"),
    ("<unset>", HIP): ("uses CUDA_VISIBLE_DEVICES, else all (s)", "all"),
    ("<unset>", TORCH): ("ROCR, then HIP, else CUDA var (s)", "all"),
    ("<unset>", ZE): ("all (s)", "all"),
    ("<empty>", CUDA): ("none (d)", []),
    ("<empty>", ROCR): ("none (s)", []),
    ("<empty>", HIP): ("same as unset (s, bug reports)", "all"),
    ("<empty>", TORCH): ("HIP='' -> 0; ROCR='' -> 1 token (s)", []),
    ("<empty>", ZE): ("all (s)", "all"),
    ("-1", CUDA): ("none (d)", []),
    ("-1", ROCR): ("none (s)", []),
    ("-1", HIP): ("none (s)", []),
    ("-1", TORCH): ("HIP -> 0; ROCR -> 1 (s)", []),
    ("-1", ZE): ("none: stoul wraps, skipped (s)", []),
    ("0,9  (9 out of range)", CUDA): ("[0] (d)", [0]),
    ("0,9  (9 out of range)", ROCR): ("[0] (s)", [0]),
    ("0,9  (9 out of range)", HIP): ("[0] (s)", [0]),
    ("0,9  (9 out of range)", TORCH): ("no range check (s)", [0, 9]),
    ("0,9  (9 out of range)", ZE): ("[0] (s)", [0]),
    ("9,0", CUDA): ("none (d)", []),
    ("9,0", ROCR): ("none (s)", []),
    ("9,0", HIP): ("none (s)", []),
    ("9,0", TORCH): ("-", "not said"),
    ("9,0", ZE): ("[0]: bad entry is skipped, not terminating (s)", [0]),
    ("0,0", CUDA): ("none (t)", []),
    ("0,0", ROCR): ("[0] terminates (s)", [0]),
    ("0,0", HIP): ("[0] duplicate skipped (s)", [0]),
    ("0,0", TORCH): ("empty list (t)", []),
    ("0,0", ZE): ("[0] (s)", [0]),
    ("0, 1  (space)", CUDA): ("?", "not said"),
    ("0, 1  (space)", ROCR): ("[0,1] trimmed (s)", [0, 1]),
    ("0, 1  (space)", HIP): ("[0] (s)", [0]),
    ("0, 1  (space)", TORCH): ("[0,1] (t)", [0, 1]),
    ("0, 1  (space)", ZE): ("[0,1] (i)", [0, 1]),
    ("01", CUDA): ("1 (i)", [1]),
    ("01", ROCR): ("1; base-0 so 010 is 8 (s)", [1]),
    ("01", HIP): ("terminates: string compare (s)", []),
    ("01", TORCH): ("1 (i)", [1]),
    ("01", ZE): ("1 (s)", [1]),
    ("0x1", CUDA): ("?", "not said"),
    ("0x1", ROCR): ("1 (s)", [1]),
    ("0x1", HIP): ("terminates (s)", []),
    ("0x1", TORCH): ("0 (i)", [0]),
    ("0x1", ZE): ("1 (s)", [1]),
    ("0,,1", CUDA): ("?", "not said"),
    ("0,,1", ROCR): ("empty inner token: string::at throws (s)", "throws"),
    ("0,,1", HIP): ("[0] (s)", [0]),
    ("0,,1", TORCH): ("-", "not said"),
    ("0,,1", ZE): ("throws invalid_argument (i)", "throws"),
    ("GPU-<prefix>", CUDA): ("unique prefix (d)", [1]),
    ("GPU-<prefix>", ROCR): ("unique prefix, 5-20 chars, case-insensitive (s)", [1]),
    ("GPU-<prefix>", HIP): ("first agent whose lower-case uuid contains token, case-sensitive (s)", [1]),
    ("GPU-<prefix>", TORCH): ("list of ids (t)", [1]),
    ("GPU-<prefix>", ZE): ("throws (i)", "throws"),
    ("GPU-<36 char uuid as in ROCm 7 docs>", CUDA): ("ok for NVIDIA (d)", [1]),
    ("GPU-<36 char uuid as in ROCm 7 docs>", ROCR): ("rejected: longer than 20 (s, Aug 2025 snapshot)", []),
    ("GPU-<36 char uuid as in ROCm 7 docs>", HIP): ("no match -> terminates (s)", []),
    ("GPU-<36 char uuid as in ROCm 7 docs>", TORCH): ("-", "not said"),
    ("GPU-<36 char uuid as in ROCm 7 docs>", ZE): ("throws (i)", "throws"),
    ("GPU-XX", CUDA): ("n/a", "not said"),
    ("GPU-XX", ROCR): ("terminates (s)", []),
    ("GPU-XX", HIP): ("matches first AMD GPU without unique_id (s)", []),
    ("GPU-XX", TORCH): ("-", "not said"),
    ("GPU-XX", ZE): ("n/a", "not said"),
    ("1,0", CUDA): ("reorders (d)", [1, 0]),
    ("1,0", ROCR): ("reorders (s)", [1, 0]),
    ("1,0", HIP): ("reorders on Linux; Windows PAL ignores order (s)", [1, 0]),
    ("1,0", TORCH): ("list order", [1, 0]),
    ("1,0", ZE): ("COMPOSITE ignores order; FLAT maps sub-devices in list order (s)", [0, 1]),
}


def select(column: str, value: str) -> Selection:
    if column == CUDA:
        return select_cuda(value, count_cuda(NVIDIA, {}), NVIDIA.gpus)
    if column == ROCR:
        return select_rocr(value, AMD)
    if column == ZE:
        return select_level_zero(value, INTEL)
    return select_hip(value, AMD)


def outcome(column: str, value: str | None) -> Outcome:
    keys = {CUDA: NVIDIA.gpus, ROCR: AMD, HIP: AMD, TORCH: AMD, ZE: INTEL}[column]
    if column == TORCH:
        entries = torch_rocm_entries({} if value is None else {"HIP_VISIBLE_DEVICES": value})
        if entries is None:
            return "all"
        return [entry if isinstance(entry, int) else _amd_index(entry) for entry in entries]
    # HIP's reader treats an empty variable as an absent one before it parses anything.
    if value is None or (column == HIP and not value):
        return "all"
    found = select(column, value)
    if found.throws:
        return "throws"
    indices = [[gpu.key for gpu in keys].index(key) for key in found.devices]
    return "all" if indices == [0, 1] and not value else indices


def _amd_index(entry: str) -> int:
    return next(index for index, unique in enumerate(AMD_UNIQUE) if f"GPU-{unique:016x}".startswith(entry))


@pytest.mark.parametrize(
    ("row", "column"), [cell for cell, (_words, said) in CELLS.items() if said != "not said"], ids=lambda text: text
)
def test_each_cell(row: str, column: str) -> None:
    _words, expected = CELLS[row, column]
    value = prefix_of(column) if VALUES[row] == "<prefix>" else VALUES[row]
    if value == ROCM7_UUID and column == CUDA:
        value = NVIDIA_UUIDS[1]
    assert outcome(column, value) == expected


def test_cells_that_the_table_leaves_open() -> None:
    """Where the table has a question mark we guess as torch does, and say that it is a guess."""
    for value, devices in (("0, 1", [0, 1]), ("0x1", [0]), ("0,,1", [0])):
        found = select(CUDA, value)
        assert [NVIDIA.gpus[index].key for index in devices] == list(found.devices)
        assert "not documented" in (found.remark or "")


def test_the_table_beside_the_checkout_is_the_one_that_is_tested(shared: Path) -> None:
    with (shared / "facts" / "env_semantics.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    table = {(row["value"], column): row[column] for row in rows for column in COLUMNS}
    assert table == {cell: words for cell, (words, _outcome) in CELLS.items()}
    assert {row["value"] for row in rows} == set(VALUES)


def test_the_two_halves_of_cells_about_torch() -> None:
    """Cells of torch's column that state two variables: ROCR counts entries, even of a list that means nothing."""
    assert torch_rocm_entries({"HIP_VISIBLE_DEVICES": ""}) == ()
    assert torch_rocm_entries({"ROCR_VISIBLE_DEVICES": ""}) == (0,)
    assert torch_rocm_entries({"HIP_VISIBLE_DEVICES": "-1"}) == ()
    assert torch_rocm_entries({"ROCR_VISIBLE_DEVICES": "-1"}) == (0,)
    assert torch_rocm_entries({"CUDA_VISIBLE_DEVICES": "1"}) == (1,)
    assert torch_rocm_entries({"CUDA_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0"}) == (0,)


def test_gpu_xx_names_the_first_amd_gpu_without_unique_id() -> None:
    nameless = (amd(0), amd(1, unique_id=0), amd(2, unique_id=None))
    assert select_hip("GPU-XX", nameless).devices == (nameless[1].key,)
    assert select_rocr("GPU-XX", nameless).devices == ()


def test_base_zero() -> None:
    ten = [amd(index) for index in range(10)]
    assert select_rocr("010", ten).devices == (ten[8].key,)
    assert select_rocr("08", ten).devices == ()
    assert select_level_zero("010", [intel(index) for index in range(10)]).devices == (intel(8).key,)


def test_flat_hierarchy_keeps_the_order_of_the_list() -> None:
    assert select_level_zero("1,0", INTEL, flat=True).devices == (INTEL[1].key, INTEL[0].key)

"""`ROCR_VISIBLE_DEVICES` as ROCR reads it, then `HIP_VISIBLE_DEVICES` as clr reads it, both on Linux.

ROCR filters and re-indexes first; HIP's indices count what ROCR left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.model.visibility.order import amd_uuid
from pytest_gpucoexist.model.visibility.tokens import Selection, whole_integer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpucoexist.model.machine import Gpu

__all__ = ["select_hip", "select_rocr"]


def select_rocr(value: str, gpus: Sequence[Gpu]) -> Selection:
    """Apply the list to the AMD GPUs in KFD's order. Empty is none; what names no GPU or repeats one ends the list.

    At most as many entries are read as there are GPUs. An empty entry among them throws (`string::at`), and so
    does one of blanks.
    """
    if not value:
        return Selection()
    devices: list[str] = []
    entries = value.split(",")
    if entries[-1] == "":
        # std::getline yields nothing after the last separator.
        entries.pop()
    for raw in entries[: len(gpus)]:
        entry = raw.strip().upper()
        if not entry:
            return Selection(remark="an empty entry makes ROCR throw", throws=True)
        index = _rocr_uuid(entry, gpus) if entry.startswith("G") else _rocr_index(entry, len(gpus))
        if index is None:
            return Selection(devices=tuple(devices), remark=f"{raw.strip()!r} names no AMD GPU here and ends the list")
        key = gpus[index].key
        if key in devices:
            return Selection(devices=tuple(devices), remark=f"{raw.strip()!r} names a GPU again and ends the list")
        devices.append(key)
    return Selection(devices=tuple(devices))


def _rocr_index(entry: str, count: int) -> int | None:
    parsed = whole_integer(entry)
    if parsed is None or parsed[1] or not 0 <= parsed[0] < count:
        return None
    return parsed[0]


def _rocr_uuid(entry: str, gpus: Sequence[Gpu]) -> int | None:
    # 20 is "GPU-" and 16 digits: the 36 characters of ROCm 7's documentation were refused in 2025.
    if not 5 <= len(entry) <= 20:
        return None
    # A GPU without unique_id is given a string that no entry can match.
    found = [
        index for index, gpu in enumerate(gpus) if amd_uuid(gpu) != "GPU-XX" and amd_uuid(gpu).upper().startswith(entry)
    ]
    return found[0] if len(found) == 1 else None


def select_hip(value: str, gpus: Sequence[Gpu]) -> Selection:
    """Apply the list to the GPUs that ROCR left, in its order; `value` must not be empty.

    An index counts only when it is written as C would print it (`01`, ` 1` and `0x1` end the list); an entry with
    `GPU-` is looked for anywhere in a GPU's name, and the first that has it is taken; a repeated GPU is skipped.
    """
    devices: list[str] = []
    for entry in value.removesuffix(",").split(","):
        index = next((i for i, gpu in enumerate(gpus) if "GPU-" in entry and entry in amd_uuid(gpu)), None)
        if index is None and entry.isdecimal() and entry.isascii() and entry == str(int(entry)):
            index = int(entry)
        if index is None or index >= len(gpus):
            return Selection(devices=tuple(devices), remark=f"{entry!r} names no AMD GPU here and ends the list")
        if gpus[index].key not in devices:
            devices.append(gpus[index].key)
    return Selection(devices=tuple(devices))

"""What the Python side of torch's ROCm build makes of the three variables, before any runtime is asked.

It counts entries and knows no device, so it can disagree with HIP. Source: `_parse_visible_devices` in
`torch/cuda/__init__.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpucoexist.model.visibility.tokens import leading_integer

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["torch_entries", "torch_rocm_entries"]


def torch_rocm_entries(environ: Mapping[str, str]) -> tuple[int, ...] | tuple[str, ...] | None:
    """List the indices or names that torch believes are visible; None when nothing limits it.

    Raises ValueError where torch raises RuntimeError: more HIP entries than ROCR entries.
    """
    rocr = environ.get("ROCR_VISIBLE_DEVICES")
    hip = environ.get("HIP_VISIBLE_DEVICES")
    if rocr is not None:
        count = len(rocr.split(","))
        if hip is None:
            # Only the number of entries counts: "" and "-1" are one device.
            return tuple(range(count))
        if len(hip.split(",")) > count:
            raise ValueError("HIP_VISIBLE_DEVICES has more entries than ROCR_VISIBLE_DEVICES")
    value = hip if hip is not None else environ.get("CUDA_VISIBLE_DEVICES")
    return None if value is None else torch_entries(value)


def torch_entries(value: str) -> tuple[int, ...] | tuple[str, ...]:
    """Parse one list as torch does, with no regard to which devices there are."""
    for prefix in ("GPU-", "MIG-"):
        if value.startswith(prefix):
            names: list[str] = []
            for entry in value.split(","):
                if entry in names:
                    return ()
                if not entry.startswith(prefix):
                    break
                names.append(entry)
            return tuple(names)
    indices: list[int] = []
    for entry in value.split(","):
        index = leading_integer(entry)
        if index in indices:
            return ()
        if index < 0:
            break
        indices.append(index)
    return tuple(indices)

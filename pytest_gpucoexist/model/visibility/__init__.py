"""Visibility variables: what each runtime makes of the caller's, and how to write them for a child.

`CUDA_VISIBLE_DEVICES`, `ROCR_VISIBLE_DEVICES`, `HIP_VISIBLE_DEVICES`, `GPU_DEVICE_ORDINAL`, `ZE_AFFINITY_MASK` and
`ONEAPI_DEVICE_SELECTOR` are six grammars, and two of them reach a second vendor.
"""

from __future__ import annotations

from pytest_gpucoexist.model.visibility.apply import apply_masks
from pytest_gpucoexist.model.visibility.torch_rocm import torch_entries, torch_rocm_entries
from pytest_gpucoexist.model.visibility.write import MaskStyle, write_masks

__all__ = ["MaskStyle", "apply_masks", "torch_entries", "torch_rocm_entries", "write_masks"]

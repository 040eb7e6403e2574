"""Skips that a suite makes by itself and that are, in truth, for want of GPU hardware or software."""

from __future__ import annotations

import linecache
import re
from typing import Any

__all__ = ["FRAMEWORKS", "framework_of_report", "framework_of_skip", "speaks_of_gpus"]

FRAMEWORKS = frozenset(
    {
        "amdsmi", "apex", "bitsandbytes", "cuda", "cudf", "cugraph", "cuml", "cupy", "cupyx", "cuquantum", "dpctl",
        "dpnp", "flash_attn", "hip", "jax", "jaxlib", "mxnet", "nccl", "numba.cuda", "numba.hip", "nvidia",
        "nvmath", "onnxruntime", "pycuda", "pylibraft", "pynvml", "pyopencl", "rmm", "tensorflow", "tensorrt",
        "torch", "torchvision", "transformer_engine", "triton", "vllm", "warp", "xformers",
    }
)  # fmt: skip
"""Import names whose absence means that GPU tests cannot run."""

# What `pytest.importorskip` says (`_pytest/outcomes.py`): a module that does not import, or one that is too old.
_IMPORT = re.compile(r"could not import '([\w.]+)'|module '([\w.]+)' has __version__ ")
_SOURCE = re.compile(r"""importorskip\(\s*(?:modname\s*=\s*)?["']([\w.]+)["']""")
_GPU_WORDS = re.compile(
    r"\b(?:multi[-_ ]?)?gpus?\b|cuda|\brocm\b|\bhip\b|nvidia|\bamd\b|radeon|\bnvml\b|compute capability|\bsm_?\d\d\b",
    re.IGNORECASE,
)


def framework_of_skip(reason: str) -> str | None:
    """Return the GPU framework that a skip by `pytest.importorskip` is about, or None."""
    match = _IMPORT.search(reason)
    return _framework(match[1] or match[2]) if match else None


def _framework_at(path: str, line: int, reason: str) -> str | None:
    """Like `framework_of_skip`, also for `importorskip(..., reason=...)`: then the source line says the name."""
    found = framework_of_skip(reason)
    if found is None:
        for number in (line, line + 1):
            match = _SOURCE.search(linecache.getline(path, number))
            if match and (found := _framework(match[1])):
                break
    return found


def framework_of_report(report: Any) -> str | None:
    """Return the framework for want of which a test or module was skipped, or None."""
    if not isinstance(getattr(report, "longrepr", None), tuple):
        return None
    path, line, text = report.longrepr
    return _framework_at(str(path), int(line or 0), str(text))


def speaks_of_gpus(reason: str) -> bool:
    """Whether a skip reason that a suite wrote is about GPUs."""
    return _GPU_WORDS.search(reason) is not None


def _framework(name: str) -> str | None:
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        candidate = ".".join(parts[:length])
        if candidate in FRAMEWORKS:
            return candidate
    return None

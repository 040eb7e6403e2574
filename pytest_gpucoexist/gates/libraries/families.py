"""Which library is a copy of which runtime, by file name alone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FAMILIES", "Family", "family_of", "soname_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One runtime: libraries whose name without `lib` and `.so` is one of `stems`.

    `harm` ends the sentence "two copies in one process …".
    """

    name: str
    stems: tuple[str, ...]
    vendor: str | None
    harm: str


_ABOUT = (
    ("HIP", ("amdhip64",), "amd", "keep two sets of streams and devices: errors on other streams, or no GPU at all"),
    ("HSA", ("hsa-runtime64",), "amd", "open the GPUs twice and know nothing of each other's memory"),
    (
        "comgr",
        ("amd_comgr",),
        "amd",
        "compile kernels for each other's runtime: hipErrorOutOfMemory on the first stream",
    ),
    ("AMD SMI", ("amd_smi",), "amd", "split their state: the second one counts no GPU"),
    ("ROCm SMI", ("rocm_smi64",), "amd", "split their state: one of them counts no GPU"),
    ("RCCL", ("rccl",), "amd", "split their state between threads"),
    ("NCCL", ("nccl",), "nvidia", "split their state between threads"),
    ("CUDA runtime", ("cudart",), "nvidia", "keep two sets of streams and events"),
    ("CUDA driver", ("cuda",), "nvidia", "open the GPUs twice"),
    ("NVML", ("nvidia-ml",), "nvidia", "count initialisations apart"),
    ("NVRTC", ("nvrtc",), "nvidia", "compile for two versions of CUDA"),
    ("OpenCL loader", ("OpenCL",), None, "list their platforms apart"),
    ("Level Zero loader", ("ze_loader",), "intel", "list their drivers apart"),
    ("LLVM", ("LLVM",), None, "register the same options twice and abort"),
    ("Triton", ("triton",), None, "register the same passes twice and abort"),
    ("ggml", ("ggml", "ggml-base"), None, "share names: one backend is dropped or faults"),
)
FAMILIES: Mapping[str, Family] = {
    stem: Family(name=name, stems=stems, vendor=vendor, harm=harm)
    for name, stems, vendor, harm in _ABOUT
    for stem in stems
}
"""By stem. Sources: pytorch#152941, ROCm/mori PR#402 and #414, AMDGPU.jl#1062, pytorch#186516, rocm-systems#8768,
pytorch#42517, pocl#474, clr#155, llama.cpp#11506."""

# `libamdhip64.so.6.2.41133`; `libLLVM-15.so.1` and `libLLVM.so.19.1` carry a version before or after; auditwheel
# writes `libcudart-9335f6a2.so.12`; extension modules are `libtriton.so`.
_NAME = re.compile(r"lib(?P<stem>[A-Za-z0-9_+-]+?)(?:-[0-9a-f]{8}|-\d+(?:\.\d+)*)?\.so(?:\.[\w.]+)?")


def soname_of(path: str) -> str:
    """Return the file's name."""
    return path.rsplit("/", 1)[-1]


def family_of(path: str) -> Family | None:
    """Return the family of a file by its name; None for all others.

    >>> family_of("/opt/rocm/lib/libamdhip64.so.6.2.41133").name
    'HIP'
    >>> family_of("/usr/lib/libamdhip64_extra.so") is None
    True
    """
    match = _NAME.fullmatch(soname_of(path))
    return None if match is None else FAMILIES.get(match["stem"])

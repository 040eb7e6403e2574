"""Paths that a person chose: which they are, and what of them a record may tell.

Folders of the kernel and of the system have the same names everywhere. Everywhere else (`/home`, `/data`, `/opt`, …) a
name can be a project's, a customer's or a person's: only words that a runtime or Python gave it stay.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["KERNEL_AREA", "PRIVATE_PATH", "is_telling", "renamed"]

KERNEL_AREA = re.compile(r"/(?:sys|proc|dev)(?:/|$)")

_SYSTEM = r"(?:bin|boot|dev|etc|gnu|lib\d*|libx32|nix|proc|run|sbin|snap|sys|usr|var)"
PRIVATE_PATH = re.compile(rf"(?<![\w./~-])/(?!{_SYSTEM}(?![\w.-]))[^\s:;,'\"<>|()\[\]{{}}\0]+")
"""An absolute path, anywhere in a text, that does not lead into a folder of the system."""

# Names that say what a file of a GPU's software is.
_TELLING = re.compile(
    r"amd_?smi|amdhip|amdocl|amdvlk|cuda|cudnn|cupy|cublas|egl|gfx\d|glvnd|hip[-_.]|hsa|igdrcl|intel|jax|level.?zero"
    r"|libdrm|libGL|libgl|mesa|miopen|nccl|nvidia|nvinfer|nvml|nvrtc|nvtx|onnxruntime|ort[-_]|opencl|pocl|radeon|rccl"
    r"|rocm|rocr|amd_|dzn|freedreno|gfxstream|lvp|nouveau|nvk|panfrost|swiftshader|virtio|rusticl|tensorrt|torch|triton"
    r"|vulkan|xla|ze_loader|ze_intel",
    re.IGNORECASE,
)
_ORDINARY = re.compile(
    r"\.?(?:applications|bin|cache|conda|config|containers|data|dist|dockerenv|env|envs|home|include|info"
    r"|lib\d*|lib-dynload|local"
    r"|media|mnt|opt|pkgs|root|scratch|share|src|srv|stubs|targets|tmp|usr|Users|v?env"
    r"|singularity\.d|versions?|virtualenvs|work|workspace)"
    r"|\.?(?:ana|mini|micro)?(?:conda|mamba|forge)\d?|\.pyenv|x86_64-linux|python(?:\d+(?:\.\d+)*t?)?(?:\.zip)?|python\d+"
    r"|(?:site|dist)-packages|icd\.d|egl_vendor\.d|vendors|gpucoexist|[\d.]+|(?:host|user|name)-[0-9a-f]{6}"
)
# Below these stands what a package installed, named as everywhere.
_PUBLIC_BELOW = frozenset({"site-packages", "dist-packages"})
_SUFFIX = re.compile(r"(?:\.so(?:\.\d+)*|\.(?:icd|json|txt|conf|py|zip|egg|sif))\Z")


def is_telling(name: str) -> bool:
    """Whether a name says what it is to somebody who looks for a GPU's software."""
    return _TELLING.search(name) is not None


def renamed(path: str, tag: Callable[[str], str]) -> str:
    """Replace, in a private path, every name that is neither an ordinary word nor of a GPU's software.

    `tag` gives the letters that stand for a name; a file keeps its suffix, which decides how it is read.
    """
    parts = path.split("/")
    for index, part in enumerate(parts):
        if part in _PUBLIC_BELOW:
            break
        suffix = _SUFFIX.search(part)
        stem = part[: suffix.start()] if suffix else part
        if part not in {"", ".", ".."} and not _ORDINARY.fullmatch(stem) and not is_telling(part):
            parts[index] = f"name-{tag(stem)}{suffix[0] if suffix else ''}"
    return "/".join(parts)

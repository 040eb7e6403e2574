"""Our marks, and whose they are in this project. Loaded in every session."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest

__all__ = ["MARK_LINES", "foreign_names", "register"]

MARK_LINES: Mapping[str, str] = {
    "gpu": "gpu(vendor=None, count=1, memory=None, arch=None, driver=None, runtime=None, framework=None, features=(), "
    "exclusive=False, same_node=False): the test needs GPUs. Provided by pytest-gpucoexist.",
    "cuda": "cuda(count=1, memory=None, arch=None, ...): the test needs NVIDIA GPUs usable through CUDA; arch is a "
    'compute capability such as ">=8.0". Provided by pytest-gpucoexist.',
    "rocm": "rocm(count=1, memory=None, arch=None, ...): the test needs AMD GPUs usable through ROCm; arch is a gfx "
    'name or glob such as "gfx11*". Provided by pytest-gpucoexist.',
    "cross_vendor": 'cross_vendor(vendors=("nvidia", "amd"), ...): the test needs one device of each vendor, leased '
    "together. Provided by pytest-gpucoexist.",
}
"""What `pytest --markers` prints."""


def register(config: pytest.Config) -> None:
    """Register each of our marks, unless the project has registered the name already."""
    foreign = foreign_names(config)
    for name, line in MARK_LINES.items():
        if name not in foreign:
            config.addinivalue_line("markers", line)
    registered = {_name(line) for line in config.getini("markers")}
    for line in config.getini("gpu_marks"):
        name, _, mark = line.partition(":")
        if name.strip().isidentifier() and name.strip() not in registered:
            config.addinivalue_line("markers", f"{name.strip()}: stands for {mark.strip()} (gpu_marks)")


def foreign_names(config: pytest.Config) -> frozenset[str]:
    """Return those of our names that the project registers itself; they are its own and mean nothing here.

    A conftest may register a name long after us: ask again when collection has ended.
    """
    ours = set(MARK_LINES.values())
    names = {_name(line) for line in config.getini("markers") if line not in ours}
    return frozenset(names & MARK_LINES.keys())


def _name(line: str) -> str:
    return line.split(":", maxsplit=1)[0].split("(", maxsplit=1)[0].strip()

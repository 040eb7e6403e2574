"""The shared libraries that Python packages bring or ask for: names below `sys.path`, nothing read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.libraries.families import family_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["Package", "provided", "python_packages"]

# Where packages keep libraries: in their own folder, in one of these, or in `NAME.libs` (auditwheel).
_USUAL = frozenset({"lib", "lib64", "libs", ".libs", "_libs", "_C", "capi"})
# Packages that keep them deeper, below a folder of sys.path, and whose they are.
_DEEPER: tuple[tuple[str, str], ...] = (
    ("cupy", "cupy/.data/lib"),
    ("cupy", "cupy_backends/cuda/api"),
    ("cupy", "cupy_backends/cuda/libs"),
    ("jax", "jax_plugins/xla_*"),
)
_SAME = re.compile(r"cupy_(?:cuda|rocm)\w*|jaxlib|jax_(?:cuda|rocm)\w*")
# Wheels that only hold libraries for others to load.
_HOLDERS = re.compile(r"nvidia|_rocm_sdk_\w+")
_PROVIDERS = ("nvidia/*/lib", "_rocm_sdk_core/lib", "_rocm_sdk_libraries*/lib")
# Libraries and extension modules that ask for a runtime; what is left out asks through one of these.
_ASKING = re.compile(
    r"lib(?:torch_(?:cuda|hip|xpu)|c10_(?:cuda|hip|xpu)|onnxruntime_providers_\w+|ggml\S*|llama|tensorflow_cc|mori\S*)\.so.*"
    r"|(?:runtime|driver|nccl|_runtime|xla_\w+_plugin|_cl|mori\S*)\.\S*so"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A package, the runtimes that lie in its own folders, and its libraries that ask for one."""

    name: str
    runtimes: tuple[str, ...]
    asking: tuple[str, ...]


def python_packages(subject: Subject) -> tuple[Package, ...]:
    """Return the packages of `sys.path` that bring or ask for a GPU runtime; of two with one name the first."""
    return subject.shared(("symbols.packages",), lambda: tuple(_packages(subject)))


def provided(subject: Subject) -> tuple[str, ...]:
    """Return the runtimes that wheels hold for others, such as those of `nvidia-cuda-runtime-cu12`."""

    def find() -> tuple[str, ...]:
        return tuple(
            path
            for site in _sites(subject)
            for pattern in _PROVIDERS
            for folder in _matching(subject, site, pattern)
            for path in _libraries(subject, folder)
            if family_of(path) is not None
        )

    return subject.shared(("symbols.provided",), find)


def _packages(subject: Subject) -> Iterator[Package]:
    for site in _sites(subject):
        runtimes: dict[str, list[str]] = {}
        asking: dict[str, list[str]] = {}
        for name, folder in _folders(subject, site):
            for path in _libraries(subject, folder):
                if family_of(path) is not None:
                    runtimes.setdefault(name, []).append(path)
                elif _ASKING.fullmatch(path.rsplit("/", 1)[-1]):
                    asking.setdefault(name, []).append(path)
        for name in dict.fromkeys((*runtimes, *asking)):
            yield Package(name=name, runtimes=tuple(runtimes.get(name, ())), asking=tuple(asking.get(name, ())))


def _folders(subject: Subject, site: str) -> Iterator[tuple[str, str]]:
    """Yield the folders in which packages keep libraries, with the package's name."""
    for top in subject.names(site):
        if "-info" in top or top.endswith((".py", ".so", ".pth")) or _HOLDERS.fullmatch(top):
            continue
        name = top.removesuffix(".libs")
        name = "cupy" if name.startswith("cupy") and _SAME.fullmatch(name) else name
        name = "jax" if name.startswith("jax") and _SAME.fullmatch(name) else name
        yield name, f"{site}/{top}"
        for each in subject.names(f"{site}/{top}"):
            if each in _USUAL:
                yield name, f"{site}/{top}/{each}"
    for name, pattern in _DEEPER:
        for folder in _matching(subject, site, pattern):
            yield name, folder


def _sites(subject: Subject) -> list[str]:
    return [path for path in dict.fromkeys(each.rstrip("/") for each in subject.host.python_path if each) if path]


def _libraries(subject: Subject, folder: str) -> list[str]:
    return [f"{folder}/{name}" for name in subject.names(folder) if ".so" in name]


def _matching(subject: Subject, site: str, pattern: str) -> list[str]:
    """Expand a pattern of a few parts, listing only where a part is a pattern or the first one is there."""
    folders = [site]
    for part in pattern.split("/"):
        if "*" in part or folders == [site]:
            folders = [f"{each}/{name}" for each in folders for name in subject.names(each) if fnmatchcase(name, part)]
        else:
            folders = [f"{each}/{part}" for each in folders]
    return folders

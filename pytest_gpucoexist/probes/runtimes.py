"""Runtimes and frameworks that are installed, from files and distribution metadata alone; nothing is loaded."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from pytest_gpucoexist.model.machine import Conflict, Runtime
from pytest_gpucoexist.probes.distributions import SitePackages
from pytest_gpucoexist.probes.frameworks import find_frameworks
from pytest_gpucoexist.probes.icds import find_icds
from pytest_gpucoexist.probes.libraries import LibraryFolders, parent
from pytest_gpucoexist.probes.ownership import duplicate_imports

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pytest_gpucoexist.host.base import Host

__all__ = ["cuda_of_driver", "find_runtimes"]

# The newest CUDA that a driver branch runs: NVIDIA's CUDA release notes, table of drivers per toolkit; nvidia-smi
# prints the same number. A branch that is not listed has a version that only the driver can tell.
_CUDA_OF_BRANCH = {
    418: "10.1",
    440: "10.2",
    450: "11.0",
    455: "11.1",
    460: "11.2",
    465: "11.3",
    470: "11.4",
    495: "11.5",
    510: "11.6",
    515: "11.7",
    520: "11.8",
    525: "12.0",
    530: "12.1",
    535: "12.2",
    545: "12.3",
    550: "12.4",
    555: "12.5",
    560: "12.6",
    565: "12.7",
    570: "12.8",
    575: "12.9",
    580: "13.0",
    590: "13.1",
    595: "13.2",
}
_CUDA_WHEEL = re.compile(r"nvidia-cuda-runtime(-cu\d+)?")
_ROCM_WHEEL = re.compile(r"rocm-sdk-core|rocm")
_TENSORRT_WHEEL = re.compile(r"tensorrt(-cu\d+)?-libs")
# Library name, name of the runtime, vendors: those that carry their version in the file name and nowhere else.
_PLAIN = (
    ("nvidia-ml", "nvml", ("nvidia",)),
    ("nvinfer", "tensorrt", ("nvidia",)),
    ("amd_smi", "amdsmi", ("amd",)),
    ("ze_loader", "level-zero", ("intel",)),
)


def find_runtimes(host: Host) -> tuple[tuple[Runtime, ...], tuple[Conflict, ...]]:
    """Find what is installed, each kind in the order in which its loader or Python would take it.

    Versions of `cuda` are CUDA versions (what the driver's branch supports; `built_for` has the driver's own), of
    `cudart` those of the library or toolkit, of `rocm` the release. Conflicts are kinds `duplicate_import` (two
    distributions own one import), `broken_file`, `broken_metadata`, `broken_install`. Never raises.
    """
    libraries = LibraryFolders(host)
    site = SitePackages(host)
    conflicts: list[Conflict] = []
    runtimes: list[Runtime] = [*_cuda_driver(libraries)]
    runtimes += _unique(_cuda_runtime(host, libraries, site, conflicts))
    for stem, name, vendors in _PLAIN:
        runtimes += _plain(libraries, stem, name, vendors)
    runtimes += _wheels(site, _TENSORRT_WHEEL, "tensorrt", ("nvidia",))
    runtimes += _unique(_rocm(host, libraries, site, conflicts))
    for found, broken in (find_icds(host), find_frameworks(host, site)):
        runtimes += found
        conflicts += broken
    return tuple(runtimes), (*conflicts, *duplicate_imports(site))


def cuda_of_driver(version: str | None) -> str | None:
    """Return the CUDA version that a driver of this version supports, by its branch (535.261.03 → 12.2)."""
    branch = re.match(r"(\d{3})\.", version or "")
    return _CUDA_OF_BRANCH.get(int(branch[1])) if branch else None


def _runtime(
    name: str, path: str, version: str | None, vendors: tuple[str, ...], built_for: str | None = None
) -> Runtime:
    return Runtime(
        name=name, kind="runtime", version=version, vendors=vendors, path=path, built_for=built_for, source=path
    )


def _unique(runtimes: Iterable[Runtime]) -> Iterator[Runtime]:
    """Drop what was found twice (a toolkit and the library inside it)."""
    seen: set[tuple[str, str | None]] = set()
    for runtime in runtimes:
        if (runtime.name, runtime.source) not in seen:
            seen.add((runtime.name, runtime.source))
            yield runtime


def _plain(libraries: LibraryFolders, stem: str, name: str, vendors: tuple[str, ...]) -> Iterator[Runtime]:
    for library in libraries.find(stem):
        yield _runtime(name, library.path, library.version, vendors)


def _wheels(site: SitePackages, pattern: re.Pattern[str], name: str, vendors: tuple[str, ...]) -> Iterator[Runtime]:
    for wheel in site.named(pattern):
        yield Runtime(
            name=name,
            kind="runtime",
            version=wheel.version,
            vendors=vendors,
            path=wheel.folder,
            distribution=wheel.name,
            source=wheel.info,
        )


def _cuda_driver(libraries: LibraryFolders) -> Iterator[Runtime]:
    for library in libraries.find("cuda"):
        if "/stubs/" in library.path:
            # The toolkit's stub has the symbols and no driver behind them.
            continue
        driver = library.version if library.version and "." in library.version else None
        built_for = f"driver {driver}" if driver else None
        yield _runtime("cuda", library.path, cuda_of_driver(driver), ("nvidia",), built_for)


def _roots(host: Host, folder: str, prefix: str, *given: str | None) -> list[str]:
    """Return the installations under a folder (`/usr/local/cuda`, `cuda-12.4`), links followed, each once."""
    try:
        names = [f"{folder}/{name}" for name in host.list_dir(folder) if re.fullmatch(rf"{prefix}(-[\d.]+)?", name)]
    except OSError:
        names = []
    roots: dict[str, None] = {}
    for path in (*(path.rstrip("/") for path in given if path and path.startswith("/")), *names):
        try:
            roots.setdefault(host.resolve(path))
        except OSError:
            continue
    return list(roots)


def _cuda_runtime(
    host: Host, libraries: LibraryFolders, site: SitePackages, conflicts: list[Conflict]
) -> Iterator[Runtime]:
    roots = _roots(host, "/usr/local", "cuda", host.environ.get("CUDA_HOME"), host.environ.get("CUDA_PATH"))
    told: list[str] = []
    for root in roots:
        toolkit, runtime = _toolkit(host, root, conflicts)
        if toolkit or runtime:
            told.append(root)
            yield _runtime("cudart", root, runtime or toolkit, ("nvidia",), f"CUDA {toolkit}" if toolkit else None)
    # A toolkit that was copied without its version file still has its library.
    silent = [f"{root}/{folder}" for root in roots if root not in told for folder in ("lib64", "lib")]
    for library in libraries.find("cudart", *silent):
        if not any(library.path.startswith(f"{root}/") for root in told):
            yield _runtime("cudart", library.path, library.version, ("nvidia",))
    yield from _wheels(site, _CUDA_WHEEL, "cudart", ("nvidia",))


def _toolkit(host: Host, root: str, conflicts: list[Conflict]) -> tuple[str | None, str | None]:
    """Read a toolkit's own version and that of its runtime: version.json since 11.1, version.txt before."""
    path = f"{root}/version.json"
    try:
        data = json.loads(host.read_text(path))
        return _version_in(data, "cuda"), _version_in(data, "cuda_cudart")
    except OSError:
        pass
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        message = f"{path} cannot be understood: {error}"
        conflicts.append(Conflict(subject=path, kind="broken_file", message=message, claims={path: str(error)}))
        return None, None
    try:
        match = re.match(r"CUDA Version ([\d.]+)", host.read_text(f"{root}/version.txt"))
    except OSError:
        match = None
    return (match[1] if match else None), None


def _version_in(data: Any, key: str) -> str | None:
    """Return the version of a component. Raises TypeError or KeyError where there is one of another form."""
    if key not in data:
        return None
    version = data[key]["version"]
    if not isinstance(version, str):
        raise TypeError(f"the version of {key} is no text")
    return version


def _rocm(host: Host, libraries: LibraryFolders, site: SitePackages, conflicts: list[Conflict]) -> Iterator[Runtime]:
    roots = _roots(host, "/opt", "rocm", host.environ.get("ROCM_PATH"), host.environ.get("ROCM_HOME"))
    for root in roots:
        path = f"{root}/.info/version"
        try:
            text = host.read_text(path)
        except OSError:
            continue
        match = re.match(r"\d+(\.\d+)+", text.strip())
        if match is None:
            message = f"{path} holds no version: {text[:40]!r}"
            conflicts.append(Conflict(subject=path, kind="broken_file", message=message, claims={path: text[:40]}))
            continue
        yield _runtime("rocm", root, match[0], ("amd",))
    yield from _wheels(site, _ROCM_WHEEL, "rocm", ("amd",))
    inside = [f"{wheel.folder}/_rocm_sdk_core/lib" for wheel in site.named(_ROCM_WHEEL)]
    for library in libraries.find("amdhip64", *(f"{root}/lib" for root in roots), *inside):
        yield _runtime("hip", library.path, library.version, ("amd",), parent(library.path))

"""What the loaders of OpenCL, Vulkan and EGL would pick from: their manifests, by each loader's own rules."""

from __future__ import annotations

import errno
import json
import re
from typing import TYPE_CHECKING

from pytest_gpucoexist.model.machine import Conflict, Runtime

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pytest_gpucoexist.host.base import Host

__all__ = ["find_icds", "named_library"]

_OPENCL_FOLDER = "/etc/OpenCL/vendors"
_VULKAN_FOLDERS = ("/usr/local/etc/vulkan/icd.d", "/etc/vulkan/icd.d")
_EGL_FOLDERS = ("/etc/glvnd/egl_vendor.d", "/usr/share/glvnd/egl_vendor.d")

# What a library's name says of the GPUs that it drives. Mesa's EGL and OpenCL drive any GPU with a Mesa driver.
_LIBRARIES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"nvidia|nouveau|nvk", ("nvidia",)),
    (r"amdocl|amdvlk|radeon|amd_", ("amd",)),
    (r"igdrcl|intel|igdvk", ("intel",)),
    (r"lvp|pocl|swiftshader|gfxstream|virtio|freedreno|panfrost|broadcom|asahi|powervr", ()),
    (r"mesa|rusticl|dzn", ("amd", "intel")),
)


def find_icds(host: Host) -> tuple[list[Runtime], list[Conflict]]:
    """Find the drivers that OpenCL, Vulkan and EGL would offer, in each loader's order."""
    runtimes: list[Runtime] = []
    conflicts: list[Conflict] = []
    for name, paths in (("opencl", _opencl(host)), ("vulkan", _vulkan(host)), ("egl", _egl(host))):
        for path in dict.fromkeys(paths):
            try:
                runtimes.append(_driver(host, name, path))
            except (OSError, ValueError, RecursionError) as error:
                if isinstance(error, OSError) and error.errno == errno.ENOENT and not host.covers(path):
                    continue
                reason = error.strerror if isinstance(error, OSError) else error
                conflicts.append(
                    Conflict(
                        subject=path,
                        kind="broken_file",
                        message=f"{name} manifest {path} cannot be used: {reason}",
                        claims={path: str(reason)},
                    )
                )
    return runtimes, conflicts


def _driver(host: Host, name: str, path: str) -> Runtime:
    """Read one manifest. Raises OSError or ValueError."""
    library, version = named_library(path, host.read_text(path) if path.endswith((".json", ".icd")) else "")
    return Runtime(
        name=name,
        kind="runtime",
        version=version,
        vendors=_vendors(library, path),
        path=path,
        built_for=library.rsplit("/", 1)[-1],
        source=path,
    )


def named_library(path: str, text: str) -> tuple[str, str | None]:
    """Return the library that a manifest names, as it stands there, and its API version. Raises ValueError.

    `path` may be a library itself: what `OCL_ICD_VENDORS` can name.
    """
    if path.endswith(".json"):
        data = json.loads(text)
        icd = data.get("ICD") if isinstance(data, dict) else None
        library = icd.get("library_path") if isinstance(icd, dict) else None
        if not isinstance(icd, dict) or not isinstance(library, str):
            raise ValueError("no ICD.library_path")
        return library, icd.get("api_version") if isinstance(icd.get("api_version"), str) else None
    if not path.endswith(".icd"):
        return path, None
    library = text.split("\n", 1)[0].strip()
    if not library:
        raise ValueError("names no library")
    return library, None


def _vendors(library: str, path: str) -> tuple[str, ...]:
    # The manifest's own name decides where the library's says nothing ("libMesaOpenCL" in "intel.icd").
    for text in (library.rsplit("/", 1)[-1].lower(), path.rsplit("/", 1)[-1].lower()):
        for pattern, vendors in _LIBRARIES:
            if re.search(pattern, text):
                return vendors
    return ()


def _files(host: Host, folder: str, suffix: str) -> list[str]:
    try:
        return [f"{folder}/{name}" for name in host.list_dir(folder) if name.endswith(suffix)]
    except OSError:
        return []


def _paths(text: str) -> Iterator[str]:
    return (path.rstrip("/") for path in text.split(":") if path.startswith("/"))


def _named(host: Host, paths: Iterable[str], suffix: str) -> list[str]:
    """Expand a list in which an entry is a folder or a file."""
    return [each for path in paths for each in ([path] if path.endswith(suffix) else _files(host, path, suffix))]


def _opencl(host: Host) -> list[str]:
    """Follow ocl-icd: OCL_ICD_VENDORS is a folder, one .icd file, or one library."""
    given = host.environ.get("OCL_ICD_VENDORS", "")
    if not given.startswith("/"):
        # A bare library name is for the loader to find; the folder is then not read.
        return [given] if ".so" in given else _files(host, _OPENCL_FOLDER, ".icd")
    if given.endswith(".icd") or ".so" in given.rsplit("/", 1)[-1]:
        return [given]
    return _files(host, given.rstrip("/"), ".icd")


def _vulkan(host: Host) -> list[str]:
    """Follow Vulkan-Loader: VK_DRIVER_FILES, else VK_ICD_FILENAMES, else the folders; VK_ADD_DRIVER_FILES comes first.

    The loader ignores the variables of a privileged process; this one is taken to be none.
    """
    environ = host.environ
    added = _named(host, _paths(environ.get("VK_ADD_DRIVER_FILES", "")), ".json")
    for variable in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES"):
        if environ.get(variable):
            return _named(host, _paths(environ[variable]), ".json")
    home = environ.get("HOME", "")
    own = [environ.get("XDG_CONFIG_HOME") or f"{home}/.config", environ.get("XDG_DATA_HOME") or f"{home}/.local/share"]
    shared = [*_paths(environ.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share")]
    folders = [f"{own[0]}/vulkan/icd.d", *_VULKAN_FOLDERS, f"{own[1]}/vulkan/icd.d"]
    folders += [f"{folder}/vulkan/icd.d" for folder in shared]
    return [*added, *(path for folder in dict.fromkeys(folders) for path in _files(host, folder, ".json"))]


def _egl(host: Host) -> list[str]:
    """Follow glvnd: the list of files is exclusive and ordered, else folders, each in the order of strcmp."""
    environ = host.environ
    if environ.get("__EGL_VENDOR_LIBRARY_FILENAMES"):
        return list(_paths(environ["__EGL_VENDOR_LIBRARY_FILENAMES"]))
    folders = [*_paths(environ.get("__EGL_VENDOR_LIBRARY_DIRS", ""))] or [*_EGL_FOLDERS]
    return [path for folder in folders for path in sorted(_files(host, folder, ".json"))]

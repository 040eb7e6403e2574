"""Load nvidia-ml-py, and be sure that it is nvidia-ml-py.

Several distributions install an import named `pynvml`: NVIDIA's own `nvidia-ml-py` (the module `pynvml.py`), the older
fork `pynvml` and `hip-python-interop` (a package `pynvml/`, which shadows the module; the latter asks AMD SMI).
`pip check` finds nothing wrong with that. So the file is taken from the distribution, not from the import system.
"""

from __future__ import annotations

import base64
import ctypes
import hashlib
import importlib.util
import os
import sys
from importlib import metadata
from typing import Any

from pytest_gpucoexist.helpers.protocol import HelperAbsent, HelperBroken

__all__ = ["load_nvml_client", "open_library_error"]

_DISTRIBUTION = "nvidia-ml-py"


def load_nvml_client() -> tuple[Any, dict[str, Any]]:
    """Import NVIDIA's own `pynvml.py` and say where it came from.

    Returns the module and `{"distribution", "version", "path", "shadowed_by"}`; `shadowed_by` is the file that a plain
    `import pynvml` would have loaded in its place. Raises HelperAbsent when nvidia-ml-py is not installed, HelperBroken
    when something else took its place.
    """
    found = _origin_of("pynvml")
    try:
        distribution = metadata.distribution(_DISTRIBUTION)
    except metadata.PackageNotFoundError:
        if found is None:
            raise HelperAbsent(
                f"{_DISTRIBUTION} is not installed (pip install 'pytest-gpucoexist[nvidia]')", cause="no-client"
            ) from None
        raise HelperBroken(
            f"pynvml would be imported from {found}, which is not {_DISTRIBUTION}; install {_DISTRIBUTION}",
            cause="client",
        ) from None
    path = os.path.realpath(str(distribution.locate_file("pynvml.py")))
    if not os.path.isfile(path):
        raise HelperBroken(
            f"{_DISTRIBUTION} {distribution.version} is installed but {path} is missing; reinstall it"
            + (f" (pynvml would be imported from {found})" if found else ""),
            cause="client",
        )
    if not _is_as_installed(distribution, path):
        raise HelperBroken(
            f"{path} is not the file that {_DISTRIBUTION} {distribution.version} installed: another distribution"
            f" overwrote it; reinstall {_DISTRIBUTION}",
            cause="client",
        )
    client = {
        "distribution": _DISTRIBUTION,
        "version": distribution.version,
        "path": path,
        "shadowed_by": None if found in {None, path} else found,
    }
    return _load_file(path), client


def _origin_of(module: str) -> str | None:
    spec = importlib.util.find_spec(module)
    return os.path.realpath(spec.origin) if spec is not None and spec.origin else None


def _is_as_installed(distribution: metadata.Distribution, path: str) -> bool:
    """Compare with the hash in RECORD; distributions of a system's package manager have none, and pass."""
    for file in distribution.files or ():
        if str(file) == "pynvml.py" and file.hash is not None:
            with open(path, "rb") as stream:
                digest = hashlib.new(file.hash.mode, stream.read()).digest()
            return base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == file.hash.value
    return True


def _load_file(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("pynvml", path)
    assert spec is not None, path
    assert spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    sys.modules["pynvml"] = module  # ctypes structures look their module up while it loads
    spec.loader.exec_module(module)
    return module


def open_library_error() -> str:
    """Say why `libnvidia-ml.so.1` cannot be opened: NVML's own code does not tell a missing file from a broken one."""
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        return str(error)
    return "libnvidia-ml.so.1 opens now"

"""Which libraries lie in the folders that an environment names: whose a folder is, its path need not say."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucoexist.host.base import Host

__all__ = ["folder_contents"]

_FOLDERS = 64


def folder_contents(host: Host, environ: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the libraries in the folders of `LD_LIBRARY_PATH`; a folder that cannot be read is left out."""
    found: dict[str, list[str]] = {}
    for entry in list(dict.fromkeys(environ.get("LD_LIBRARY_PATH", "").split(":")))[:_FOLDERS]:
        if not entry.startswith("/"):
            continue
        try:
            names = host.list_dir(entry)
        except OSError:
            continue
        found[entry] = [name for name in names if ".so" in name]
    return found

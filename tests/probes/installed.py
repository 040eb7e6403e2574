"""Installed software in memory: wheels as pip lays them down, libraries as packages do."""

from __future__ import annotations

import base64
import errno
import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tests.probes.memory_host import MemoryHost, fault

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_gpucoexist.host.base import Node
    from pytest_gpucoexist.model.machine import Conflict, Runtime

SITE = "/venv/lib/python3.11/site-packages"


@dataclass
class InstalledHost(MemoryHost):
    """A host whose `resolve` and sizes are those of a real file system."""

    python_path: tuple[str, ...] = (SITE,)

    def resolve(self, path: str) -> str:
        found = super().resolve(path)
        if (
            found not in self.files
            and found not in self.nodes
            and found not in self.errors
            and not self._children(found)
        ):
            raise fault(errno.ENOENT, path)
        return found

    def stat(self, path: str) -> Node:
        node = super().stat(path)
        data = self.files.get(self.resolve(path))
        return node if data is None else replace(node, size_bytes=len(data.encode() if isinstance(data, str) else data))


def wheel(
    name: str, version: str, files: Mapping[str, str], *, site: str = SITE, record: bool = True, top_level: str = ""
) -> dict[str, str | bytes]:
    """Return the files of an installed wheel: its own and its metadata, hashes in RECORD included."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    installed: dict[str, str | bytes] = {f"{site}/{path}": text for path, text in files.items()}
    installed[f"{site}/{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    if top_level:
        installed[f"{site}/{info}/top_level.txt"] = top_level
    if record:
        lines = [f"{path},sha256={digest(text)},{len(text.encode())}" for path, text in files.items()]
        installed[f"{site}/{info}/RECORD"] = "\n".join([*lines, f"{info}/METADATA,,", f"{info}/RECORD,,"]) + "\n"
    return installed


def digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


def named(found: tuple[Runtime, ...], name: str) -> list[Runtime]:
    return [runtime for runtime in found if runtime.name == name]


def of_kind(found: tuple[Conflict, ...], kind: str) -> list[Conflict]:
    return [conflict for conflict in found if conflict.kind == kind]

"""The manifests of one loader, each with the library that it leads to."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_gpucoexist.gates.libraries.search import Found, find_library
from pytest_gpucoexist.model.verdicts import Evidence
from pytest_gpucoexist.probes.icds import named_library
from pytest_gpucoexist.probes.libraries import parent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpucoexist.gates.subject import Subject

__all__ = ["Manifest", "broken", "manifests"]

# `intel_icd.i686.json` stands beside `intel_icd.x86_64.json`: 32-bit programs have drivers of their own.
_OTHER_ARCH = re.compile(r"[._](?:i[3-6]86|x86|32|armhf|armv7\w*)\.json$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One driver that a loader would try: the manifest, the library as named there, and where that is."""

    path: str
    library: str
    vendors: tuple[str, ...]
    found: Found

    @property
    def evidence(self) -> Evidence:
        """What the manifest names, and what was found."""
        where = self.found.path or self.found.detail
        return Evidence(source=self.path, found=f"{self.library} ({where})", expected="a library that exists")


def manifests(subject: Subject, loader: str) -> tuple[Manifest, ...]:
    """Return the manifests of `opencl`, `vulkan` or `egl` in the loader's order, those for 32-bit programs left out."""
    return subject.shared(("libraries.manifests", loader), lambda: tuple(_manifests(subject, loader)))


def broken(subject: Subject, loader: str) -> Iterator[tuple[str, str, bool]]:
    """Yield manifests that discovery could not use: path, reason, and whether they could at least be read."""
    for conflict in subject.machine.conflicts:
        if conflict.kind == "broken_file" and conflict.message.startswith(f"{loader} manifest "):
            reason = str(conflict.claims.get(conflict.subject, ""))
            yield conflict.subject, reason, reason not in {"Permission denied", "Input/output error"}


def _manifests(subject: Subject, loader: str) -> Iterator[Manifest]:
    for runtime in subject.machine.runtimes:
        if runtime.name != loader or runtime.kind != "runtime" or runtime.path is None:
            continue
        path = runtime.path
        if _OTHER_ARCH.search(path):
            continue
        text = subject.read(path).text if path.endswith((".json", ".icd")) else ""
        try:
            library, _version = named_library(path, text or "")
            if path.endswith(".json") and json.loads(text or "").get("ICD", {}).get("library_arch") == "32":
                continue
        except (ValueError, AttributeError, RecursionError) as error:
            yield Manifest(path=path, library="?", vendors=runtime.vendors, found=Found(detail=str(error)))
            continue
        # Vulkan's loader takes a path with a slash from the manifest's folder; the others pass it to dlopen as it is.
        base = parent(path) if loader == "vulkan" else None
        found = find_library(subject, library, base=base)
        yield Manifest(path=path, library=library, vendors=runtime.vendors, found=found)

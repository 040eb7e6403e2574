"""Version conditions as people write them: `">=12.4"`, `"tensorrt>=10"`, `"torch"`.

The specifiers are those of Python packaging. The library that knows them is imported on first use, so that a
session without version conditions never loads it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pytest_gpucoexist.errors import RequirementError

__all__ = ["Condition", "parse_condition", "satisfies"]

_CONDITION = re.compile(r"\s*(?P<name>[A-Za-z][A-Za-z0-9_.\-]*)?\s*(?P<specifier>(?:[<>=!~].*)?)", re.DOTALL)
_BARE_VERSION = re.compile(r"\s*\d[\w.+\-]*\s*")

# Drivers and kernels append what packaging does not know: "6.8.0-51-generic", "535.261.03", "6.3.42134-a9a80e791".
_LEADING_RELEASE = re.compile(r"\d+(?:\.\d+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A name (of a driver, runtime or framework), a version specifier, or both."""

    name: str | None = None
    specifier: str = ""

    def __str__(self) -> str:
        return f"{self.name or ''}{self.specifier}"


def parse_condition(text: str, *, what: str) -> Condition:
    """Read `text`; a bare version such as `"12.4"` means exactly that version. Raises RequirementError."""
    bare = _BARE_VERSION.fullmatch(text)
    match = _CONDITION.fullmatch(f"=={text.strip()}" if bare else text)
    if match is None or not text.strip():
        raise RequirementError(f"{what}={text!r} is no version condition; write for example {_EXAMPLES[what]}")
    specifier = re.sub(r"\s+", "", match["specifier"])
    if specifier:
        from packaging.specifiers import InvalidSpecifier, SpecifierSet

        try:
            SpecifierSet(specifier)
        except InvalidSpecifier:
            raise RequirementError(
                f"{what}={text!r} has no valid version specifier; write for example {_EXAMPLES[what]}"
            ) from None
    return Condition(name=match["name"], specifier=specifier)


_EXAMPLES = {
    "driver": '">=535" or "nvidia>=535"',
    "runtime": '">=12.4" or "tensorrt>=10"',
    "framework": '"torch" or "torch>=2.4"',
}


def satisfies(version: str | None, specifier: str) -> bool | None:
    """Whether a version that a driver or package reports meets the specifier; None when it cannot be told."""
    if not specifier:
        return True
    if version is None:
        return None
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        found = Version(version)
    except InvalidVersion:
        release = _LEADING_RELEASE.match(version.strip().lstrip("v"))
        if release is None:
            return None
        found = Version(release[0])
    return SpecifierSet(specifier).contains(found, prereleases=True)

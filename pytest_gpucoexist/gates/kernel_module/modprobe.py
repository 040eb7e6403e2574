"""The language of modprobe.d: which files count, and what their lines say. Nothing here raises.

Sources: modprobe.d(5) and libkmod's libkmod-config.c (order of folders, masking by file name, `underscores()`),
libkmod-util.c (`freadline_wrapped`: what a backslash does).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["FOLDERS", "Directive", "effective_files", "module_name", "option_pairs", "parse_file", "refuses"]

FOLDERS = (
    "/etc/modprobe.d",
    "/run/modprobe.d",
    "/usr/local/lib/modprobe.d",
    "/usr/lib/modprobe.d",
    "/lib/modprobe.d",
)
"""In the order in which a file's name masks the same name further down."""

_COMMANDS = frozenset({"alias", "blacklist", "install", "options", "remove", "softdep", "weakdep"})
_WITH_VALUE = _COMMANDS - {"blacklist"}
_PAIR = re.compile(r'(?:[^\s"]|"[^"]*")+')
_REFUSING = frozenset({"false", "true", ":"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Directive:
    """One line that counts: `command` with the module or alias it is about; `value` is the rest of the line."""

    command: str
    module: str
    value: str
    path: str
    line: int

    @property
    def where(self) -> str:
        """File and line, as editors take them."""
        return f"{self.path}:{self.line}"

    @property
    def text(self) -> str:
        """The line in its usual form."""
        return f"{self.command} {self.module} {self.value}".rstrip()


def module_name(text: str) -> str:
    """Write a module's name as the kernel does: `-` and `_` are the same, but not in a pattern's brackets."""
    return "".join(
        part if part.startswith("[") else part.replace("-", "_") for part in re.split(r"(\[[^\]]*\]?)", text)
    )


def effective_files(folders: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the files that modprobe reads, in its order: by name; the first folder that has a name masks the others.

    `folders` maps a folder to the names in it, in the order of FOLDERS.
    """
    chosen: dict[str, str] = {}
    for folder, names in folders.items():
        for name in names:
            if name.endswith(".conf") and not name.startswith("."):
                chosen.setdefault(name, f"{folder}/{name}")
    return [chosen[name] for name in sorted(chosen)]


def parse_file(text: str, path: str) -> tuple[Directive, ...]:
    """Read one file. Comments, unknown commands and lines that lack a part say nothing, as for modprobe."""
    found: list[Directive] = []
    for number, line in _lines(text):
        words = line.split(None, 2)
        if len(words) < 2 or words[0] not in _COMMANDS:
            continue
        value = words[2].strip() if len(words) > 2 else ""
        if words[0] in _WITH_VALUE and not value:
            continue
        value = "" if words[0] == "blacklist" else value
        found.append(Directive(command=words[0], module=module_name(words[1]), value=value, path=path, line=number))
    return tuple(found)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines with their numbers; a backslash at the end joins the next line, in comments too."""
    parts: list[str] = []
    first = 1
    for number, line in enumerate(text.split("\n"), start=1):
        if not parts:
            first = number
        whole = line.removesuffix("\r")
        joined = whole.endswith("\\")
        parts.append(whole[:-1] if joined else whole)
        if not joined:
            yield first, "".join(parts)
            parts = []
    if parts:
        yield first, "".join(parts)


def option_pairs(value: str) -> dict[str, str]:
    """Split the value of `options` into parameters; one without `=` is `1`, as the kernel takes a bare boolean."""
    pairs: dict[str, str] = {}
    for word in _PAIR.findall(value):
        # Quotes hold spaces together, around the value or (as in NVIDIA's README) around the whole parameter.
        name, equals, setting = word.replace('"', "").partition("=")
        if name:
            pairs[module_name(name)] = setting if equals else "1"
    return pairs


def refuses(directive: Directive) -> bool:
    """Whether an `install` line keeps the module out: it runs a program that does nothing, in place of loading."""
    if directive.command != "install" or re.search(r"modprobe|insmod|\|\||;", directive.value):
        return False
    program = directive.value.split()[0].rpartition("/")[2] if directive.value.split() else ""
    return program in _REFUSING

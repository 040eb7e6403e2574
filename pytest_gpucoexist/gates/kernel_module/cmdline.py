"""The kernel's command line: arguments, and what they say about modules. Nothing here raises.

Sources: lib/cmdline.c (`next_arg`: quotes), kernel/params.c (`parameq`: `-` and `_` are equal; what follows `--` is for
init), kernel/module/main.c (`module_blacklist`), libkmod's libkmod-config.c (`modprobe.blacklist`, `module.option`),
dracut.cmdline(7) (`rd.driver.blacklist`).
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_gpucoexist.gates.kernel_module.modprobe import module_name

__all__ = ["CMDLINE", "Argument", "blacklists", "module_options", "parse_cmdline", "values"]

CMDLINE = "/proc/cmdline"

_BLACKLISTS = ("module_blacklist", "modprobe.blacklist", "rd.driver.blacklist", "rdblacklist")


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """`name` or `name=value`, quotes removed. `name` is as it was written."""

    name: str
    value: str | None = None

    def __str__(self) -> str:
        return self.name if self.value is None else f"{self.name}={self.value}"


def parse_cmdline(text: str) -> tuple[Argument, ...]:
    """Split a command line. Double quotes hold spaces together; there is no escape."""
    found: list[Argument] = []
    for word in _words(text):
        if word == "--":
            break
        # The whole argument can be quoted.
        plain = word[1:].removesuffix('"') if word.startswith('"') else word
        name, equals, value = plain.partition("=")
        if equals and value.startswith('"'):
            value = value[1:].removesuffix('"')
        if name:
            found.append(Argument(name=name, value=value if equals else None))
    return tuple(found)


def _words(text: str) -> list[str]:
    words: list[str] = []
    current = ""
    quoted = False
    for letter in text:
        if letter.isspace() and not quoted:
            if current:
                words.append(current)
            current = ""
            continue
        quoted ^= letter == '"'
        current += letter
    return [*words, current] if current else words


def values(arguments: tuple[Argument, ...], name: str) -> list[str]:
    """Return what is given for a name, in order; for a bare argument the empty string."""
    wanted = module_name(name)
    return [argument.value or "" for argument in arguments if module_name(argument.name) == wanted]


def blacklists(arguments: tuple[Argument, ...]) -> list[tuple[str, str]]:
    """Return (argument's name, module) of every module that the command line keeps out, in order."""
    return [
        (name, module_name(module.strip()))
        for argument in arguments
        for name in _BLACKLISTS
        if module_name(argument.name) == module_name(name)
        for module in (argument.value or "").split(",")
        if module.strip()
    ]


def module_options(arguments: tuple[Argument, ...], module: str) -> dict[str, str]:
    """Return the parameters of a module that are set as `module.parameter=value`; the last one counts."""
    found: dict[str, str] = {}
    wanted = module_name(module)
    for argument in arguments:
        owner, dot, parameter = argument.name.partition(".")
        if dot and parameter and module_name(owner) == wanted:
            found[module_name(parameter)] = "1" if argument.value is None else argument.value
    return found

"""Run the code blocks of a Markdown page, in order, in one folder of its own.

- A block whose first line is `# file: NAME` (or `<!-- file: NAME -->`) becomes that file.
- A `console` block is typed line by line: what follows `$ ` runs in the folder; the text below it must be what it
  prints (`...` stands for anything, white space counts loosely). `# exits with N` behind a command says its exit
  status, else 0.
- Any other `python` block runs as a script. `yaml`, `toml` and `json` blocks must parse. `text` is for reading.
"""

from __future__ import annotations

import doctest
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import yaml
from markdown_it import MarkdownIt

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Block", "BlockError", "blocks_of", "run_block"]

_FILE = re.compile(r"(?:#|<!--|//) file: (\S+)")
_EXITS = re.compile(r"\s+# exits with (\d+)$")
_KNOWN = {"python", "console", "yaml", "toml", "json", "ini", "text", "bash", "dockerfile", "html", "{toctree}"}


class BlockError(AssertionError):
    """A block of a page that does not do what the page shows."""


class Block(NamedTuple):
    """A fenced block: its language, its text and the line of the page where it starts."""

    language: str
    text: str
    line: int


def blocks_of(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    tokens = MarkdownIt().parse(page.read_text(encoding="utf-8"))
    return [
        Block((token.info.split() or [""])[0], token.content, (token.map or [0])[0] + 1)
        for token in tokens
        if token.type == "fence"
    ]


def run_block(block: Block, folder: Path) -> None:
    """Run one block. Raises BlockError with what was expected and found."""
    named = _FILE.match(block.text)
    if block.language not in _KNOWN and not block.language.startswith("{"):
        raise BlockError(f"line {block.line}: a block of language {block.language!r} is run by nobody")
    if named:
        path = folder / named[1]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text.split("\n", 1)[1], encoding="utf-8")
    elif block.language == "console":
        for command, status, expected in _commands(block.text):
            _type(command, status, expected, folder, block.line)
    elif block.language == "python":
        done = _shell([sys.executable, "-c", block.text], folder)
        if done.returncode != 0:
            raise BlockError(f"line {block.line}: exit status {done.returncode}\n{done.stdout}")
    elif block.language == "yaml":
        list(yaml.safe_load_all(block.text))
    elif block.language == "json":
        json.loads(block.text)


def _commands(text: str) -> Iterator[tuple[str, int, str]]:
    command, expected = None, ""
    for line in text.splitlines():
        if line.startswith("$ "):
            if command is not None:
                yield *_status(command), expected
            command, expected = line[2:], ""
        else:
            expected += line + "\n"
    if command is not None:
        yield *_status(command), expected


def _status(command: str) -> tuple[str, int]:
    found = _EXITS.search(command)
    return (command[: found.start()], int(found[1])) if found else (command, 0)


def _type(command: str, status: int, expected: str, folder: Path, line: int) -> None:
    done = _shell(["bash", "-c", command], folder)
    if done.returncode != status:
        raise BlockError(f"line {line}: `{command}` exits with {done.returncode}, not {status}:\n{done.stdout}")
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    if expected.strip() and not doctest.OutputChecker().check_output(expected, done.stdout, flags):
        raise BlockError(f"line {line}: `{command}` prints\n{done.stdout}\nnot\n{expected}")


def _shell(argv: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV"))}
    scripts = Path(sys.executable).parent
    path = f"{scripts}{os.pathsep}{os.environ['PATH']}"
    # Hypothesis' plugin is in the environment of our suite and costs each of these sessions a second.
    options = "-p no:hypothesispytest"
    # Leases of the demo machine are those of this user: other sessions of his must not show on a page, or hold it up.
    leases = folder / ".leases"
    leases.mkdir(exist_ok=True)
    environment = {
        **kept,
        "PATH": path,
        "COLUMNS": "118",
        "NO_COLOR": "1",
        "PYTEST_ADDOPTS": options,
        "PYTEST_GPU_LEASE_DIR": str(leases),
    }
    return subprocess.run(
        argv,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )

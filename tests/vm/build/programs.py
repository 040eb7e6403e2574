"""Run the programs that building needs, and say what is missing where one is."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["BuildError", "missing", "output"]

_PACKAGES = {
    "apt-get": "a Debian system",
    "dpkg-deb": "a Debian system",
    "tar": "apt-get install tar",
    "make": "apt-get install make",
    "gcc": "apt-get install gcc",
    "qemu-system-x86_64": "apt-get install qemu-system-x86",
}


class BuildError(Exception):
    """A program that building needs failed; its last lines are the message."""


def missing() -> str | None:
    """Say what a virtual workstation needs and this system lacks; None when it has everything."""
    wanted = [f"{program} ({package})" for program, package in _PACKAGES.items() if shutil.which(program) is None]
    return f"needs {', '.join(wanted)}" if wanted else None


def output(*argv: str, cwd: Path | None = None, environ: Mapping[str, str] | None = None) -> str:
    """Run a program and return what it printed. Raises BuildError."""
    done = subprocess.run(
        argv, capture_output=True, text=True, errors="replace", check=False, cwd=cwd, env=environ, timeout=900
    )
    if done.returncode != 0:
        said = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise BuildError(f"{' '.join(argv[:6])} …: exit {done.returncode}\n{said}")
    return done.stdout

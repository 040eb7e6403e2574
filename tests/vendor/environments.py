"""Packages of other versions, each in a folder of its own, by pip. Kept in pytest's cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


def installed(cache: Path, *requirements: str, dependencies: bool = False) -> Path:
    """Return a folder where pip put the requirements; skips where pip cannot reach them."""
    folder = cache / "-".join(text.replace("==", "_") for text in requirements)
    if folder.is_dir():
        return folder
    work = folder.with_name(f"{folder.name}.{os.getpid()}")
    argv = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", str(work)]
    argv += [] if dependencies else ["--no-deps"]
    done = subprocess.run([*argv, *requirements], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        shutil.rmtree(work, ignore_errors=True)
        pytest.skip(f"pip cannot install {' '.join(requirements)}: {done.stderr.strip().splitlines()[-1:]}")
    work.rename(folder)
    return folder

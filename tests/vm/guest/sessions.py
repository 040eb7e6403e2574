"""Sessions of pytest inside the guest, as a user would start them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tests.vm.guest.system import run

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

__all__ = ["session"]


def session(folder: Path, source: str, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a file of tests with the plugin, in a process of its own that must end by itself."""
    file = folder / "test_inner.py"
    file.write_text(source, encoding="utf-8")
    options = ("-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(folder))
    return run(sys.executable, "-m", "pytest", *options, *arguments, str(file), check=False, timeout_s=150, **environ)

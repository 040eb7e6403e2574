"""The guest's own system: Debian's Python, tools and C library in a folder, and its programs run from outside."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.vm.build.packages import unpack
from tests.vm.build.programs import output

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["USERLAND", "GuestRoot"]

USERLAND = ("busybox-static", "python3", "pciutils", "hwloc-nox", "kmod", "numactl")

_UNREAD = (
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/info",
    "usr/share/lintian",
    "usr/share/python3",
    "usr/lib/x86_64-linux-gnu/gconv",
    "usr/lib/x86_64-linux-gnu/perl-base",
)
"""Half of what packages bring is not for a machine that runs tests."""

_ACCOUNTS = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/tmp:/bin/sh\n",
    "etc/group": "root:x:0:\nvideo:x:44:\nrender:x:105:\nuser:x:1000:\n",
    "etc/hostname": "workstation\n",
    "etc/hosts": "127.0.0.1 localhost workstation\n",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestRoot:
    """A folder that becomes `/` of the guest."""

    path: Path

    def fill(self, packages: Iterable[Path]) -> None:
        """Unpack packages and write what their scripts would have. Raises BuildError."""
        unpack(packages, self.path)
        for name in _UNREAD:
            shutil.rmtree(self.path / name, ignore_errors=True)
        for name in ("dev", "proc", "sys", "run", "tmp", "root", "etc/modprobe.d", "lib/modules", "opt"):
            (self.path / name).mkdir(parents=True, exist_ok=True)
        for name, text in _ACCOUNTS.items():
            (self.path / name).write_text(text, encoding="utf-8")

    def run(self, program: str, *arguments: str, called: str | None = None) -> str:
        """Run a program of the guest here, by the guest's own loader and libraries. Raises BuildError."""
        loader = self.path / "usr/lib64/ld-linux-x86-64.so.2"
        libraries = ":".join(str(self.path / "usr/lib" / name) for name in ("x86_64-linux-gnu", ""))
        named = ("--argv0", called) if called else ()
        file = self.path / program
        return output(str(loader), "--library-path", libraries, *named, str(file), *arguments)

    def compile(self, *folders: str) -> None:
        """Compile Python files with the guest's Python: in an emulated processor that takes a minute."""
        python = next((self.path / "usr/bin").glob("python3.*[0-9]"))
        paths = [str(self.path / folder) for folder in folders]
        # An isolated interpreter finds its library from where it lies, here as in the guest.
        self.run(
            str(python.relative_to(self.path)),
            *("-I", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"),
            *("-s", str(self.path), "-p", "/", *paths),
        )

"""Small shared libraries, compiled here: real ELF files with the names, needs and search paths of the real ones."""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest


def library(
    soname: str | None, *exports: str, needed: tuple[str, ...] = (), runpath: str = "", rpath: str = "", mark: str = ""
) -> bytes:
    """Compile a library. `mark` makes it differ from another one with the same names."""
    return _library(soname, exports, needed, runpath, rpath, mark)


@functools.cache
def _library(
    soname: str | None, exports: tuple[str, ...], needed: tuple[str, ...], runpath: str, rpath: str, mark: str
) -> bytes:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "a.c")
        lines = [f"int {name}(void) {{ return 0; }}" for name in exports]
        lines.append(f'static const char mark[] __attribute__((used)) = "{mark}";')
        lines.append('__attribute__((visibility("hidden"))) int hipHiddenHelper(void) { return 1; }')
        source.write_text("\n".join(lines))
        command = [
            compiler,
            "-shared",
            "-fPIC",
            "-nostdlib",
            "-Wl,--build-id",
            "-Wl,--no-as-needed",
            "-o",
            f"{folder}/out.so",
            str(source),
        ]
        if soname:
            command.append(f"-Wl,-soname,{soname}")
        for each in needed:
            stub = Path(folder, "stubs", each)
            stub.parent.mkdir(exist_ok=True)
            subprocess.run(
                [compiler, "-shared", "-nostdlib", "-x", "c", "/dev/null", f"-Wl,-soname,{each}", "-o", stub],
                check=True,
            )
            command.append(str(stub))
        if runpath:
            command.append(f"-Wl,--enable-new-dtags,-rpath,{runpath}")
        if rpath:
            command.append(f"-Wl,--disable-new-dtags,-rpath,{rpath}")
        subprocess.run(command, check=True, capture_output=True)
        return Path(folder, "out.so").read_bytes()

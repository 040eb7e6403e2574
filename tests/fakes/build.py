"""Build the fake driver libraries with gcc, once for each state of their sources.

A library is built against what its vendor publishes: `nvml.h` of the wheel nvidia-nvml-dev, and the structures of the
installed amdsmi. A build lies in a folder named by a hash of everything that went in.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

SOURCES = Path(__file__).parent / "src"

_FLAGS = ["-std=gnu11", "-O1", "-g", "-shared", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"]


class CannotBuild(Exception):  # noqa: N818 - a reason to skip
    """Something that the build needs is not installed; the message says what, and how to get it."""


def nvml_library(cache: Path) -> Path:
    """Return a folder with `libnvidia-ml.so.1`. Raises CannotBuild."""
    include = _header("nvml.h", "nvidia-nvml-dev").parent
    folder = cache / f"nvml-{_hash(SOURCES / 'nvml.c', include / 'nvml.h')}"

    def make(into: Path) -> None:
        _gcc(into / "libnvidia-ml.so.1", "nvml.c", flags=["-isystem", str(include)])

    return _once(folder, make)


def amdsmi_library(cache: Path, package: Path | None = None) -> Path:
    """Return a folder with `lib/libamd_smi.so`, to be named by ROCM_PATH. Raises CannotBuild.

    `package` is the folder of another amdsmi than the installed one: the library then has that version's structures.
    """
    package = package or _package("amdsmi", "amdsmi==7.0.2")
    wrapper = package / "amdsmi_wrapper.py"
    generator = Path(__file__).parent / "amdsmi_abi.py"
    folder = cache / f"amdsmi-{_hash(SOURCES / 'amdsmi.c', wrapper, generator)}"

    def make(into: Path) -> None:
        generated, first = into / "generated", into / "stubs-only" / "lib"
        for each in (generated, first, into / "lib"):
            each.mkdir(parents=True)
        stubs = generated / "stubs.c"
        stubs.write_text(_run([sys.executable, str(generator), "symbols", str(wrapper)]))
        # The wrapper can be imported only beside a library that has all its functions; the stubs alone will do.
        _gcc(first / "libamd_smi.so", str(stubs))
        environ = {**os.environ, "ROCM_PATH": str(first.parent), "ROCM_HOME": str(first.parent)}
        header = _run([sys.executable, str(generator), "header", str(package.parent)], environ)
        (generated / "amdsmi_abi.h").write_text(header)
        flags = ["-I", str(generated), "-Wno-address-of-packed-member", "-Wl,-soname,libamd_smi.so.26"]
        _gcc(into / "lib" / "libamd_smi.so", "amdsmi.c", str(stubs), flags=flags)

    return _once(folder, make)


def runtime_libraries(cache: Path) -> Path:
    """Return a folder with libcuda, HSA, HIP and Level Zero, which initialise as they are told. Raises CannotBuild."""
    folder = cache / f"runtimes-{_hash(SOURCES / 'runtimes.c')}"

    def make(into: Path) -> None:
        for name in ("libcuda.so.1", "libhsa-runtime64.so.1", "libamdhip64.so.6", "libze_loader.so.1"):
            _gcc(into / name, "runtimes.c")

    return _once(folder, make)


def cuda_library(cache: Path) -> Path:
    """Return a folder with a `libcuda.so.1` that has memory, streams and peers. Raises CannotBuild."""
    include = _header("cuda.h", "nvidia-cuda-runtime").parent
    if not (include / "cudaTypedefs.h").is_file():
        raise CannotBuild(f"needs cudaTypedefs.h beside {include / 'cuda.h'} (pip install nvidia-cuda-runtime)")
    generator = Path(__file__).parent / "runtime_abi.py"
    folder = cache / f"cuda-{_hash(*_parts('gpu', 'cuda'), include / 'cuda.h', generator)}"

    def make(into: Path) -> None:
        generated = into / "generated"
        generated.mkdir()
        (generated / "cuda_tables.h").write_text(_run([sys.executable, str(generator), "cuda", str(include)]))
        flags = ["-I", str(generated), "-isystem", str(include)]
        _gcc(into / "libcuda.so.1", *_sources("gpu", "cuda"), flags=flags)

    return _once(folder, make)


def cuda_version() -> int:
    """Return the version of CUDA (12090) of the header that `cuda_library` is built against. Raises CannotBuild."""
    found = re.search(r"#define CUDA_VERSION (\d+)", _header("cuda.h", "nvidia-cuda-runtime").read_text())
    assert found is not None
    return int(found.group(1))


def hip_library(cache: Path) -> Path:
    """Return a folder with a `libamdhip64.so.7` that has memory, streams and peers. Raises CannotBuild."""
    package = _package("rocm.bindings.hip", "rocm-bindings-hip")
    generator = Path(__file__).parent / "runtime_abi.py"
    folder = cache / f"hip-{_hash(*_parts('gpu', 'hip'), package / 'cyhip.pxd', generator)}"

    def make(into: Path) -> None:
        generated = into / "generated"
        generated.mkdir()
        (generated / "hip_abi.h").write_text(_run([sys.executable, str(generator), "hip"]))
        _gcc(into / "libamdhip64.so.7", *_sources("gpu", "hip"), flags=["-I", str(generated)])
        (into / "libamdhip64.so").symlink_to("libamdhip64.so.7")  # what the bindings open

    return _once(folder, make)


def incomplete_amdsmi_library(cache: Path) -> Path:
    """Return a folder with a `lib/libamd_smi.so` of another release: it lacks what the wrapper binds first."""
    folder = cache / f"amdsmi-incomplete-{_hash()}"

    def make(into: Path) -> None:
        (into / "lib").mkdir()
        _gcc(into / "lib" / "libamd_smi.so")

    return _once(folder, make)


def _package(name: str, requirement: str) -> Path:
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:  # its parent
        spec = None
    if spec is None or spec.origin is None:
        raise CannotBuild(f"needs {name} (pip install {requirement})")
    return Path(spec.origin).parent


def _header(name: str, distribution: str) -> Path:
    roots = [Path(sysconfig.get_paths()[kind]) / "nvidia" for kind in ("purelib", "platlib")]
    found = [path for root in roots for path in sorted(root.glob(f"*/include/{name}"))]
    found += [path for path in (Path("/usr/local/cuda/include", name), Path("/usr/include", name)) if path.is_file()]
    if not found:
        raise CannotBuild(f"needs {name} (pip install {distribution})")
    return found[0]


def _parts(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((SOURCES / folder).iterdir())]


def _sources(*folders: str) -> list[str]:
    return [str(path) for path in _parts(*folders) if path.suffix == ".c"]


def _hash(*files: Path) -> str:
    digest = hashlib.sha256(" ".join(_FLAGS).encode())
    common = [SOURCES / name for name in ("board.c", "board.h", "description.c", "description.h")]
    for file in (*files, *common, Path(__file__)):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _once(folder: Path, make: object) -> Path:
    """Make a folder under a name of its own and rename it: other workers see all of it or nothing."""
    assert callable(make)
    if folder.is_dir():
        return folder
    work = folder.with_name(f"{folder.name}.{os.getpid()}")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    make(work)
    try:
        work.rename(folder)
    except OSError:  # another worker was first
        shutil.rmtree(work)
    return folder


def _gcc(target: Path, *sources: str, flags: list[str] | None = None) -> None:
    gcc = shutil.which("gcc")
    if gcc is None:
        raise CannotBuild("needs gcc")
    files = [
        str(SOURCES / source) for source in ("board.c", "description.c", *sources)
    ]  # an absolute path stays what it is
    soname = [] if any("soname" in flag for flag in flags or []) else [f"-Wl,-soname,{target.name}"]
    _run([gcc, *_FLAGS, "-I", str(SOURCES), *(flags or []), *files, "-o", str(target), *soname, "-lpthread"])


def _run(argv: list[str], environ: dict[str, str] | None = None) -> str:
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)} ended with status {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout
